#include "driver.hpp"

namespace cts {

Driver::Driver(Scenario& scenario, const std::string& role)
    : scenario_(scenario), worker_(scenario.worker(role)) {
  if (!has(kVirtualMemory)) throw NotExercised("the device has no virtual memory management");
  if (!has(kPosixFdHandles)) throw NotExercised("the device shares no memory as file descriptors");
  unit_ = must("cuMemGetAllocationGranularity").get();
}

Called Driver::call(const std::string& entry_point, Json arguments) {
  return {entry_point, worker_.call(entry_point, std::move(arguments)).value()};
}

Called Driver::must(const std::string& entry_point, Json arguments) {
  Called called = call(entry_point, std::move(arguments));
  if (called.ok()) return called;
  throw UnexpectedAnswer(entry_point + " answered " + called.name() + " in " + worker_.name());
}

bool Driver::has(DeviceAttribute attribute, int device) {
  const Called called =
      call("cuDeviceGetAttribute", {{"attribute", attribute}, {"device", device}});
  return called.ok() && called.get<int>() == 1;
}

int Driver::create(std::uint64_t size, Json prop) {
  const int out = object();
  must("cuMemCreate", {{"out", out}, {"size", size}, {"prop", std::move(prop)}});
  return out;
}

std::uint64_t Driver::reserve(std::uint64_t size) {
  return must("cuMemAddressReserve", {{"size", size}}).get("pointer");
}

void Driver::map(std::uint64_t pointer, std::uint64_t size, int handle) {
  must("cuMemMap", {{"pointer", pointer}, {"size", size}, {"handle", handle}});
}

void Driver::grant(std::uint64_t pointer, std::uint64_t size, Access access, int device) {
  must("cuMemSetAccess", {{"pointer", pointer},
                          {"size", size},
                          {"access", Json::array({access_for(device, access)})}});
}

void Driver::unmap(std::uint64_t pointer, std::uint64_t size) {
  must("cuMemUnmap", {{"pointer", pointer}, {"size", size}});
}

void Driver::free_address(std::uint64_t pointer, std::uint64_t size) {
  must("cuMemAddressFree", {{"pointer", pointer}, {"size", size}});
}

void Driver::release(int handle) { must("cuMemRelease", {{"handle", handle}}); }

int Driver::export_fd(int handle) {
  return must("cuMemExportToShareableHandle", {{"handle", handle}}).get<int>("fd");
}

int Driver::import_fd(int fd) {
  const int out = object();
  must("cuMemImportFromShareableHandle", {{"out", out}, {"fd", fd}});
  return out;
}

Piece Driver::piece(std::uint64_t units, Json prop) {
  const int device = prop.value("location_id", 0);
  const int handle = create(units * unit_, std::move(prop));
  Piece made = place(handle, units * unit_, kNoAccess);
  grant(made.pointer, made.size, kReadWrite, device);
  return made;
}

Piece Driver::place(int handle, std::uint64_t size, Access access) {
  const std::uint64_t pointer = reserve(size);
  map(pointer, size, handle);
  if (access != kNoAccess) grant(pointer, size, access);
  return {handle, pointer, size};
}

void Driver::undo(const Piece& piece, Handle handle) {
  unmap(piece.pointer, piece.size);
  free_address(piece.pointer, piece.size);
  if (handle == Handle::release) release(piece.handle);
}

void Driver::fill(std::uint64_t pointer, std::uint64_t size, unsigned char byte) {
  must("cuMemsetD8", {{"pointer", pointer}, {"size", size}, {"byte", byte}});
}

bool Driver::holds(std::uint64_t pointer, std::uint64_t size, unsigned char byte) {
  const Called read = call("cuMemcpyDtoH", {{"pointer", pointer}, {"size", size}});
  return read.ok() && read.get<bool>("uniform") && read.get<int>("byte") == byte;
}

std::uint64_t Driver::access(std::uint64_t pointer, int device) {
  return must("cuMemGetAccess", {{"pointer", pointer}, {"location", {{"location_id", device}}}})
      .get();
}

int Driver::pass(int fd, Driver& to) {
  const ReceivedFds received = to.worker().receive_fds(worker_.send_fds({fd}));
  if (received.fds.size() != 1) throw UnexpectedAnswer("the descriptor did not arrive");
  return received.fds[0];
}

void Driver::works(std::string_view clauses, const Called& called, const std::string& what) {
  if (called.ok()) return;
  scenario_.evidence(clauses, "error",
                     called.entry_point + " answered " + called.name() +
                         (what.empty() ? "" : " " + what) + ", expected CUDA_SUCCESS");
}

void Driver::refused(std::string_view clauses, const Called& called, const std::string& what) {
  if (!called.ok()) return;
  scenario_.evidence(clauses, "error",
                     called.entry_point + " succeeded" + (what.empty() ? "" : " " + what) +
                         " where an error is due");
}

void Driver::refused_with(std::string_view clauses, const Called& called, int code,
                          const std::string& what) {
  if (called.result() == code) return;
  scenario_.evidence(clauses, "error",
                     called.entry_point + " answered " + called.name() +
                         (what.empty() ? "" : " " + what) + ", expected error " +
                         std::to_string(code));
}

void Driver::observed(const std::string& fact, const Called& called, int h200) {
  std::string text = fact + ": " + called.name();
  if (called.result() != h200) {
    text += " where the H200 answers " + std::to_string(h200);
  }
  scenario_.note(text);
}

void Driver::observed(const std::string& fact, const Json& seen, const Json& h200) {
  scenario_.note(fact + ": " + seen.dump() +
                 (seen == h200 ? "" : " where the H200 has " + h200.dump()));
}

void refuse_all(Driver& driver, std::string_view clauses, const std::string& entry_point,
                const Json& good, const std::vector<BadCall>& cases) {
  for (const BadCall& bad : cases) {
    Json arguments = good;
    arguments.update(bad.change);
    const Called called = driver.call(entry_point, arguments);
    driver.refused(clauses, called, "with " + bad.what);
    if (!bad.fact.empty()) driver.observed(bad.fact, called, bad.h200);
  }
}

}  // namespace cts
