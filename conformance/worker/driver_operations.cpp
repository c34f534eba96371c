#include "worker/driver_operations.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

namespace cts {
namespace {

// What an output holds before a call.
constexpr std::uint64_t kUntouched = 0x5e5e5e5e5e5e5e5eULL;
constexpr int kUntouchedFd = 0x5e5e5e5e;

Json answered(const DriverTable& cu, CUresult result) {
  const char* name = nullptr;
  if (cu.cuGetErrorName == nullptr || cu.cuGetErrorName(result, &name) != CUDA_SUCCESS) {
    name = nullptr;
  }
  return {{"result", static_cast<int>(result)},
          {"name", name != nullptr ? name : "code " + std::to_string(result)}};
}

// The entry point, or an error of the request where the driver has none.
template <class Function>
Function present(Function function, const char* name) {
  if (function == nullptr) {
    throw OperationError("Protocol", std::string("the driver has no ") + name);
  }
  return function;
}
#define CTS_CALL(name) present(call.cu.name, #name)

std::uint64_t number(const Json& arguments, const char* name, std::uint64_t otherwise = 0) {
  const auto found = arguments.find(name);
  return found == arguments.end() ? otherwise : found->get<std::uint64_t>();
}

std::size_t size_of(const Json& arguments) { return number(arguments, "size"); }

bool no_out(const Json& arguments) { return arguments.value("no_out", false); }

CUmemLocation location_of(const Json& json) {
  CUmemLocation location{};
  location.type = static_cast<CUmemLocationType>(json.value("location_type", 1));
  location.id = json.value("location_id", 0);
  return location;
}

// Properties by name; absent ones as for shareable memory of device 0. Nothing for null.
std::optional<CUmemAllocationProp> properties_of(const Json& arguments) {
  const Json json = arguments.value("prop", Json::object());
  if (json.is_null()) return std::nullopt;
  static int metadata = 0;
  CUmemAllocationProp prop = shareable_memory(0);
  prop.type = static_cast<CUmemAllocationType>(json.value("type", 1));
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(json.value("handle_types", 1));
  prop.location = location_of(json);
  if (json.value("metadata", false)) prop.win32HandleMetaData = &metadata;
  prop.allocFlags.gpuDirectRDMACapable = json.value("rdma", static_cast<unsigned char>(0));
  prop.allocFlags.compressionType = json.value("compression", static_cast<unsigned char>(0));
  prop.allocFlags.usage = json.value("usage", static_cast<unsigned short>(0));
  prop.allocFlags.reserved[0] = json.value("reserved", static_cast<unsigned char>(0));
  return prop;
}

Json shown(const CUmemAllocationProp& prop) {
  return {{"type", static_cast<int>(prop.type)},
          {"handle_types", static_cast<int>(prop.requestedHandleTypes)},
          {"location_type", static_cast<int>(prop.location.type)},
          {"location_id", prop.location.id}};
}

// The byte at an offset of the pattern of a seed (PROTOCOL.md).
unsigned char pattern(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<unsigned char>(seed + offset + (offset >> 8) * 7);
}

}  // namespace

void DriverOperations::add(Server& server, const std::string& name, Body body) {
  server.add(name, [this, body](Message& request) {
    const Json& arguments = request.body;
    const Call call{state_.table(resolver_of(arguments.value("via", "dlsym"))), arguments};
    if (!arguments.value("thread", false)) return Reply{(this->*body)(call)};
    Json result;
    std::exception_ptr error;
    std::thread thread([&] {
      try {
        result = (this->*body)(call);
      } catch (...) {
        error = std::current_exception();
      }
    });
    thread.join();
    if (error) std::rethrow_exception(error);
    return Reply{result};
  });
}

CUmemGenericAllocationHandle DriverOperations::handle(const Call& call) const {
  return state_.value_of(call.arguments.at("handle"));
}

CUstream DriverOperations::stream(const Call& call) const {
  return reinterpret_cast<CUstream>(state_.value_of(call.arguments.at("stream")));
}

Json DriverOperations::init(const Call& call) {
  return answered(call.cu, CTS_CALL(cuInit)(call.arguments.value("flags", 0U)));
}

Json DriverOperations::version(const Call& call) {
  int value = 0;
  Json reply = answered(call.cu, CTS_CALL(cuDriverGetVersion)(&value));
  reply["value"] = value;
  return reply;
}

Json DriverOperations::device_count(const Call& call) {
  int value = 0;
  Json reply = answered(call.cu, CTS_CALL(cuDeviceGetCount)(&value));
  reply["value"] = value;
  return reply;
}

Json DriverOperations::device_attribute(const Call& call) {
  int value = 0;
  const auto attribute = static_cast<CUdevice_attribute>(call.arguments.at("attribute").get<int>());
  Json reply = answered(call.cu, CTS_CALL(cuDeviceGetAttribute)(&value, attribute,
                                                               call.arguments.value("device", 0)));
  reply["value"] = value;
  return reply;
}

Json DriverOperations::can_access_peer(const Call& call) {
  int value = 0;
  Json reply = answered(call.cu, CTS_CALL(cuDeviceCanAccessPeer)(
                                     &value, call.arguments.at("device").get<int>(),
                                     call.arguments.at("peer").get<int>()));
  reply["value"] = value;
  return reply;
}

Json DriverOperations::set_current(const Call& call) {
  const Json& device = call.arguments.at("device");
  CUcontext context = device.is_null() ? nullptr : state_.context(device.get<int>());
  return answered(call.cu, CTS_CALL(cuCtxSetCurrent)(context));
}

Json DriverOperations::synchronize(const Call& call) {
  return answered(call.cu, CTS_CALL(cuCtxSynchronize)());
}

Json DriverOperations::primary_reset(const Call& call) {
  const int device = call.arguments.value("device", 0);
  const CUresult result = CTS_CALL(cuDevicePrimaryCtxReset)(device);
  if (result == CUDA_SUCCESS) state_.forget_context(device);
  return answered(call.cu, result);
}

Json DriverOperations::memory_info(const Call& call) {
  std::size_t free = 0;
  std::size_t total = 0;
  Json reply = answered(call.cu, CTS_CALL(cuMemGetInfo)(&free, &total));
  reply.update({{"free", free}, {"total", total}});
  return reply;
}

Json DriverOperations::granularity(const Call& call) {
  const auto prop = properties_of(call.arguments);
  std::size_t value = kUntouched;
  const auto option =
      static_cast<CUmemAllocationGranularity_flags>(call.arguments.value("option", 0));
  const CUresult result = CTS_CALL(cuMemGetAllocationGranularity)(
      no_out(call.arguments) ? nullptr : &value, prop ? &*prop : nullptr, option);
  Json reply = answered(call.cu, result);
  reply["untouched"] = value == kUntouched;
  if (result == CUDA_SUCCESS) reply["value"] = value;
  return reply;
}

Json DriverOperations::create(const Call& call) {
  const auto prop = properties_of(call.arguments);
  CUmemGenericAllocationHandle value = kUntouched;
  const CUresult result = CTS_CALL(cuMemCreate)(no_out(call.arguments) ? nullptr : &value,
                                                size_of(call.arguments), prop ? &*prop : nullptr,
                                                number(call.arguments, "flags"));
  Json reply = answered(call.cu, result);
  reply["untouched"] = value == kUntouched;
  if (result == CUDA_SUCCESS) {
    state_.put(call.arguments.at("out"), value);
    state_.referenced(value);
    reply["value"] = value;
  }
  return reply;
}

Json DriverOperations::release(const Call& call) {
  const CUmemGenericAllocationHandle value = handle(call);
  const CUresult result = CTS_CALL(cuMemRelease)(value);
  if (result == CUDA_SUCCESS) state_.released(value);
  return answered(call.cu, result);
}

Json DriverOperations::reserve(const Call& call) {
  CUdeviceptr pointer = kUntouched;
  const std::size_t size = size_of(call.arguments);
  const CUresult result = CTS_CALL(cuMemAddressReserve)(
      no_out(call.arguments) ? nullptr : &pointer, size, number(call.arguments, "alignment"),
      number(call.arguments, "address"), number(call.arguments, "flags"));
  Json reply = answered(call.cu, result);
  reply["untouched"] = pointer == kUntouched;
  if (result == CUDA_SUCCESS) {
    state_.reserved(pointer, size);
    reply["pointer"] = pointer;
  }
  return reply;
}

Json DriverOperations::address_free(const Call& call) {
  const CUdeviceptr pointer = number(call.arguments, "pointer");
  const CUresult result = CTS_CALL(cuMemAddressFree)(pointer, size_of(call.arguments));
  if (result == CUDA_SUCCESS) state_.freed(pointer);
  return answered(call.cu, result);
}

Json DriverOperations::map(const Call& call) {
  const CUdeviceptr pointer = number(call.arguments, "pointer");
  const std::size_t size = size_of(call.arguments);
  const CUresult result =
      CTS_CALL(cuMemMap)(pointer, size, number(call.arguments, "offset"), handle(call),
                         number(call.arguments, "flags"));
  if (result == CUDA_SUCCESS) state_.mapped(pointer, size);
  return answered(call.cu, result);
}

Json DriverOperations::unmap(const Call& call) {
  const CUdeviceptr pointer = number(call.arguments, "pointer");
  const std::size_t size = size_of(call.arguments);
  const CUresult result = CTS_CALL(cuMemUnmap)(pointer, size);
  if (result == CUDA_SUCCESS) state_.unmapped(pointer, size);
  return answered(call.cu, result);
}

Json DriverOperations::set_access(const Call& call) {
  std::vector<CUmemAccessDesc> access;
  const Json& wanted = call.arguments.at("access");
  if (!wanted.is_null()) {
    for (const Json& one : wanted) {
      CUmemAccessDesc description{};
      description.location = location_of(one);
      description.flags = static_cast<CUmemAccess_flags>(one.value("flags", 3));
      access.push_back(description);
    }
  }
  return answered(call.cu, CTS_CALL(cuMemSetAccess)(
                               number(call.arguments, "pointer"), size_of(call.arguments),
                               wanted.is_null() ? nullptr : access.data(),
                               number(call.arguments, "count", access.size())));
}

Json DriverOperations::get_access(const Call& call) {
  unsigned long long flags = kUntouched;
  const Json wanted = call.arguments.value("location", Json::object());
  const CUmemLocation location = location_of(wanted.is_null() ? Json::object() : wanted);
  const CUresult result = CTS_CALL(cuMemGetAccess)(no_out(call.arguments) ? nullptr : &flags,
                                                   wanted.is_null() ? nullptr : &location,
                                                   number(call.arguments, "pointer"));
  Json reply = answered(call.cu, result);
  reply["untouched"] = flags == kUntouched;
  if (result == CUDA_SUCCESS) reply["value"] = flags;
  return reply;
}

Json DriverOperations::export_handle(const Call& call) {
  union {
    int fd;
    unsigned char fabric[64];
  } out{};
  std::memset(&out, 0x5e, sizeof out);
  const auto type =
      static_cast<CUmemAllocationHandleType>(call.arguments.value("handle_type", 1));
  const CUresult result = CTS_CALL(cuMemExportToShareableHandle)(
      no_out(call.arguments) ? nullptr : &out, handle(call), type,
      number(call.arguments, "flags"));
  Json reply = answered(call.cu, result);
  reply["untouched"] = out.fd == kUntouchedFd;
  if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    reply["fd"] = fds_.keep(UniqueFd(out.fd));
  } else if (out.fd != kUntouchedFd) {
    reply["written"] = out.fd;
  }
  return reply;
}

