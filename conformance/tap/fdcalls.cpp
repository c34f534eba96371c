// libfdcalls.so: preloaded, it fails the system call on file descriptors that the coordinator asked
// for (fd_calls.hpp). It counts the calls of the program, its libraries and its interpreter; not those
// of the driver and the tap, whose descriptors are their own affair, nor those on the worker's channel.
//
//   VMMCTS_FDCALLS  the file that says what to fail; without it calls are only passed on
//   VMMCTS_FD       the descriptor of the worker's channel
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tap/fd_calls.hpp"

#define FDCALLS_EXPORT extern "C" __attribute__((visibility("default"), noinline))

namespace {

using tap::FdCall;

tap::FdCallsFile* file = nullptr;
int channel = -1;

template <class Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

struct NextCalls {
  int (*dup)(int) = next(dup, "dup");
  int (*fcntl)(int, int, ...) = next(fcntl, "fcntl");
  int (*close)(int) = next(close, "close");
  ssize_t (*sendmsg)(int, const msghdr*, int) = next(sendmsg, "sendmsg");
  ssize_t (*recvmsg)(int, msghdr*, int) = next(recvmsg, "recvmsg");
};

const NextCalls& calls() {
  static const NextCalls found;
  return found;
}

bool is_drivers(const void* caller) {
  Dl_info info{};
  if (::dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* slash = std::strrchr(info.dli_fname, '/');
  return std::strncmp(slash == nullptr ? info.dli_fname : slash + 1, "libcuda.so", 10) == 0;
}

// Whether this call is the one to fail; errno is then set.
bool due(FdCall call, int fd, const void* caller) {
  if (file == nullptr || file->remaining.load(std::memory_order_acquire) <= 0) return false;
  if (file->call != call || fd == channel || is_drivers(caller)) return false;
  if (file->remaining.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  file->fired.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

int failed() {
  errno = file->error_number;
  return -1;
}

// Whether the number's close was failed and it has not been opened since: another thread's file might
// have had it by now.
bool is_gone(int fd) {
  return file != nullptr && file->call == FdCall::close &&
         file->fired.load(std::memory_order_acquire) > 0 && fd == file->gone.load() &&
         calls().fcntl(fd, F_GETFD) == -1;
}

__attribute__((constructor)) void start() {
  const char* path = std::getenv("VMMCTS_FDCALLS");
  if (const char* number = std::getenv("VMMCTS_FD")) channel = std::atoi(number);
  if (path == nullptr) return;
  try {
    file = tap::map_fd_calls(path);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vmmcts fdcalls: %s\n", error.what());
    ::_exit(2);
  }
}

int fcntl_from(const void* caller, int fd, int command, long argument) {
  const bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  if (due(duplicates ? FdCall::dup : FdCall::fcntl, fd, caller)) return failed();
  return calls().fcntl(fd, command, argument);
}

}  // namespace

FDCALLS_EXPORT int dup(int fd) noexcept {
  return due(FdCall::dup, fd, __builtin_return_address(0)) ? failed() : calls().dup(fd);
}

// The third argument is a number or a pointer; either fits a long.
#define FDCALLS_FCNTL(name)                                             \
  FDCALLS_EXPORT int name(int fd, int command, ...) {                   \
    va_list arguments;                                                  \
    va_start(arguments, command);                                       \
    const long argument = va_arg(arguments, long);                      \
    va_end(arguments);                                                  \
    return fcntl_from(__builtin_return_address(0), fd, command, argument); \
  }
FDCALLS_FCNTL(fcntl)
FDCALLS_FCNTL(fcntl64)

FDCALLS_EXPORT int close(int fd) {
  if (!due(FdCall::close, fd, __builtin_return_address(0))) {
    if (is_gone(fd)) file->closed_again.fetch_add(1, std::memory_order_acq_rel);
    return calls().close(fd);
  }
  file->gone.store(fd);
  calls().close(fd);
  return failed();
}

FDCALLS_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (due(FdCall::sendmsg, fd, __builtin_return_address(0))) return failed();
  return calls().sendmsg(fd, message, flags);
}

FDCALLS_EXPORT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (due(FdCall::recvmsg, fd, __builtin_return_address(0))) return failed();
  return calls().recvmsg(fd, message, flags);
}
