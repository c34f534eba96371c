// Contexts. Measured facts: no VMM call needs one, copies and cuMemGetInfo do (env.*_no_ctx), and
// VMM objects survive cuDevicePrimaryCtxReset (ctxreset.*).
#include "driver.hpp"

using namespace softcuda;

namespace {

thread_local std::vector<CUcontext> t_stack;

bool device_ok(const Driver& d, CUdevice device) {
  return device >= 0 && device < d.profile.devices;
}

bool context_known(const Driver& d, CUcontext context) {
  for (const CUctx_st& primary : d.primary_contexts) {
    if (context == &primary) return true;
  }
  return d.contexts.count(context) != 0;
}

void end_primary(Driver& d, CUctx_st& primary) {
  free_context_memory(d, &primary);
  primary.alive = false;
  primary.references = 0;
  primary.peers.clear();
}

void begin(Driver& d, CUctx_st& context, unsigned int flags) {
  context.alive = true;
  context.flags = flags;
  context.id = d.next_context_id++;
  context.limits[CU_LIMIT_STACK_SIZE] = 1024;
  context.limits[CU_LIMIT_PRINTF_FIFO_SIZE] = size_t{7} << 20;
  context.limits[CU_LIMIT_MALLOC_HEAP_SIZE] = size_t{8} << 20;
  context.limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  context.limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  context.limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

CUresult create_context(CUcontext* out, unsigned int flags, CUdevice device) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  Exclusive lock(d->mutex);
  auto context = std::make_unique<CUctx_st>();
  context->device = device;
  begin(*d, *context, flags);
  *out = context.get();
  d->contexts[*out] = std::move(context);
  t_stack.push_back(*out);
  return CUDA_SUCCESS;
}

}  // namespace

namespace softcuda {

CUcontext current_context() noexcept { return t_stack.empty() ? nullptr : t_stack.back(); }

CUresult require_context(CUcontext* context) noexcept {
  CUcontext current = current_context();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Shared lock(d->mutex);
  if (!context_known(*d, current) || !current->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = current;
  return CUDA_SUCCESS;
}

void free_context_memory(Driver& driver, CUcontext context) {
  auto owned = driver.space.mappings_if([&](const Mapping& m) { return m.context == context; });
  for (Mapping* mapping : owned) driver.unmap(mapping);
}

}  // namespace softcuda

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  Exclusive lock(d->mutex);
  CUctx_st& primary = d->primary_contexts[device];
  if (!primary.alive) begin(*d, primary, primary.flags);
  primary.references++;
  *out = &primary;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  Exclusive lock(d->mutex);
  CUctx_st& primary = d->primary_contexts[device];
  if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.references == 0) end_primary(*d, primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  Exclusive lock(d->mutex);
  end_primary(*d, d->primary_contexts[device]);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags > CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  d->primary_contexts[device].flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  Shared lock(d->mutex);
  *flags = d->primary_contexts[device].flags;
  *active = d->primary_contexts[device].alive ? 1 : 0;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice device) {
  return create_context(out, flags, device);
}

extern "C" CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int count,
                                   unsigned int flags, CUdevice device) {
  if (count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create_context(out, flags, device);
}

extern "C" CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned int flags,
                                   CUdevice device) {
  return create_context(out, flags, device);
}

CUresult cuCtxDestroy(CUcontext context) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Exclusive lock(d->mutex);
  if (d->contexts.count(context) == 0) return CUDA_ERROR_INVALID_CONTEXT;
  free_context_memory(*d, context);
  if (!t_stack.empty() && t_stack.back() == context) t_stack.pop_back();
  d->contexts.erase(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  if (!context_known(*d, context)) return CUDA_ERROR_INVALID_CONTEXT;
  t_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* out) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (t_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = t_stack.back();
  t_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Shared lock(d->mutex);
  if (context != nullptr && !context_known(*d, context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!t_stack.empty()) t_stack.pop_back();
  if (context != nullptr) t_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = current_context();
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxGetDevice(CUdevice* device) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  *device = context->device;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (context == nullptr) return cuCtxGetDevice(device);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  if (!context_known(*d, context)) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) {
    if (CUresult r = require_context(&context)) return r;
  }
  Shared lock(d->mutex);
  if (!context_known(*d, context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) {
    if (CUresult r = require_context(&context)) return r;
  }
  Shared lock(d->mutex);
  if (!context_known(*d, context)) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxSynchronize() {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  return require_context(&context);
}

extern "C" CUresult cuCtxSynchronize_v2(CUcontext context) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (context == nullptr) return cuCtxSynchronize();
  Shared lock(d->mutex);
  return context_known(*d, context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!device_ok(*d, device) || !device_ok(*d, peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && d->profile.peer_access ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  Exclusive lock(d->mutex);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!context_known(*d, peer) || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!d->profile.peer_access) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  bool added = context->peers.emplace(peer->device, flags).second;
  return added ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  Exclusive lock(d->mutex);
  if (!context_known(*d, peer)) return CUDA_ERROR_INVALID_CONTEXT;
  bool removed = context->peers.erase(peer->device) > 0;
  return removed ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                 CUdevice to) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (value == nullptr || from == to) return CUDA_ERROR_INVALID_VALUE;
  if (!device_ok(*d, from) || !device_ok(*d, to)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && d->profile.peer_access;
  return CUDA_SUCCESS;
}
