// tap_faulty KIND: a program that uses the driver wrongly in one way, for tests of tap and doctor.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>

namespace {

// An entry point by cuGetProcAddress, as programs of today find theirs.
template <class Function>
Function entry(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "tap_faulty: %s\n", ::dlerror());
    ::_exit(3);
  }
  using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult*);
  const auto find = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  void* found = nullptr;
  if (find(name, &found, 13000, 0, nullptr) != CUDA_SUCCESS || found == nullptr) {
    std::fprintf(stderr, "tap_faulty: the driver has no %s\n", name);
    ::_exit(3);
  }
  return reinterpret_cast<Function>(found);
}
#define DRIVER(name) entry<decltype(&::name)>(#name)

constexpr std::size_t kSize = std::size_t{2} << 20;

CUmemAllocationProp properties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return prop;
}

// One allocation, mapped; what is not told to be left is undone in order.
struct Memory {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr pointer = 0;

  Memory() {
    const CUmemAllocationProp prop = properties();
    DRIVER(cuMemCreate)(&handle, kSize, &prop, 0);
    DRIVER(cuMemAddressReserve)(&pointer, kSize, 0, 0, 0);
    DRIVER(cuMemMap)(pointer, kSize, 0, handle, 0);
  }
  CUresult unmap(std::size_t size = kSize) const { return DRIVER(cuMemUnmap)(pointer, size); }
  CUresult release() const { return DRIVER(cuMemRelease)(handle); }
  CUresult free(std::size_t size = kSize) const { return DRIVER(cuMemAddressFree)(pointer, size); }
};

int export_fd(const Memory& memory) {
  int fd = -1;
  DRIVER(cuMemExportToShareableHandle)(&fd, memory.handle,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return fd;
}

void undo(const Memory& memory) {
  memory.unmap();
  memory.release();
  memory.free();
}

CUmemoryPool make_pool() {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  DRIVER(cuMemPoolCreate)(&pool, &props);
  return pool;
}

const std::map<std::string, std::function<void()>> kinds{
    {"nothing", [] {
       const Memory memory;
       ::close(export_fd(memory));
       undo(memory);
       DRIVER(cuMemPoolDestroy)(make_pool());
     }},
    {"released-while-mapped", [] {
       const Memory memory;
       memory.release();
       memory.unmap();
       memory.free();
     }},
    {"double-release", [] {
       const Memory memory;
       undo(memory);
       memory.release();
     }},
    {"dead-handle", [] {
       const Memory memory;
       undo(memory);
       ::close(export_fd(memory));
     }},
    {"double-unmap", [] {
       const Memory memory;
       memory.unmap();
       undo(memory);
     }},
    {"unmap-half", [] {
       const Memory memory;
       memory.unmap(kSize / 2);
       undo(memory);
     }},
    {"double-free", [] {
       const Memory memory;
       undo(memory);
       memory.free();
     }},
    {"free-half", [] {
       const Memory memory;
       memory.unmap();
       memory.free(kSize / 2);
       memory.release();
       memory.free();
     }},
    {"free-mapped", [] {
       const Memory memory;
       memory.free();
       undo(memory);
     }},
    {"leak-handle", [] {
       const Memory memory;
       memory.unmap();
       memory.free();
     }},
    {"leak-mapping", [] {
       const Memory memory;
       memory.release();
     }},
    {"leak-reservation", [] {
       const Memory memory;
       memory.unmap();
       memory.release();
     }},
    {"leak-pool", [] { make_pool(); }},
    {"open-fd", [] {
       const Memory memory;
       export_fd(memory);
       undo(memory);
     }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto found = argc == 2 ? kinds.find(argv[1]) : kinds.end();
  if (found == kinds.end()) {
    std::fputs("tap_faulty: usage: tap_faulty KIND, with one of:", stderr);
    for (const auto& [name, run] : kinds) std::fprintf(stderr, " %s", name.c_str());
    std::fputs("\n", stderr);
    return 2;
  }
  CUcontext context = nullptr;
  if (DRIVER(cuInit)(0) != CUDA_SUCCESS) return 3;
  DRIVER(cuDevicePrimaryCtxRetain)(&context, 0);
  found->second();
  return 0;
}
