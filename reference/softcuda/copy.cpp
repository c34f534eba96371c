// Copies and fills. All are done before the call returns. Measured facts: access is checked over
// the whole range before a byte moves, a refusal is INVALID_VALUE and leaves the context usable
// (fault_*.*, grow.memset_over_rw_then_ro), and a range may span mappings (grow.*).
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "driver.hpp"
#include "stream.hpp"

using namespace softcuda;

namespace {

// One side of a copy: device segments, or a host address.
struct Side {
  std::vector<Segment> segments;
  char* host = nullptr;
};

CUresult result_of(int error) {
  if (error == 0) return CUDA_SUCCESS;
  return error == ENOSPC || error == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

// Where an address leads. False when it is not accessible.
bool resolve(Driver& d, uint64_t address, size_t size, int device, bool write, Side* side) {
  if (d.space.is_device_address(address)) {
    return d.space.segments(address, size, device, write, &side->segments);
  }
  side->host = reinterpret_cast<char*>(address);
  return address != 0;
}

// Copies host memory by the kernel, which answers EFAULT for what is not there.
int copy_host(char* to, const char* from, size_t size) {
  while (size > 0) {
    size_t part = std::min(size, size_t{1} << 30);  // the kernel moves less than 2 GiB at a time
    iovec local{const_cast<char*>(from), part};
    iovec remote{to, part};
    ssize_t n = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
    if (n < 0 && (errno == EPERM || errno == ENOSYS)) {  // forbidden here: trust the caller
      memmove(to, from, size);
      return 0;
    }
    if (n <= 0) return EFAULT;
    to += n;
    from += n;
    size -= static_cast<size_t>(n);
  }
  return 0;
}

int move_bytes(Driver& d, const Side& to, const Side& from, size_t size) {
  const Store& store = d.books->store();
  if (to.host != nullptr && from.host != nullptr) return copy_host(to.host, from.host, size);
  size_t done = 0;
  if (to.host != nullptr) {
    for (const Segment& s : from.segments) {
      if (int error = store.read(s.offset, to.host + done, s.size)) return error;
      done += s.size;
    }
    return 0;
  }
  if (from.host != nullptr) {
    for (const Segment& s : to.segments) {
      if (int error = store.write(s.offset, from.host + done, s.size)) return error;
      done += s.size;
    }
    return 0;
  }
  size_t i = 0, j = 0, at_to = 0, at_from = 0;
  while (i < to.segments.size() && j < from.segments.size()) {
    const Segment& t = to.segments[i];
    const Segment& f = from.segments[j];
    size_t part = std::min(t.size - at_to, f.size - at_from);
    if (int error = store.copy(t.offset + at_to, f.offset + at_from, part)) return error;
    at_to += part;
    at_from += part;
    if (at_to == t.size) i++, at_to = 0;
    if (at_from == f.size) j++, at_from = 0;
  }
  return 0;
}

CUresult copy(uint64_t to, uint64_t from, size_t size, int to_device = -1, int from_device = -1) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (size == 0) return CUDA_SUCCESS;
  Shared lock(d->mutex);
  Side target, source;
  int writer = to_device < 0 ? context->device : to_device;
  int reader = from_device < 0 ? context->device : from_device;
  if (!resolve(*d, to, size, writer, true, &target) ||
      !resolve(*d, from, size, reader, false, &source)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return result_of(move_bytes(*d, target, source, size));
}

// Whether a range lies in host memory that CUDA gave or was told of: others cannot be filled.
bool is_known_host_range(const Driver& d, uintptr_t base, size_t size) {
  auto above = d.host_ranges.upper_bound(base);
  if (above == d.host_ranges.begin()) return false;
  const auto& [start, range] = *std::prev(above);
  return base - start < range.size && size <= range.size - (base - start);
}

CUresult fill(CUdeviceptr to, uint32_t pattern, size_t pattern_size, size_t count) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (to % pattern_size != 0 || count > SIZE_MAX / pattern_size) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  size_t size = count * pattern_size;
  Shared lock(d->mutex);
  Side target;
  if (!resolve(*d, to, size, context->device, true, &target)) return CUDA_ERROR_INVALID_VALUE;
  if (target.host != nullptr) {
    if (!is_known_host_range(*d, to, size)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < size; i += pattern_size) memcpy(target.host + i, &pattern, pattern_size);
    return CUDA_SUCCESS;
  }
  for (const Segment& s : target.segments) {
    if (int error = d->books->store().fill(s.offset, pattern, pattern_size, s.size)) {
      return result_of(error);
    }
  }
  return CUDA_SUCCESS;
}

CUresult fill_rows(CUdeviceptr to, size_t pitch, uint32_t pattern, size_t pattern_size,
                   size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) {
    if (CUresult r = fill(to + row * pitch, pattern, pattern_size, width)) return r;
  }
  return height == 0 ? fill(to, pattern, pattern_size, 0) : CUDA_SUCCESS;
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult context_device(CUcontext context, int* device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult copy_peer(uint64_t to, CUcontext to_context, uint64_t from, CUcontext from_context,
                   size_t size) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  int to_device = 0, from_device = 0;
  if (CUresult r = context_device(to_context, &to_device)) return r;
  if (CUresult r = context_device(from_context, &from_device)) return r;
  return copy(to, from, size, to_device, from_device);
}

CUresult copy_rows(const CUDA_MEMCPY2D* c) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto start = [](CUmemorytype type, const void* host, CUdeviceptr device) -> uint64_t {
    if (type == CU_MEMORYTYPE_HOST) return address_of(host);
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
  };
  uint64_t from = start(c->srcMemoryType, c->srcHost, c->srcDevice);
  uint64_t to = start(c->dstMemoryType, c->dstHost, c->dstDevice);
  if (from == 0 || to == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t row = 0; row < c->Height; row++) {
    CUresult r = copy(to + (c->dstY + row) * c->dstPitch + c->dstXInBytes,
                      from + (c->srcY + row) * c->srcPitch + c->srcXInBytes, c->WidthInBytes);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

// Work for a stream: it may not be capturing, since no graph is built here.
CUresult on_stream(CUstream stream, const char* what) { return check_work_stream(stream, what); }

}  // namespace

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, from, size); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return copy(to, address_of(from), size);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  return copy(address_of(to), from, size);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return copy(to, from, size);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t size) {
  return copy_peer(to, to_context, from, from_context, size);
}
CUresult cuMemcpy2D(const CUDA_MEMCPY2D* parameters) { return copy_rows(parameters); }
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* parameters) { return copy_rows(parameters); }

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemcpyAsync")) return r;
  return copy(to, from, size);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemcpyHtoDAsync")) return r;
  return copy(to, address_of(from), size);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemcpyDtoHAsync")) return r;
  return copy(address_of(to), from, size);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemcpyDtoDAsync")) return r;
  return copy(to, from, size);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t size, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemcpyPeerAsync")) return r;
  return copy_peer(to, to_context, from, from_context, size);
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* parameters, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemcpy2DAsync")) return r;
  return copy_rows(parameters);
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  return fill(to, value, 1, count);
}
CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  return fill(to, value, 2, count);
}
CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) {
  return fill(to, value, 4, count);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemsetD8Async")) return r;
  return fill(to, value, 1, count);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemsetD16Async")) return r;
  return fill(to, value, 2, count);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  if (CUresult r = on_stream(stream, "cuMemsetD32Async")) return r;
  return fill(to, value, 4, count);
}
CUresult cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                      size_t height) {
  return fill_rows(to, pitch, value, 1, width, height);
}
CUresult cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                       size_t height) {
  return fill_rows(to, pitch, value, 2, width, height);
}
CUresult cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                       size_t height) {
  return fill_rows(to, pitch, value, 4, width, height);
}
