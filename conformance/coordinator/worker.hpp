// The coordinator's end of a worker: requests as functions, answers as values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/fd_set.hpp"
#include "coordinator/process.hpp"
#include "protocol/channel.hpp"
#include "tap/call_log.hpp"

namespace cts {

// A worker that can no longer be talked to. Its process group is already dead.
struct WorkerLost : std::runtime_error {
  enum class Outcome { crash, hang, protocol };
  WorkerLost(Outcome what, const std::string& text) : std::runtime_error(text), outcome(what) {}
  Outcome outcome;
};

// An answer of the other kind than the scenario needs to go on.
struct UnexpectedAnswer : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An error as the worker told it.
struct Error {
  std::string kind;     // RuntimeError, ValueError, TypeError, OSError, or another exception's name
  std::string message;
  int cuda = 0;         // CUresult, 0 if none
  int error_number = 0; // errno, 0 if none
  std::string to_string() const;
};

// What an operation gave: a value or an error, and the driver calls made meanwhile by the worker
// and its children (empty without a tap).
template <class T>
class Answer {
 public:
  Answer(std::string operation, T value, std::vector<tap::Call> made)
      : calls(std::move(made)), operation_(std::move(operation)), value_(std::move(value)) {}
  Answer(std::string operation, Error error, std::vector<tap::Call> made)
      : calls(std::move(made)), operation_(std::move(operation)), error_(std::move(error)) {}

  bool ok() const { return value_.has_value(); }
  const T& value() const {
    if (!value_) throw UnexpectedAnswer(operation_ + " failed: " + error_->to_string());
    return *value_;
  }
  const Error& error() const {
    if (value_) throw UnexpectedAnswer(operation_ + " succeeded where an error was due");
    return *error_;
  }
  const std::string& operation() const { return operation_; }

  // The same answer with another value.
  template <class Convert>
  auto map(Convert convert) const -> Answer<decltype(convert(std::declval<const T&>()))> {
    if (value_) return {operation_, convert(*value_), calls};
    return {operation_, *error_, calls};
  }

  std::vector<tap::Call> calls;

 private:
  std::string operation_;
  std::optional<T> value_;
  std::optional<Error> error_;
};

// Objects of a worker, by the number that the protocol calls them.
struct Resource {
  int id = 0;
  bool is_ipc_enabled = false;
};
struct Buffer {
  int id = 0;
  std::uint64_t pointer = 0;
  std::uint64_t size = 0;
  bool is_mapped = false;
};
struct Descriptor {
  int id = 0;
  std::string handle_type = {};
  std::uint64_t size = 0;
  std::vector<std::uint64_t> sizes = {};
  std::vector<int> fds = {};  // numbers in the worker
};
struct Handle {
  int id = 0;
  int fd = -1;  // number in the worker
};
struct ReceivedFds {
  std::vector<int> fds = {};  // numbers in the worker
  bool truncated = false;
};

class Worker {
 public:
  // Takes over a started process and says hello. Throws WorkerLost when it does not answer in time.
  Worker(std::string name, Process process, std::unique_ptr<tap::CallLog> calls,
         std::chrono::milliseconds deadline);
  // A child of another worker that has connected by itself; it shares its parent's call log.
  Worker(std::string name, UniqueFd socket, pid_t pid, tap::CallLog* calls,
         std::chrono::milliseconds deadline);

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  const Json& hello() const { return hello_; }
  bool alive() const { return alive_; }

  // One operation of PROTOCOL.md. Throws WorkerLost.
  Answer<Json> call(const std::string& operation, Json arguments = Json::object(),
                    std::span<const int> fds = {});

  // The two halves of call, for several workers at once: the request, and its answer.
  struct Pending {
    std::string operation;
    std::uint64_t position = 0;
    Deadline deadline = Deadline::never();
  };
  Pending begin(const std::string& operation, Json arguments = Json::object(),
                std::span<const int> fds = {});
  Answer<Json> finish(const Pending& pending);

  Answer<Resource> resource(Json options = Json::object());
  Answer<Buffer> allocate(const Resource& resource, std::uint64_t size);
  Answer<Buffer> modify(const Resource& resource, const Buffer& buffer, std::uint64_t size,
                        std::optional<Json> config = std::nullopt);
  Answer<Buffer> info(const Buffer& buffer);
  Answer<Descriptor> export_descriptor(const Buffer& buffer);
  Answer<Buffer> import(const Resource& resource, const Descriptor& descriptor);
  Answer<Descriptor> descriptor(const Descriptor& descriptor);
  // `more` may hold handle_type and size.
  Answer<Descriptor> from_fds(Json fds, Json sizes, Json more = Json::object());
  Answer<Handle> handle(const Descriptor& descriptor, std::size_t index);
  Answer<Json> close(int object);  // the object's own close
  Answer<Json> drop(int object);   // gives the object up

  // Writes the pattern of `seed` over the buffer, or over [offset, offset + size).
  void fill(const Buffer& buffer, std::uint64_t seed);
  void fill(const Buffer& buffer, std::uint64_t seed, std::uint64_t offset, std::uint64_t size);
  // Copies all of `from` over the beginning of `to`.
  void copy(const Buffer& from, const Buffer& to);
  // Offset of the first byte that is not the pattern's, -1 if there is none.
  std::int64_t mismatch(const Buffer& buffer, std::uint64_t seed);
  std::int64_t mismatch(const Buffer& buffer, std::uint64_t seed, std::uint64_t offset,
                        std::uint64_t size);

  // Descriptors out of the worker and into it; ours are close-on-exec and ours to close.
  std::vector<UniqueFd> send_fds(const std::vector<int>& numbers);
  ReceivedFds receive_fds(const std::vector<UniqueFd>& fds);

  // Lowers RLIMIT_NOFILE so that exactly `slots` numbers are free, and puts it back.
  void leave_free_fds(int slots) { call("nofile_free", {{"slots", slots}}).value(); }
  void restore_fd_limit() { call("nofile_restore").value(); }

  // A number for a new object, for operations without a function here.
  int new_object() { return ++objects_; }

  // Drops every object and descriptor, restores limits.
  void reset();

  // Asks the worker to end in the given way (PROTOCOL.md, exit) and waits for its end.
  ExitStatus exit(const std::string& how);
  // SIGKILL to the worker alone, and waits for its end.
  ExitStatus kill();
  // Closes the connection; the worker then ends by itself.
  void disconnect();
  // Any other signal to the worker alone.
  void signal(int number);
  // Kills the worker and its whole group.
  ExitStatus kill_group();

  // What the process has printed so far, both streams.
  std::string log() const;

  // Descriptors that it has open now.
  FdSet fds() const { return FdSet::of(pid_); }
  // The driver calls of its process and children; null without a tap.
  tap::CallLog* call_log() { return calls_; }
  std::vector<tap::Call> calls_since(std::uint64_t position) const;
  std::uint64_t call_position() const { return calls_ != nullptr ? calls_->position() : 0; }

 private:
  void say_hello();
  [[noreturn]] void lost(const ChannelError& error, const std::string& operation);
  ExitStatus ended();

  std::string name_;
  std::optional<Process> process_;  // none for a child of another worker
  std::unique_ptr<tap::CallLog> own_calls_;
  tap::CallLog* calls_ = nullptr;
  Channel channel_;
  pid_t pid_ = -1;
  std::chrono::milliseconds deadline_;
  Json hello_;
  bool alive_ = true;
  int requests_ = 0;
  int objects_ = 1 << 10;  // below are the numbers that scenarios choose themselves
};

}  // namespace cts