Json DriverOperations::import_handle(const Call& call) {
  CUmemGenericAllocationHandle value = kUntouched;
  const std::int64_t fd = call.arguments.at("fd");
  const auto type =
      static_cast<CUmemAllocationHandleType>(call.arguments.value("handle_type", 1));
  unsigned char fabric[64] = {};
  void* os_handle = type == CU_MEM_HANDLE_TYPE_FABRIC
                        ? static_cast<void*>(fabric)
                        : reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  const CUresult result = CTS_CALL(cuMemImportFromShareableHandle)(
      no_out(call.arguments) ? nullptr : &value, os_handle, type);
  Json reply = answered(call.cu, result);
  reply["untouched"] = value == kUntouched;
  if (result == CUDA_SUCCESS) {
    state_.put(call.arguments.at("out"), value);
    state_.referenced(value);
    reply["value"] = value;
  }
  return reply;
}

Json DriverOperations::properties(const Call& call) {
  CUmemAllocationProp prop;
  std::memset(&prop, 0x5e, sizeof prop);
  const CUresult result = CTS_CALL(cuMemGetAllocationPropertiesFromHandle)(
      no_out(call.arguments) ? nullptr : &prop, handle(call));
  Json reply = answered(call.cu, result);
  if (result == CUDA_SUCCESS) reply["prop"] = shown(prop);
  return reply;
}

