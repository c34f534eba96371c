// The driver entry points, found at run time: nothing links libcuda.
#pragma once

#include <cuda.h>

#include "result.hpp"

namespace vmm {

#define VMM_DRIVER_CALLS(X)                                                                  \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetAttribute)                         \
  X(cuDevicePrimaryCtxRetain) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxSynchronize)     \
  X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemGetAllocationGranularity) X(cuMemCreate)            \
  X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap)       \
  X(cuMemSetAccess) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)        \
  X(cuMemGetAllocationPropertiesFromHandle)

struct Driver {
#define VMM_MEMBER(name) decltype(&::name) name = nullptr;
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
