// Streams: work is complete at once, so a stream is an identity and its capture state.
#pragma once

#include <cuda.h>

namespace softcuda {

// Whether work may be given to a stream. A capturing stream would have to record it; no graph is
// built here, so that is NOT_SUPPORTED, with a line in the log that names the call.
CUresult check_work_stream(CUstream stream, const char* call) noexcept;

}  // namespace softcuda