Json DriverOperations::retain(const Call& call) {
  CUmemGenericAllocationHandle value = kUntouched;
  const CUresult result = CTS_CALL(cuMemRetainAllocationHandle)(
      no_out(call.arguments) ? nullptr : &value,
      reinterpret_cast<void*>(number(call.arguments, "pointer")));
  Json reply = answered(call.cu, result);
  reply["untouched"] = value == kUntouched;
  if (result == CUDA_SUCCESS) {
    state_.put(call.arguments.at("out"), value);
    state_.referenced(value);
    reply["value"] = value;
  }
  return reply;
}

Json DriverOperations::address_range(const Call& call) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  Json reply = answered(call.cu, CTS_CALL(cuMemGetAddressRange)(
                                     &base, &size, number(call.arguments, "pointer")));
  reply.update({{"base", base}, {"size", size}});
  return reply;
}

Json DriverOperations::range_handle(const Call& call) {
  int fd = kUntouchedFd;
  const CUresult result = CTS_CALL(cuMemGetHandleForAddressRange)(
      no_out(call.arguments) ? nullptr : &fd, number(call.arguments, "pointer"),
      size_of(call.arguments),
      static_cast<CUmemRangeHandleType>(call.arguments.value("handle_type", 1)),
      number(call.arguments, "flags"));
  Json reply = answered(call.cu, result);
  reply["untouched"] = fd == kUntouchedFd;
  if (result == CUDA_SUCCESS) reply["fd"] = fds_.keep(UniqueFd(fd));
  return reply;
}

