// The driver's entry points, by name, as one of the driver's own resolvers gives them.
#pragma once

#include <cuda.h>

#include <string>

// Each entry point that the driver worker calls, once.
#define CTS_DRIVER_ENTRY_POINTS(X)                                                              \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGetAttribute) \
  X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)             \
  X(cuDevicePrimaryCtxReset) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuMemGetInfo)             \
  X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve)        \
  X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess)             \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)                             \
  X(cuMemGetAllocationPropertiesFromHandle) X(cuMemRetainAllocationHandle)                      \
  X(cuMemGetAddressRange) X(cuMemGetHandleForAddressRange) X(cuPointerGetAttribute)             \
  X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyDtoD) X(cuMemsetD8) X(cuMemAlloc) X(cuMemFree)      \
  X(cuIpcGetMemHandle) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)              \
  X(cuStreamBeginCapture) X(cuStreamIsCapturing) X(cuStreamEndCapture) X(cuGraphDestroy)        \
  X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolExportToShareableHandle)

namespace cts {

// The version that entry points are asked for: the first that has all of them in their present
// form.
constexpr int kEntryPointVersion = 12000;

// How an entry point is looked up.
enum class Resolver { dlsym, proc_address, per_thread };

// Throws OperationError Protocol for an unknown name.
Resolver resolver_of(const std::string& name);

// Every entry point; null where the driver has none of that name.
struct DriverTable {
#define CTS_MEMBER(name) decltype(&::name) name = nullptr;
  CTS_DRIVER_ENTRY_POINTS(CTS_MEMBER)
#undef CTS_MEMBER
  decltype(&::cuGetProcAddress) get_proc_address = nullptr;

  // From the libcuda.so.1 of this process. Throws OperationError RuntimeError when there is none.
  static DriverTable load(Resolver resolver);
};

// The value of a static symbol of the driver library, null if it has none of that name.
void* driver_symbol(const char* name);

}  // namespace cts
