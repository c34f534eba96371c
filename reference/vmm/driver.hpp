// The driver entry points, found at run time: nothing links libcuda.
#pragma once

#include <cuda.h>

#include "result.hpp"

namespace vmm {

// Each call with the API version whose signature we call: the driver may have later ones.
#define VMM_DRIVER_CALLS(X)                                                                      \
  X(cuInit, 2000) X(cuGetErrorName, 6000) X(cuDeviceGet, 2000) X(cuDeviceGetAttribute, 2000)     \
  X(cuDevicePrimaryCtxRetain, 7000) X(cuCtxPushCurrent, 4000) X(cuCtxPopCurrent, 4000)           \
  X(cuCtxSynchronize, 2000) X(cuMemcpyHtoD, 3020) X(cuMemcpyDtoH, 3020)                          \
  X(cuMemGetAllocationGranularity, 10020) X(cuMemCreate, 10020) X(cuMemRelease, 10020)           \
  X(cuMemAddressReserve, 10020) X(cuMemAddressFree, 10020) X(cuMemMap, 10020)                    \
  X(cuMemUnmap, 10020) X(cuMemSetAccess, 10020) X(cuMemExportToShareableHandle, 10020)           \
  X(cuMemImportFromShareableHandle, 10020) X(cuMemGetAllocationPropertiesFromHandle, 10020)

struct Driver {
#define VMM_MEMBER(name, version) decltype(&::name) name = nullptr;
  VMM_DRIVER_CALLS(VMM_MEMBER)
#undef VMM_MEMBER
};

// Loads libcuda.so.1 and calls cuInit, once for the process. A failure leaves nothing behind and
// the next call tries again. The library stays loaded until the process ends.
Status load_driver();

// The loaded table. Whoever holds an object of this library has loaded it.
const Driver& driver() noexcept;

// Replaces the table for a test; returns the one before.
const Driver* exchange_driver(const Driver* table) noexcept;

// True in a child forked after load_driver: CUDA answers CUDA_ERROR_NOT_INITIALIZED there, and
// deleters leave the parent's objects alone [MP-17].
bool forked_after_load() noexcept;

// "CUDA_ERROR_OUT_OF_MEMORY" and so on; never null.
const char* result_name(CUresult result) noexcept;

}  // namespace vmm
