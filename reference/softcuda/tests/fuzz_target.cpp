// A libFuzzer target: the input is a sequence of VMM calls with good and bad arguments. What
// succeeded is remembered, undone at the end, and must then leave no memory in use. A violated rule
// aborts. Run it for as long as wanted: softcuda_fuzzer -max_total_time=SECONDS.
#include <cuda.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

void demand(bool holds, const char* rule) {
  if (holds) return;
  fprintf(stderr, "broken: %s\n", rule);
  abort();
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  demand(cuMemGetInfo(&free, &total) == CUDA_SUCCESS, "free memory can be asked for");
  return free;
}

struct Range {
  CUdeviceptr base;
  size_t size;
};

class Sequence {
 public:
  Sequence(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  void run() {
    size_t before = free_bytes();
    while (at_ < size_) step(byte() % 14);
    undo();
    demand(free_bytes() == before, "nothing is left when all is undone");
  }

 private:
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | byte();
    return value;
  }

  size_t any_size() {
    switch (uint8_t choice = byte() % 12; choice) {
      case 0: return 0;
      case 1: return 1;
      case 2: return kUnit / 2;
      case 3: return kUnit + 4096;
      case 4: return size_t{1} << 50;
      case 5: return word();
      default: return (choice % 3 + 1) * kUnit;
    }
  }

  template <typename T>
  T any_of(const std::vector<T>& known, T otherwise) {
    uint8_t choice = byte();
    return known.empty() || choice == 255 ? otherwise : known[choice % known.size()];
  }

  CUmemGenericAllocationHandle any_handle() {
    return any_of<CUmemGenericAllocationHandle>(references_, word() & 0xffff);
  }

  CUdeviceptr any_address() {
    Range range = any_of<Range>(byte() % 2 != 0 ? reserved_ : mapped_, {0, 0});
    uint8_t choice = byte();
    // Never an address of this process: copies would reach its own memory.
    if (choice == 255) return word() | CUdeviceptr{1} << 62;
    return range.base + choice % 8 * (choice < 224 ? kUnit : 4096);
  }

  void step(int operation) {
    switch (operation) {
      case 0: return create();
      case 1: return release();
      case 2: return reserve();
      case 3: return free_range();
      case 4: case 5: return map();
      case 6: return unmap();
      case 7: return access();
      case 8: return export_handle();
      case 9: return import_handle();
      case 10: return close_fd();
      case 11: return touch();
      case 12: return retain();
      default: return plain();
    }
  }

  void create() {
    CUmemAllocationProp prop{};
    prop.type = static_cast<CUmemAllocationType>(byte() % 16 == 0 ? byte() : 1);
    prop.location.type = static_cast<CUmemLocationType>(byte() % 4 == 0 ? byte() % 6 : 1);
    prop.location.id = byte() % 8 == 0 ? static_cast<int8_t>(byte()) : 0;
    prop.requestedHandleTypes =
        static_cast<CUmemAllocationHandleType>(byte() % 4 == 0 ? byte() : 1);
    CUmemGenericAllocationHandle handle;
    if (cuMemCreate(&handle, any_size(), &prop, byte() == 1) == CUDA_SUCCESS) {
      references_.push_back(handle);
    }
  }

  void release() {
    CUmemGenericAllocationHandle handle = any_handle();
    bool ok = cuMemRelease(handle) == CUDA_SUCCESS;
    for (size_t i = 0; i < references_.size(); i++) {
      if (references_[i] != handle) continue;
      demand(ok, "a held reference can be released");
      references_.erase(references_.begin() + static_cast<long>(i));
      return;
    }
    demand(!ok, "only a held reference can be released");
  }

  void reserve() {
    CUdeviceptr base = 0;
    size_t size = any_size();
    size_t alignment = byte() % 4 == 0 ? size_t{1} << byte() % 34 : 0;
    if (cuMemAddressReserve(&base, size, alignment, any_address(), 0) != CUDA_SUCCESS) return;
    for (const Range& range : reserved_) {
      bool apart = base + size <= range.base || range.base + range.size <= base;
      demand(apart, "reservations do not overlap");
    }
    reserved_.push_back({base, size});
  }

  void free_range() {
    Range range = any_of<Range>(reserved_, {word(), word()});
    if (byte() % 4 == 0) range.size = any_size();
    if (cuMemAddressFree(range.base, range.size) != CUDA_SUCCESS) return;
    forget(&reserved_, range, "only a reservation can be freed");
  }

  void map() {
    CUdeviceptr base = any_address();
    size_t size = any_size();
    size_t offset = byte() % 16 == 0 ? any_size() : 0;
    if (cuMemMap(base, size, offset, any_handle(), 0) != CUDA_SUCCESS) return;
    mapped_.push_back({base, size});
  }