Json DriverOperations::pointer_attribute(const Call& call) {
  std::uint64_t value = 0;  // attributes of fewer bytes fill the low ones
  const auto attribute =
      static_cast<CUpointer_attribute>(call.arguments.at("attribute").get<int>());
  const CUresult result =
      CTS_CALL(cuPointerGetAttribute)(&value, attribute, number(call.arguments, "pointer"));
  Json reply = answered(call.cu, result);
  if (result == CUDA_SUCCESS) reply["value"] = value;
  return reply;
}

Json DriverOperations::copy_in(const Call& call) {
  std::vector<unsigned char> bytes(size_of(call.arguments),
                                   call.arguments.value("byte", static_cast<unsigned char>(0)));
  if (call.arguments.contains("seed")) {
    const auto seed = number(call.arguments, "seed");
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, i);
  }
  return answered(call.cu, CTS_CALL(cuMemcpyHtoD)(number(call.arguments, "pointer"), bytes.data(),
                                                 bytes.size()));
}

// `byte` is the first byte and `uniform` whether all are like it; with a seed, `mismatch` is the
// offset of the first byte that is not the pattern's, -1 if there is none.
Json DriverOperations::copy_out(const Call& call) {
  std::vector<unsigned char> bytes(size_of(call.arguments));
  const CUresult result = CTS_CALL(cuMemcpyDtoH)(bytes.data(), number(call.arguments, "pointer"),
                                                 bytes.size());
  Json reply = answered(call.cu, result);
  if (result != CUDA_SUCCESS || bytes.empty()) return reply;
  reply["byte"] = bytes.front();
  reply["uniform"] = std::all_of(bytes.begin(), bytes.end(),
                                 [&](unsigned char byte) { return byte == bytes.front(); });
  if (call.arguments.contains("seed")) {
    const auto seed = number(call.arguments, "seed");
    std::int64_t mismatch = -1;
    for (std::size_t i = 0; i < bytes.size() && mismatch < 0; ++i) {
      if (bytes[i] != pattern(seed, i)) mismatch = static_cast<std::int64_t>(i);
    }
    reply["mismatch"] = mismatch;
  }
  return reply;
}

