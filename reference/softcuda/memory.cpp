// Memory that is not VMM: cuMemAlloc, pinned, registered and managed host memory. They stand beside
// the VMM group as its neighbours: cuMemFree of a VMM address is refused, cuMemRetainAllocationHandle
// of a cuMemAlloc address too (retain.*). Each cuMemAlloc takes whole 2 MiB units.
#include <sys/mman.h>

#include <cstring>

#include "driver.hpp"
#include "log.hpp"

using namespace softcuda;

namespace {

size_t whole_pages(size_t size) { return (size + 4095) / 4096 * 4096; }

CUresult allocate_host(void** out, size_t size, HostRange range) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (CUresult r = require_context(&range.context)) return r;
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > (size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = mmap(nullptr, whole_pages(size), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  range.size = size;
  Exclusive lock(d->mutex);
  range.buffer_id = d->next_host_id++;
  d->host_ranges[reinterpret_cast<uintptr_t>(memory)] = range;
  *out = memory;
  return CUDA_SUCCESS;
}

// Forgets a host range that starts at an address, if it is of the kind; gives its pages back.
CUresult forget_host(void* address, bool registered) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Exclusive lock(d->mutex);
  auto found = d->host_ranges.find(reinterpret_cast<uintptr_t>(address));
  if (found == d->host_ranges.end() || found->second.registered != registered) {
    return registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
  }
  if (!registered) munmap(address, whole_pages(found->second.size));
  d->host_ranges.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAlloc(CUdeviceptr* out, size_t size) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult missing = require_context(&context)) return missing;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  Mapping* mapping = nullptr;
  CUresult r = d->allocate_plain(size, CU_MEM_LOCATION_TYPE_DEVICE, context->device,
                                 Origin::kAlloc, &mapping);
  if (r != CUDA_SUCCESS) return r;
  mapping->context = context;
  *out = mapping->base;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                         unsigned int element) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (pitch == nullptr || width == 0 || height == 0 ||
      (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t row = (width + 511) / 512 * 512;
  if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_INVALID_VALUE;
  CUresult r = cuMemAlloc(out, row * height);
  if (r == CUDA_SUCCESS) *pitch = row;
  return r;
}

CUresult cuMemFree(CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (address == 0) return CUDA_SUCCESS;
  {
    Exclusive lock(d->mutex);
    Mapping* mapping = d->space.find(address);
    if (mapping != nullptr) {
      bool own = mapping->base == address && (mapping->origin == Origin::kAlloc ||
                                              mapping->origin == Origin::kPoolAlloc ||
                                              mapping->origin == Origin::kPoolImport);
      if (!own) return CUDA_ERROR_INVALID_VALUE;
      d->unmap(mapping);
      return CUDA_SUCCESS;
    }
    auto managed = d->host_ranges.find(address);
    if (managed == d->host_ranges.end() || !managed->second.managed) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return forget_host(reinterpret_cast<void*>(address), false);
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t size, unsigned int flags) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  HostRange range;
  range.managed = true;
  return allocate_host(reinterpret_cast<void**>(out), size, range);
}

CUresult cuMemAllocHost(void** out, size_t size) { return allocate_host(out, size, HostRange{}); }

CUresult cuMemHostAlloc(void** out, size_t size, unsigned int flags) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
  HostRange range;
  range.flags = flags;
  return allocate_host(out, size, range);
}

CUresult cuMemFreeHost(void* address) { return forget_host(address, false); }

CUresult cuMemHostRegister(void* address, size_t size, unsigned int flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  HostRange range;
  if (CUresult r = require_context(&range.context)) return r;
  if (address == nullptr || size == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  range.size = size;
  range.flags = flags;
  range.registered = true;
  auto base = reinterpret_cast<uintptr_t>(address);
  Exclusive lock(d->mutex);
  auto above = d->host_ranges.lower_bound(base + size);
  if (above != d->host_ranges.begin()) {
    auto below = std::prev(above);
    if (below->first + below->second.size > base) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  range.buffer_id = d->next_host_id++;
  d->host_ranges[base] = range;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) { return forget_host(address, true); }

CUresult cuMemHostGetDevicePointer(CUdeviceptr* out, void* address, unsigned int flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto wanted = reinterpret_cast<uintptr_t>(address);
  Shared lock(d->mutex);
  auto above = d->host_ranges.upper_bound(wanted);
  if (above == d->host_ranges.begin()) return CUDA_ERROR_INVALID_VALUE;
  auto found = std::prev(above);
  if (wanted - found->first >= found->second.size) return CUDA_ERROR_INVALID_VALUE;
  *out = wanted;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  auto found = d->host_ranges.find(reinterpret_cast<uintptr_t>(address));
  if (found == d->host_ranges.end()) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->second.flags;
  return CUDA_SUCCESS;
}

// The H200 exported a real dma-buf (dmabuf.*). An fd that no kernel importer understands would be a
// false success, so there is none, and CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  bool known_type = type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
  if (handle == nullptr || address == 0 || size == 0 || !known_type || flags > 1) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Shared lock(d->mutex);
  Mapping* mapping = d->space.find(address);
  if (mapping == nullptr || size > mapping->size - (address - mapping->base)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  log_line("cuMemGetHandleForAddressRange: dma-buf export is not modelled");
  return CUDA_ERROR_NOT_SUPPORTED;
}