  void unmap() {
    CUdeviceptr base = any_address();
    size_t size = any_size();
    if (cuMemUnmap(base, size) != CUDA_SUCCESS) return;
    for (size_t i = mapped_.size(); i-- > 0;) {
      const Range& m = mapped_[i];
      if (m.base + m.size <= base || base + size <= m.base) continue;
      demand(m.base >= base && m.base + m.size <= base + size, "a mapping is unmapped whole");
      mapped_.erase(mapped_.begin() + static_cast<long>(i));
    }
  }

  void access() {
    CUmemAccessDesc desc{};
    desc.location.type = static_cast<CUmemLocationType>(byte() % 8 == 0 ? byte() % 6 : 1);
    desc.location.id = byte() % 16 == 0 ? static_cast<int8_t>(byte()) : 0;
    constexpr int kFlags[] = {3, 3, 1, 0};
    desc.flags = static_cast<CUmemAccess_flags>(byte() == 9 ? byte() : kFlags[byte() % 4]);
    cuMemSetAccess(any_address(), any_size(), &desc, 1);
    unsigned long long flags;
    cuMemGetAccess(&flags, &desc.location, any_address());
  }

  void export_handle() {
    if (fds_.size() > 16) return;
    int fd = -1;
    if (cuMemExportToShareableHandle(&fd, any_handle(), kFd, byte() == 1) == CUDA_SUCCESS) {
      fds_.push_back(fd);
    }
  }

  void import_handle() {
    CUmemGenericAllocationHandle handle;
    int fd = any_of<int>(fds_, static_cast<int8_t>(byte()));
    void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
    if (cuMemImportFromShareableHandle(&handle, os_handle, kFd) == CUDA_SUCCESS) {
      references_.push_back(handle);
    }
  }

  void close_fd() {
    if (fds_.empty()) return;
    size_t which = byte() % fds_.size();
    close(fds_[which]);
    fds_.erase(fds_.begin() + static_cast<long>(which));
  }

  void touch() {
    CUdeviceptr base = any_address();
    size_t size = byte() % 4 == 0 ? any_size() : byte();
    unsigned char bytes[256];
    cuMemsetD8(base, byte(), size);
    cuMemcpyDtoH(bytes, base, size % sizeof bytes);
    cuMemcpyDtoD(any_address(), base, size);
    CUdeviceptr start = 0;
    size_t length = 0;
    if (cuMemGetAddressRange(&start, &length, base) == CUDA_SUCCESS) {
      demand(base >= start && base - start < length, "an address lies in its range");
    }
  }

  void retain() {
    CUmemGenericAllocationHandle handle;
    void* address = reinterpret_cast<void*>(any_address());
    if (cuMemRetainAllocationHandle(&handle, address) == CUDA_SUCCESS) {
      references_.push_back(handle);
    }
  }

  void plain() {
    CUdeviceptr base = 0;
    size_t size = any_size();
    if (plain_.size() < 4 && cuMemAlloc(&base, size) == CUDA_SUCCESS) plain_.push_back(base);
    if (byte() % 2 == 0) cuMemFree(any_of<CUdeviceptr>({}, any_address()));
  }

  static void forget(std::vector<Range>* ranges, const Range& gone, const char* rule) {
    for (size_t i = 0; i < ranges->size(); i++) {
      if ((*ranges)[i].base != gone.base || (*ranges)[i].size != gone.size) continue;
      ranges->erase(ranges->begin() + static_cast<long>(i));
      return;
    }
    demand(false, rule);
  }

  void undo() {
    for (const Range& m : mapped_) {
      demand(cuMemUnmap(m.base, m.size) == CUDA_SUCCESS, "a mapping can be unmapped");
    }
    for (const Range& r : reserved_) {
      demand(cuMemAddressFree(r.base, r.size) == CUDA_SUCCESS, "a reservation can be freed");
    }
    for (auto handle : references_) {
      demand(cuMemRelease(handle) == CUDA_SUCCESS, "a reference can be released");
    }
    for (int fd : fds_) close(fd);
    for (CUdeviceptr base : plain_) {
      demand(cuMemFree(base) == CUDA_SUCCESS, "plain memory can be freed");
    }
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  std::vector<CUmemGenericAllocationHandle> references_;
  std::vector<Range> reserved_, mapped_;
  std::vector<int> fds_;
  std::vector<CUdeviceptr> plain_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool ready = [] {
    CUcontext context;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
  }();
  demand(ready, "there is a device");
  Sequence(data, size).run();
  return 0;
}