Json DriverOperations::copy_within(const Call& call) {
  return answered(call.cu, CTS_CALL(cuMemcpyDtoD)(number(call.arguments, "to"),
                                                 number(call.arguments, "from"),
                                                 size_of(call.arguments)));
}

Json DriverOperations::set_bytes(const Call& call) {
  const CUresult result = CTS_CALL(cuMemsetD8)(
      number(call.arguments, "pointer"),
      call.arguments.value("byte", static_cast<unsigned char>(0)), size_of(call.arguments));
  // A memset may return before its bytes are there for another process.
  return answered(call.cu, result == CUDA_SUCCESS ? CTS_CALL(cuCtxSynchronize)() : result);
}

Json DriverOperations::allocate(const Call& call) {
  CUdeviceptr pointer = 0;
  const CUresult result = CTS_CALL(cuMemAlloc)(&pointer, size_of(call.arguments));
  Json reply = answered(call.cu, result);
  if (result == CUDA_SUCCESS) {
    state_.allocated(pointer);
    reply["pointer"] = pointer;
  }
  return reply;
}

Json DriverOperations::free(const Call& call) {
  const CUdeviceptr pointer = number(call.arguments, "pointer");
  const CUresult result = CTS_CALL(cuMemFree)(pointer);
  if (result == CUDA_SUCCESS) state_.plain_freed(pointer);
  return answered(call.cu, result);
}

Json DriverOperations::ipc_handle(const Call& call) {
  CUipcMemHandle out{};
  return answered(call.cu, CTS_CALL(cuIpcGetMemHandle)(&out, number(call.arguments, "pointer")));
}

Json DriverOperations::stream_create(const Call& call) {
  CUstream out = nullptr;
  const CUresult result = CTS_CALL(cuStreamCreate)(&out, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) {
    state_.put(call.arguments.at("out"), reinterpret_cast<std::uint64_t>(out));
    state_.stream_made(out);
  }
  return answered(call.cu, result);
}

Json DriverOperations::stream_destroy(const Call& call) {
  CUstream value = stream(call);
  const CUresult result = CTS_CALL(cuStreamDestroy)(value);
  if (result == CUDA_SUCCESS) state_.stream_gone(value);
  return answered(call.cu, result);
}

Json DriverOperations::stream_synchronize(const Call& call) {
  return answered(call.cu, CTS_CALL(cuStreamSynchronize)(stream(call)));
}

Json DriverOperations::begin_capture(const Call& call) {
  const auto mode = static_cast<CUstreamCaptureMode>(call.arguments.value("mode", 0));
  return answered(call.cu, CTS_CALL(cuStreamBeginCapture)(stream(call), mode));
}

Json DriverOperations::is_capturing(const Call& call) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  Json reply = answered(call.cu, CTS_CALL(cuStreamIsCapturing)(stream(call), &status));
  reply["value"] = static_cast<int>(status);
  return reply;
}

Json DriverOperations::end_capture(const Call& call) {
  CUgraph graph = nullptr;
  const CUresult result = CTS_CALL(cuStreamEndCapture)(stream(call), &graph);
  if (graph != nullptr) CTS_CALL(cuGraphDestroy)(graph);
  return answered(call.cu, result);
}

Json DriverOperations::pool_create(const Call& call) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = call.arguments.value("device", 0);
  CUmemoryPool pool = nullptr;
  const CUresult result = CTS_CALL(cuMemPoolCreate)(&pool, &props);
  if (result == CUDA_SUCCESS) {
    state_.put(call.arguments.at("out"), reinterpret_cast<std::uint64_t>(pool));
    state_.pool_made(pool);
  }
  return answered(call.cu, result);
}

