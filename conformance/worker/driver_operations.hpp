// The operations of the driver worker: entry points of the driver by name.
//
// An operation is named as the entry point and takes its arguments by name; what the driver
// answered is `result` (a CUresult as a number) and `name`, whatever it is. Outputs are there when
// the call succeeded. Objects (`handle`, `stream`, `pool`) are numbers that the coordinator chose
// with `out`, or {"value": n} for a value as it is. Every operation also takes
//   via: "dlsym" (if absent), "proc_address", "per_thread": which resolver finds the entry point
//   thread: true: the call is made by a new thread, which has no current context
//   no_out: true: the output pointer is null
// and a call that failed tells `untouched`: whether its output was left as it was.
#pragma once

#include <functional>
#include <string>

#include "worker/driver_state.hpp"
#include "worker/fd_operations.hpp"
#include "worker/server.hpp"

namespace cts {

class DriverOperations {
 public:
  DriverOperations(DriverState& state, FdOperations& fds) : state_(state), fds_(fds) {}

  // Adds the operations to the server; *this must outlive it.
  void add_to(Server& server);

 private:
  // What an operation is given.
  struct Call {
    const DriverTable& cu;
    const Json& arguments;
  };
  using Body = Json (DriverOperations::*)(const Call&);

  void add(Server& server, const std::string& name, Body body);

  // One method for each entry point, in the order of the driver's documentation.
  Json init(const Call& call);
  Json version(const Call& call);
  Json device_count(const Call& call);
  Json device_attribute(const Call& call);
  Json can_access_peer(const Call& call);
  Json set_current(const Call& call);
  Json synchronize(const Call& call);
  Json primary_reset(const Call& call);
  Json memory_info(const Call& call);
  Json granularity(const Call& call);
  Json create(const Call& call);
  Json release(const Call& call);
  Json reserve(const Call& call);
  Json address_free(const Call& call);
  Json map(const Call& call);
  Json unmap(const Call& call);
  Json set_access(const Call& call);
  Json get_access(const Call& call);
  Json export_handle(const Call& call);
  Json import_handle(const Call& call);
  Json properties(const Call& call);
  Json retain(const Call& call);
  Json address_range(const Call& call);
  Json range_handle(const Call& call);
  Json pointer_attribute(const Call& call);
  Json copy_in(const Call& call);
  Json copy_out(const Call& call);
  Json copy_within(const Call& call);
  Json set_bytes(const Call& call);
  Json allocate(const Call& call);
  Json free(const Call& call);
  Json ipc_handle(const Call& call);
  Json stream_create(const Call& call);
  Json stream_destroy(const Call& call);
  Json stream_synchronize(const Call& call);
  Json begin_capture(const Call& call);
  Json is_capturing(const Call& call);
  Json end_capture(const Call& call);
  Json pool_create(const Call& call);
  Json pool_export(const Call& call);
  Json proc_address(const Call& call);

  CUmemGenericAllocationHandle handle(const Call& call) const;
  CUstream stream(const Call& call) const;

  DriverState& state_;
  FdOperations& fds_;
};

}  // namespace cts
