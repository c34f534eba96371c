// Ownership of a file descriptor, visible in the type.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "result.hpp"

namespace vmm {

// A file descriptor that somebody else owns and keeps open for the time of the call.
struct BorrowedFd {
  int number = -1;
};

// Owns one file descriptor and closes it once, at the latest when it goes.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int owned) noexcept : number_(owned) {}
  UniqueFd(UniqueFd&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~UniqueFd() {
    // Linux frees the number even when close is interrupted; a retry could close a stranger's.
    if (number_ >= 0 && ::close(number_) != 0 && errno != EINTR)
      report_cleanup_failure("close", CUDA_SUCCESS, errno);
  }

  BorrowedFd borrow() const noexcept { return {number_}; }

  // A close-on-exec duplicate [RAW-18]; an OSError when `fd` is not open or no number is free.
  static Result<UniqueFd> duplicate(BorrowedFd fd) {
    int copy;
    do copy = ::fcntl(fd.number, F_DUPFD_CLOEXEC, 3);
    while (copy < 0 && errno == EINTR);
    if (copy < 0) {
      int reason = errno;
      return system_error("fcntl(F_DUPFD_CLOEXEC)", reason,
                          "file descriptor " + std::to_string(fd.number) +
                              " cannot be duplicated");
    }
    return UniqueFd(copy);
  }

 private:
  int number_ = -1;
};

}  // namespace vmm