Json DriverOperations::pool_export(const Call& call) {
  int fd = kUntouchedFd;
  auto* pool = reinterpret_cast<CUmemoryPool>(state_.value_of(call.arguments.at("pool")));
  const CUresult result = CTS_CALL(cuMemPoolExportToShareableHandle)(
      &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  Json reply = answered(call.cu, result);
  if (result == CUDA_SUCCESS) reply["fd"] = fds_.keep(UniqueFd(fd));
  return reply;
}

// `found` tells whether an address came back, `status` what the driver says of the search.
Json DriverOperations::proc_address(const Call& call) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  const std::string symbol = call.arguments.at("symbol");
  const CUresult result = CTS_CALL(get_proc_address)(
      symbol.c_str(), &address, call.arguments.value("version", kEntryPointVersion),
      number(call.arguments, "flags"), &status);
  Json reply = answered(call.cu, result);
  reply.update({{"found", address != nullptr}, {"status", static_cast<int>(status)}});
  return reply;
}

void DriverOperations::add_to(Server& server) {
  add(server, "cuInit", &DriverOperations::init);
  add(server, "cuDriverGetVersion", &DriverOperations::version);
  add(server, "cuDeviceGetCount", &DriverOperations::device_count);
  add(server, "cuDeviceGetAttribute", &DriverOperations::device_attribute);
  add(server, "cuDeviceCanAccessPeer", &DriverOperations::can_access_peer);
  add(server, "cuCtxSetCurrent", &DriverOperations::set_current);
  add(server, "cuCtxSynchronize", &DriverOperations::synchronize);
  add(server, "cuDevicePrimaryCtxReset", &DriverOperations::primary_reset);
  add(server, "cuMemGetInfo", &DriverOperations::memory_info);
  add(server, "cuMemGetAllocationGranularity", &DriverOperations::granularity);
  add(server, "cuMemCreate", &DriverOperations::create);
  add(server, "cuMemRelease", &DriverOperations::release);
  add(server, "cuMemAddressReserve", &DriverOperations::reserve);
  add(server, "cuMemAddressFree", &DriverOperations::address_free);
  add(server, "cuMemMap", &DriverOperations::map);
  add(server, "cuMemUnmap", &DriverOperations::unmap);
  add(server, "cuMemSetAccess", &DriverOperations::set_access);
  add(server, "cuMemGetAccess", &DriverOperations::get_access);
  add(server, "cuMemExportToShareableHandle", &DriverOperations::export_handle);
  add(server, "cuMemImportFromShareableHandle", &DriverOperations::import_handle);
  add(server, "cuMemGetAllocationPropertiesFromHandle", &DriverOperations::properties);
  add(server, "cuMemRetainAllocationHandle", &DriverOperations::retain);
  add(server, "cuMemGetAddressRange", &DriverOperations::address_range);
  add(server, "cuMemGetHandleForAddressRange", &DriverOperations::range_handle);
  add(server, "cuPointerGetAttribute", &DriverOperations::pointer_attribute);
  add(server, "cuMemcpyHtoD", &DriverOperations::copy_in);
  add(server, "cuMemcpyDtoH", &DriverOperations::copy_out);
  add(server, "cuMemcpyDtoD", &DriverOperations::copy_within);
  add(server, "cuMemsetD8", &DriverOperations::set_bytes);
  add(server, "cuMemAlloc", &DriverOperations::allocate);
  add(server, "cuMemFree", &DriverOperations::free);
  add(server, "cuIpcGetMemHandle", &DriverOperations::ipc_handle);
  add(server, "cuStreamCreate", &DriverOperations::stream_create);
  add(server, "cuStreamDestroy", &DriverOperations::stream_destroy);
  add(server, "cuStreamSynchronize", &DriverOperations::stream_synchronize);
  add(server, "cuStreamBeginCapture", &DriverOperations::begin_capture);
  add(server, "cuStreamIsCapturing", &DriverOperations::is_capturing);
  add(server, "cuStreamEndCapture", &DriverOperations::end_capture);
  add(server, "cuMemPoolCreate", &DriverOperations::pool_create);
  add(server, "cuMemPoolExportToShareableHandle", &DriverOperations::pool_export);
  add(server, "cuGetProcAddress", &DriverOperations::proc_address);
}

}  // namespace cts
