// What the scenarios of the driver profile share: the driver inside one worker, and its checks.
//
// A scenario calls entry points by name. `call` takes every answer, `must` goes on only from
// CUDA_SUCCESS. Where the documentation promises "an error", `refused` takes any; a code is checked
// only where the documentation names it. What one real driver answers beyond that is `observed`:
// compared, noted, and never a failure.
#pragma once

#include <catch2_compat.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/scenario.hpp"

namespace cts {

// Values of cuda.h that scenarios speak of.
enum CudaResult : int {
  kCudaSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kOperatingSystem = 304,
  kNotFound = 500,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kUnknown = 999,
};
enum Access : int { kNoAccess = 0, kRead = 1, kReadWrite = 3 };
enum LocationType : int { kOnDevice = 1, kOnHost = 2, kOnHostNuma = 3, kOnHostNumaCurrent = 4 };
enum HandleType : int { kNoHandle = 0, kPosixFd = 1, kWin32 = 2, kWin32Kmt = 4, kFabric = 8 };
enum DeviceAttribute : int {
  kUnifiedAddressing = 41,
  kVirtualMemory = 102,
  kPosixFdHandles = 103,
  kDmaBuf = 124,
  kHostNumaVirtualMemory = 141,
  kHostVirtualMemory = 145,
};
enum PointerAttribute : int {
  kMemoryType = 2,
  kBufferId = 7,
  kDeviceOrdinal = 9,
  kLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeSize = 12,
  kMapped = 13,
  kAllowedHandleTypes = 14,
  kMappingSize = 18,
  kMappingBase = 19,
};

// One call of an entry point and what the driver answered.
struct Called {
  std::string entry_point;
  Json reply;

  int result() const { return reply.at("result"); }
  bool ok() const { return result() == kCudaSuccess; }
  std::string name() const { return reply.at("name"); }  // "CUDA_ERROR_INVALID_VALUE"
  // The output was left as it was.
  bool untouched() const { return reply.at("untouched"); }
  template <class T = std::uint64_t>
  T get(const char* member = "value") const {
    return reply.at(member).get<T>();
  }
};

// Memory that is mapped whole at an address of its own.
struct Piece {
  int handle = 0;
  std::uint64_t pointer = 0;
  std::uint64_t size = 0;
};

// The driver as one worker calls it. Throws NotExercised where a device has no virtual memory
// management or cannot share it as file descriptors.
class Driver {
 public:
  Driver(Scenario& scenario, const std::string& role);

  Worker& worker() { return worker_; }
  // The least size of an allocation of device 0.
  std::uint64_t unit() const { return unit_; }

  // Calls an entry point (conformance/worker/driver_operations.hpp).
  Called call(const std::string& entry_point, Json arguments = Json::object());
  // The same, and ends the scenario as failed unless the driver answers CUDA_SUCCESS.
  Called must(const std::string& entry_point, Json arguments = Json::object());

  int object() { return worker_.new_object(); }
  bool has(DeviceAttribute attribute, int device = 0);

  // Calls that the scenario cannot go on without. `prop` names what differs from shareable memory
  // of device 0.
  int create(std::uint64_t size, Json prop = Json::object());
  std::uint64_t reserve(std::uint64_t size);
  void map(std::uint64_t pointer, std::uint64_t size, int handle);
  void grant(std::uint64_t pointer, std::uint64_t size, Access access = kReadWrite, int device = 0);
  void unmap(std::uint64_t pointer, std::uint64_t size);
  void free_address(std::uint64_t pointer, std::uint64_t size);
  void release(int handle);
  int export_fd(int handle);
  int import_fd(int fd);

  // An allocation of so many units, mapped, with read and write access for its device.
  Piece piece(std::uint64_t units = 1, Json prop = Json::object());
  // Maps a handle at a new address with access for device 0. The handle stays the caller's.
  Piece place(int handle, std::uint64_t size, Access access = kReadWrite);
  // Unmaps, frees the address and, unless told otherwise, releases the handle.
  enum class Handle { release, keep };
  void undo(const Piece& piece, Handle handle = Handle::release);

  void fill(std::uint64_t pointer, std::uint64_t size, unsigned char byte);
  // Whether all of [pointer, pointer + size) can be read and is this byte.
  bool holds(std::uint64_t pointer, std::uint64_t size, unsigned char byte);
  // The access that cuMemGetAccess tells of a device.
  std::uint64_t access(std::uint64_t pointer, int device = 0);

  // Gives a descriptor to another worker; ours stays open. Returns its number there.
  int pass(int fd, Driver& to);
  void close_fd(int fd) { worker_.call("close_fd", {{"fd", fd}}).value(); }

  // Checks.
  void works(std::string_view clauses, const Called& called, const std::string& what = "");
  void refused(std::string_view clauses, const Called& called, const std::string& what = "");
  void refused_with(std::string_view clauses, const Called& called, int code,
                    const std::string& what = "");
  // Notes how the answer compares with that of the H200 in a situation of the measured facts.
  void observed(const std::string& fact, const Called& called, int h200);
  void observed(const std::string& fact, const Json& seen, const Json& h200);

 private:
  Scenario& scenario_;
  Worker& worker_;
  std::uint64_t unit_ = 0;
};

// What cuMemSetAccess grants a location, as an argument: access for a device, unless changed.
inline Json access_for(int device, int flags) {
  return {{"location_id", device}, {"flags", flags}};
}

// A case of bad arguments: what is wrong, and the arguments that differ from the good ones.
struct BadCall {
  std::string what;
  Json change;
  std::string fact = {};  // the measured situation, if any
  int h200 = 0;           // and what the H200 answers there
};

// Makes each bad call: the good arguments with its change. Every one has to be refused.
void refuse_all(Driver& driver, std::string_view clauses, const std::string& entry_point,
                const Json& good, const std::vector<BadCall>& cases);

}  // namespace cts
