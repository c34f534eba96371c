// Export and import of allocations, and the legacy IPC handles of cuMemAlloc memory. Measured
// facts: an export is a fresh close-on-exec fd (export.*); at the fd limit the code is
// OPERATING_SYSTEM and the out value -1 (rlimit.export_at_limit); an import neither takes nor
// closes an fd (rlimit.import_at_limit, import.fd_still_open); imports are not exportable again
// (xproc.importer.reexport_*); any other fd is UNKNOWN, a pool's NOT_SUPPORTED (import.fd_*,
// mempool.*).
#include <cstring>

#include "driver.hpp"

using namespace softcuda;

namespace {

// What softcuda puts into the 64 opaque bytes of a CUipcMemHandle.
struct IpcPayload {
  char mark[8];
  ExtentId extent;
  uint64_t size;
};
constexpr char kIpcMark[8] = {'s', 'o', 'f', 't', 'i', 'p', 'c', '1'};

}  // namespace

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle value,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Shared lock(d->mutex);  // the handle, and so the extent, stays while the fd is made
  Handle* handle = d->find_handle(value);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handle->imported) return d->code(CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  if ((handle->extent.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int fd = -1;
  CUresult r = d->books->export_fd(handle->extent.id, !d->variants.fds_without_cloexec, &fd);
  memcpy(out, &fd, sizeof fd);
  return r == CUDA_SUCCESS ? r : d->code(r, CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* value, void* os_handle,
                                        CUmemAllocationHandleType type) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_WIN32 || type == CU_MEM_HANDLE_TYPE_FABRIC) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  CUresult foreign = d->code(CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE);
  int fd = static_cast<int>(reinterpret_cast<uintptr_t>(os_handle));
  ExtentId id = d->books->identify(fd);
  if (id == 0) return foreign;
  Exclusive lock(d->mutex);
  Extent extent;
  if (!d->books->look_up(id, &extent)) return foreign;
  if (extent.kind == ExtentKind::kPool) return CUDA_ERROR_NOT_SUPPORTED;
  if (extent.kind != ExtentKind::kAllocation || !d->books->hold(id, &extent)) return foreign;
  *value = d->make_handle(extent, true)->value;
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  Mapping* m = d->space.find(address);
  if (m == nullptr || m->origin != Origin::kAlloc) return CUDA_ERROR_INVALID_VALUE;
  memset(handle, 0, sizeof *handle);
  IpcPayload payload{};
  memcpy(payload.mark, kIpcMark, sizeof kIpcMark);
  payload.extent = m->extent.id;
  payload.size = m->size;
  memcpy(handle->reserved, &payload, sizeof payload);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* base, CUipcMemHandle handle, unsigned int flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (base == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  IpcPayload payload;
  memcpy(&payload, handle.reserved, sizeof payload);
  if (memcmp(payload.mark, kIpcMark, sizeof kIpcMark) != 0) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  auto same = d->space.mappings_if(
      [&](const Mapping& m) { return m.extent.id == payload.extent; });
  if (!same.empty()) {
    return same.front()->origin == Origin::kAlloc ? CUDA_ERROR_INVALID_CONTEXT
                                                  : CUDA_ERROR_ALREADY_MAPPED;
  }
  Mapping m;
  if (!d->books->hold(payload.extent, &m.extent)) return CUDA_ERROR_INVALID_HANDLE;
  if (m.extent.kind != ExtentKind::kPlain || payload.size > m.extent.size) {
    d->books->drop(payload.extent);
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.size = payload.size;
  m.span = m.extent.size;
  m.origin = Origin::kIpc;
  m.context = context;
  m.access.fill(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (!d->space.take_plain(m.span, &m.base)) {
    d->books->drop(payload.extent);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  d->count_extent(m.extent.id);
  *base = d->space.add(m).base;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr base) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Exclusive lock(d->mutex);
  Mapping* m = d->space.find(base);
  if (m == nullptr || m->base != base || m->origin != Origin::kIpc) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  d->unmap(m);
  return CUDA_SUCCESS;
}
