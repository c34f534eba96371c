// A process for the fault tests: does one thing with device memory, says so on stdout, and ends, or
// waits for the end of stdin.
//   init               the result of cuInit
//   free               bytes of free memory
//   hold UNITS         creates, maps and writes UNITS of 2 MiB; then waits
//   leave UNITS        the same, and exits without releasing anything
//   zeros UNITS        the number of non-zero bytes in UNITS fresh units
//   churn SEED         random VMM calls for ever
//   fork-and-die UNITS as hold, then forks: the child waits, the parent exits
//   fill-up            creates units until it cannot; writes them all; "COUNT CODE WRITE_CODE"
#include <cuda.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t kUnit = size_t{2} << 20;

struct Block {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  size_t size = 0;
};

CUresult create(size_t units, Block* block) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  block->size = units * kUnit;
  return cuMemCreate(&block->handle, block->size, &prop, 0);
}

CUresult map(Block* block) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (CUresult r = cuMemAddressReserve(&block->base, block->size, 0, 0, 0)) return r;
  if (CUresult r = cuMemMap(block->base, block->size, 0, block->handle, 0)) return r;
  return cuMemSetAccess(block->base, block->size, &access, 1);
}

void unmap(Block* block) {
  cuMemUnmap(block->base, block->size);
  cuMemAddressFree(block->base, block->size);
  block->base = 0;
}

void say(const std::string& text) {
  printf("%s\n", text.c_str());
  fflush(stdout);
}

void wait_for_end_of_input() {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

CUresult start() {
  if (CUresult r = cuInit(0)) return r;
  CUcontext context;
  if (CUresult r = cuDevicePrimaryCtxRetain(&context, 0)) return r;
  return cuCtxSetCurrent(context);
}

CUresult make_written(size_t units, Block* block) {
  if (CUresult r = create(units, block)) return r;
  if (CUresult r = map(block)) return r;
  return cuMemsetD8(block->base, 0xa5, block->size);
}

size_t count_non_zero(const Block& block) {
  std::vector<unsigned char> bytes(block.size);
  if (cuMemcpyDtoH(bytes.data(), block.base, bytes.size()) != CUDA_SUCCESS) return SIZE_MAX;
  size_t count = 0;
  for (unsigned char byte : bytes) count += byte != 0;
  return count;
}

[[noreturn]] void churn(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  std::vector<int> fds;
  constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  say("churning");
  for (;;) {
    size_t which = blocks.empty() ? 0 : random() % blocks.size();
    switch (random() % 6) {
      case 0: {
        Block block;
        if (blocks.size() < 16 && create(1 + random() % 4, &block) == CUDA_SUCCESS) {
          blocks.push_back(block);
        }
        break;
      }
      case 1:
        if (blocks.empty()) break;
        if (blocks[which].base != 0) unmap(&blocks[which]);
        cuMemRelease(blocks[which].handle);
        blocks.erase(blocks.begin() + static_cast<long>(which));
        break;
      case 2:
        if (!blocks.empty() && blocks[which].base == 0) map(&blocks[which]);
        break;
      case 3:
        if (!blocks.empty() && blocks[which].base != 0) cuMemsetD8(blocks[which].base, 1, 4096);
        break;
      case 4: {
        int fd = -1;
        bool room = !blocks.empty() && fds.size() < 16;
        if (room && cuMemExportToShareableHandle(&fd, blocks[which].handle, kFd, 0) == 0) {
          fds.push_back(fd);
        }
        break;
      }
      default: {
        if (fds.empty()) break;
        CUmemGenericAllocationHandle handle;
        void* fd = reinterpret_cast<void*>(static_cast<uintptr_t>(fds.back()));
        if (cuMemImportFromShareableHandle(&handle, fd, kFd) == 0) cuMemRelease(handle);
        close(fds.back());
        fds.pop_back();
      }
    }
  }
}

void fill_up() {
  std::vector<Block> blocks;
  Block block;
  CUresult last;
  while ((last = create(1, &block)) == CUDA_SUCCESS) blocks.push_back(block);
  CUresult write = CUDA_SUCCESS;
  for (Block& b : blocks) {
    if (write == CUDA_SUCCESS) write = map(&b);
    if (write == CUDA_SUCCESS) write = cuMemsetD8(b.base, 7, b.size);
  }
  say(std::to_string(blocks.size()) + " " + std::to_string(last) + " " + std::to_string(write));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::string what = argv[1];
  size_t argument = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1;
  CUresult r = start();
  if (what == "init" || r != CUDA_SUCCESS) {
    say(std::to_string(r));
    return r == CUDA_SUCCESS ? 0 : 1;
  }
  Block block;
  if (what == "free") {
    size_t free = 0, total = 0;
    cuMemGetInfo(&free, &total);
    say(std::to_string(free));
  } else if (what == "hold") {
    say(std::to_string(make_written(argument, &block)));
    wait_for_end_of_input();
  } else if (what == "leave") {
    say(std::to_string(make_written(argument, &block)));
  } else if (what == "zeros") {
    if (create(argument, &block) != 0 || map(&block) != 0) return 1;
    say(std::to_string(count_non_zero(block)));
  } else if (what == "churn") {
    churn(static_cast<unsigned>(argument));
  } else if (what == "fork-and-die") {
    if (make_written(argument, &block) != 0) return 1;
    if (fork() == 0) {
      say("child");
      wait_for_end_of_input();
    }
    _exit(0);
  } else if (what == "fill-up") {
    fill_up();
  } else {
    return 2;
  }
  return 0;
}
