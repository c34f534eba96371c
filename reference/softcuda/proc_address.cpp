// cuGetProcAddress: every entry point of CUDA 13.0 by name and version. What is not modelled is
// found too, and answers NOT_SUPPORTED when called. Measured on the H200: an unknown name and a
// version that is too old are CUDA_SUCCESS with a null function and the status that says why.
#include <cuda.h>

#include <cstring>

#include "driver.hpp"
#include "log.hpp"

// The symbols, without their types: some are modelled elsewhere, the others in unmodelled.cpp.
#define ENTRY(name, version, symbol) extern "C" void softcuda_entry_##symbol() __asm__(#symbol);
#include "entry_points.inc"
#undef ENTRY

using namespace softcuda;

namespace {

struct Entry {
  const char* name;
  int version;
  void (*function)();
};

constexpr Entry kEntries[] = {
#define ENTRY(name, version, symbol) {#name, version, softcuda_entry_##symbol},
#include "entry_points.inc"
#undef ENTRY
};

CUresult get(const char* name, void** function, int version, cuuint64_t flags,
             CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kKnownFlags =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (name == nullptr || function == nullptr || (flags & ~kKnownFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool known = false;
  const Entry* best = nullptr;
  for (const Entry& entry : kEntries) {
    if (strcmp(entry.name, name) != 0) continue;
    known = true;
    if (entry.version <= version && (best == nullptr || entry.version > best->version)) {
      best = &entry;
    }
  }
  *function = best == nullptr ? nullptr : reinterpret_cast<void*>(best->function);
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (best == nullptr) log_line("cuGetProcAddress: no '%s' for version %d", name, version);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" CUresult cuGetProcAddress_v2(const char* name, void** function, int version,
                                        cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return get(name, function, version, flags, status);
}

#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char* name, void** function, int version,
                                     cuuint64_t flags) {
  return get(name, function, version, flags, nullptr);
}
