#include "worker/driver_state.hpp"

#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "worker/server.hpp"

namespace cts {
namespace {

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  throw OperationError("RuntimeError", std::string(call) + " answered " + std::to_string(result),
                       result);
}

// Remembers the first failure of several calls that are all made.
class Failures {
 public:
  void add(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS || first_ != CUDA_SUCCESS) return;
    first_ = result;
    call_ = call;
  }
  void raise() const { check(first_, call_); }

 private:
  CUresult first_ = CUDA_SUCCESS;
  const char* call_ = "";
};

// One share from create to close: every entry point that a scenario relies on, once.
void share_once(const DriverTable& cu, int device) {
  const CUmemAllocationProp prop = shareable_memory(device);
  std::size_t size = 0;
  check(cu.cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  CUmemGenericAllocationHandle handle = 0;
  check(cu.cuMemCreate(&handle, size, &prop, 0), "cuMemCreate");
  CUdeviceptr pointer = 0;
  check(cu.cuMemAddressReserve(&pointer, size, 0, 0, 0), "cuMemAddressReserve");
  check(cu.cuMemMap(pointer, size, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(cu.cuMemSetAccess(pointer, size, &access, 1), "cuMemSetAccess");
  std::array<char, 16> bytes{};
  check(cu.cuMemsetD8(pointer, 1, size), "cuMemsetD8");
  check(cu.cuMemcpyHtoD(pointer, bytes.data(), bytes.size()), "cuMemcpyHtoD");
  check(cu.cuMemcpyDtoD(pointer + bytes.size(), pointer, bytes.size()), "cuMemcpyDtoD");
  check(cu.cuMemcpyDtoH(bytes.data(), pointer, bytes.size()), "cuMemcpyDtoH");
  int fd = -1;
  check(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  CUmemGenericAllocationHandle imported = 0;
  const CUresult import = cu.cuMemImportFromShareableHandle(
      &imported, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  ::close(fd);
  check(import, "cuMemImportFromShareableHandle");
  check(cu.cuMemRelease(imported), "cuMemRelease");
  check(cu.cuMemUnmap(pointer, size), "cuMemUnmap");
  check(cu.cuMemAddressFree(pointer, size), "cuMemAddressFree");
  check(cu.cuMemRelease(handle), "cuMemRelease");
}

// A stream, plain memory: what else opens something in the driver when first asked for.
void use_once(const DriverTable& cu) {
  CUstream stream = nullptr;
  check(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(cu.cuStreamDestroy(stream), "cuStreamDestroy");
  CUdeviceptr plain = 0;
  check(cu.cuMemAlloc(&plain, 1), "cuMemAlloc");
  check(cu.cuMemFree(plain), "cuMemFree");
}

}  // namespace

CUmemAllocationProp shareable_memory(int device) {
  CUmemAllocationProp prop;
  std::memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

const DriverTable& DriverState::table(Resolver resolver) {
  auto found = tables_.find(resolver);
  if (found == tables_.end()) {
    found = tables_.emplace(resolver, DriverTable::load(resolver)).first;
  }
  return found->second;
}

CUcontext DriverState::context(int device) {
  CUcontext& context = contexts_[device];
  if (context == nullptr) {
    check(table().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  }
  return context;
}

void DriverState::warm_up(int devices) {
  if (warm_) return;
  const DriverTable& cu = table();
  check(cu.cuInit(0), "cuInit");
  for (int device = devices - 1; device >= 0; --device) {
    check(cu.cuCtxSetCurrent(context(device)), "cuCtxSetCurrent");
    int supported = 0;
    cu.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                            device);
    if (supported == 0) continue;
    share_once(cu, device);
    use_once(cu);
  }
  warm_ = true;
}

void DriverState::reset() {
  slots_.clear();
  if (!warm_) return;
  const DriverTable& cu = table();
  Failures failures;
  failures.add(cu.cuCtxSetCurrent(context(0)), "cuCtxSetCurrent");
  for (CUstream stream : std::exchange(streams_, {})) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cu.cuStreamIsCapturing(stream, &status);
    CUgraph graph = nullptr;
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) cu.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) cu.cuGraphDestroy(graph);
    failures.add(cu.cuStreamDestroy(stream), "cuStreamDestroy");
  }
  for (CUmemoryPool pool : std::exchange(pools_, {})) {
    failures.add(cu.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  }
  for (CUdeviceptr pointer : std::exchange(plain_, {})) {
    failures.add(cu.cuMemFree(pointer), "cuMemFree");
  }
  for (const auto& [pointer, size] : std::exchange(mappings_, {})) {
    failures.add(cu.cuMemUnmap(pointer, size), "cuMemUnmap");
  }
  for (const auto& [pointer, size] : std::exchange(reservations_, {})) {
    failures.add(cu.cuMemAddressFree(pointer, size), "cuMemAddressFree");
  }
  for (const auto& [handle, count] : std::exchange(references_, {})) {
    for (int i = 0; i < count; ++i) failures.add(cu.cuMemRelease(handle), "cuMemRelease");
  }
  failures.raise();
}

std::uint64_t DriverState::value_of(const Json& slot) const {
  if (slot.is_object()) return slot.at("value").get<std::uint64_t>();
  const auto found = slots_.find(slot.get<int>());
  if (found == slots_.end()) throw OperationError("Protocol", "no object " + slot.dump());
  return found->second;
}

void DriverState::released(CUmemGenericAllocationHandle handle) {
  const auto found = references_.find(handle);
  if (found != references_.end() && --found->second == 0) references_.erase(found);
}

void DriverState::unmapped(CUdeviceptr pointer, std::size_t size) {
  std::erase_if(mappings_, [&](const auto& mapping) {
    return mapping.first >= pointer && mapping.first < pointer + size;
  });
}

}  // namespace cts
