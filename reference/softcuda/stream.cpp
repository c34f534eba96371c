// Streams, events and the captures that VMM calls may meet. Measured facts: VMM calls work while a
// stream captures and leave the capture alone; synchronizing the capturing stream is
// STREAM_CAPTURE_UNSUPPORTED and invalidates the capture, which then ends with
// STREAM_CAPTURE_INVALIDATED (capture.*). Work is complete when its call returns.
#include "stream.hpp"

#include <chrono>
#include <mutex>
#include <set>
#include <unordered_map>

#include "driver.hpp"
#include "log.hpp"

struct CUstream_st {
  CUcontext context = nullptr;
  unsigned int flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  unsigned long long capture_id = 0;
  CUgraph graph = nullptr;  // being captured into
};

struct CUevent_st {
  CUcontext context = nullptr;
  unsigned int flags = 0;
  bool recorded = false;
  std::chrono::steady_clock::time_point time;
};

struct CUgraph_st {};

using namespace softcuda;

namespace {

// Streams, events and graphs of the process. Never destroyed: threads may outlive main.
struct Registry {
  std::mutex mutex;
  std::set<CUstream> streams;
  std::set<CUevent> events;
  std::set<CUgraph> graphs;
  unsigned long long next_id = 16;
  CUstream_st legacy, per_thread;
};

Registry& registry() {
  static Registry* made = new Registry;
  return *made;
}

// The stream behind a handle, one of the two special ones included; null for anything else.
// Registry locked.
CUstream_st* find_stream(Registry& r, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return &r.legacy;
  if (handle == CU_STREAM_PER_THREAD) return &r.per_thread;
  return r.streams.count(handle) != 0 ? handle : nullptr;
}

template <typename Action>
CUresult with_stream(CUstream handle, Action action) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  CUstream_st* stream = find_stream(r, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return action(*stream);
}

template <typename Action>
CUresult with_event(CUevent handle, Action action) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.events.count(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  return action(*handle);
}

bool capturing(const CUstream_st& stream) {
  return stream.capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

// What a call answers that a capture does not allow; the capture is lost.
CUresult spoil_capture(CUstream_st& stream) {
  stream.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult settled(CUstream handle) {
  return with_stream(handle, [](CUstream_st& stream) {
    return capturing(stream) ? spoil_capture(stream) : CUDA_SUCCESS;
  });
}

CUresult create_stream(CUstream* out, unsigned int flags, int priority) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto stream = std::make_unique<CUstream_st>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = std::min(0, std::max(-5, priority));
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  stream->id = r.next_id++;
  *out = stream.get();
  r.streams.insert(stream.release());
  return CUDA_SUCCESS;
}

CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode) {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (&stream == &registry().legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (capturing(stream)) return CUDA_ERROR_ILLEGAL_STATE;
    stream.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    stream.capture_id = registry().next_id++;
    return CUDA_SUCCESS;
  });
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
  if (status == nullptr) {
    return ready() == nullptr ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
  }
  return with_stream(handle, [&](CUstream_st& stream) {
    *status = stream.capture;
    if (stream.capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      if (id != nullptr) *id = stream.capture_id;
      if (graph != nullptr) *graph = nullptr;
      if (nodes != nullptr) *nodes = nullptr;
      if (count != nullptr) *count = 0;
    }
    return CUDA_SUCCESS;
  });
}

CUcontext context_of(const CUstream_st& stream) {
  return stream.context != nullptr ? stream.context : current_context();
}

}  // namespace

namespace softcuda {

CUresult check_work_stream(CUstream handle, const char* call) noexcept {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (!capturing(stream)) return CUDA_SUCCESS;
    log_line("%s: not modelled on a capturing stream", call);
    stream.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_NOT_SUPPORTED;
  });
}

}  // namespace softcuda

CUresult cuStreamCreate(CUstream* out, unsigned int flags) { return create_stream(out, flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  return create_stream(out, flags, priority);
}

CUresult cuStreamDestroy(CUstream handle) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.streams.erase(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete handle;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) { return settled(handle); }
CUresult cuStreamQuery(CUstream handle) { return settled(handle); }

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream.flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream.priority;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (&stream == &registry().legacy) *id = 1;
    else if (&stream == &registry().per_thread) *id = 2;
    else *id = stream.id;
    return CUDA_SUCCESS;
  });
}

extern "C" CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = context_of(stream);
    return *context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  });
}

extern "C" CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, context);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return with_stream(handle, [&](CUstream_st& stream) {
    CUcontext context = context_of(stream);
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return capture_info(stream, status, nullptr, nullptr, nullptr, nullptr);
}

extern "C" CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                              cuuint64_t* id, CUgraph* graph,
                                              const CUgraphNode** nodes, size_t* count) {
  return capture_info(stream, status, id, graph, nodes, count);
}

extern "C" CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                              cuuint64_t* id, CUgraph* graph,
                                              const CUgraphNode** nodes,
                                              const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, nodes, count);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return with_stream(handle, [&](CUstream_st& stream) {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!capturing(stream)) return CUDA_ERROR_ILLEGAL_STATE;
    bool lost = stream.capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    stream.capture = CU_STREAM_CAPTURE_STATUS_NONE;
    *graph = lost ? nullptr : new CUgraph_st;
    if (lost) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    registry().graphs.insert(*graph);
    return CUDA_SUCCESS;
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.graphs.erase(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  delete graph;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int) {
  if (CUresult r = with_event(event, [](CUevent_st&) { return CUDA_SUCCESS; })) return r;
  return check_work_stream(handle, "cuStreamWaitEvent");
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  if (CUresult r = check_work_stream(handle, "cuLaunchHostFunc")) return r;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  function(data);
  return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  if (CUresult r = check_work_stream(handle, "cuStreamAddCallback")) return r;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  callback(handle, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult r = require_context(&context)) return r;
  bool ipc_with_timing =
      (flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0;
  if (out == nullptr || flags > 7 || ipc_with_timing) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_unique<CUevent_st>();
  event->context = context;
  event->flags = flags;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  *out = event.get();
  r.events.insert(event.release());
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
  if (CUresult r = check_work_stream(stream, "cuEventRecord")) return r;
  return with_event(handle, [](CUevent_st& event) {
    event.recorded = true;
    event.time = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  return cuEventRecord(event, stream);
}

CUresult cuEventQuery(CUevent handle) {
  return with_event(handle, [](CUevent_st&) { return CUDA_SUCCESS; });
}

CUresult cuEventSynchronize(CUevent handle) {
  return with_event(handle, [](CUevent_st&) { return CUDA_SUCCESS; });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (ready() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.events.count(start) == 0 || r.events.count(end) == 0) return CUDA_ERROR_INVALID_HANDLE;
  bool timed = ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) == 0;
  if (!timed || !start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return CUDA_SUCCESS;
}
