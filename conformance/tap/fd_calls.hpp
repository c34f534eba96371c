// Failures of system calls on file descriptors: what the coordinator asks of libfdcalls.so, which is
// preloaded into workers. Both map one small file.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tap {

// The system calls that can be failed; `dup` is also fcntl(F_DUPFD) and fcntl(F_DUPFD_CLOEXEC).
enum class FdCall : std::uint32_t { dup, fcntl, close, sendmsg, recvmsg };
std::string_view name_of(FdCall call);

// Written by the coordinator while `remaining` is 0, armed by setting it to nth; the process whose
// call counts it down to 0 fails that call.
struct FdCallsFile {
  std::uint64_t magic;
  std::atomic<std::int64_t> remaining;
  std::atomic<std::uint64_t> fired;
  std::atomic<std::uint64_t> closed_again;
  std::atomic<std::int32_t> gone;  // the number whose close was failed, once one was
  FdCall call;
  std::int32_t error_number;
};
constexpr std::uint64_t kFdCallsMagic = 0x2'5344'4653'5443;  // "CTSFDS", version 2 above it
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "processes share the file");

// Maps the file, making it when there is none; the mapping holds no descriptor. Throws
// std::runtime_error.
FdCallsFile* map_fd_calls(const std::string& path);

class FdCalls {
 public:
  explicit FdCalls(const std::string& path) : file_(map_fd_calls(path)) {}
  FdCalls(const FdCalls&) = delete;
  ~FdCalls();

  // Fails the nth of these calls from now on with `error_number`, once. A close is carried out all the
  // same: on Linux the number is free whatever close answers.
  void fail(FdCall call, std::uint64_t nth, int error_number);
  struct Outcome {
    bool fired = false;
    bool closed_again = false;  // a number whose close was failed was closed once more, while free
  };
  // Takes that back, and tells what became of it.
  Outcome clear();

 private:
  FdCallsFile* file_;
};

}  // namespace tap
