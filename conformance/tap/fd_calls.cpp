#include "tap/fd_calls.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace tap {

std::string_view name_of(FdCall call) {
  switch (call) {
    case FdCall::dup: return "dup";
    case FdCall::fcntl: return "fcntl";
    case FdCall::close: return "close";
    case FdCall::sendmsg: return "sendmsg";
    case FdCall::recvmsg: return "recvmsg";
  }
  return "";
}

FdCallsFile* map_fd_calls(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* mapped = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, sizeof(FdCallsFile)) == 0) {
    mapped = ::mmap(nullptr, sizeof(FdCallsFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (mapped == MAP_FAILED) throw std::runtime_error(path + ": " + std::strerror(error));
  auto* file = static_cast<FdCallsFile*>(mapped);
  if (file->magic == 0) file->magic = kFdCallsMagic;
  if (file->magic != kFdCallsMagic) {
    ::munmap(mapped, sizeof(FdCallsFile));
    throw std::runtime_error(path + ": not a file of this version; remove it");
  }
  return file;
}

FdCalls::~FdCalls() { ::munmap(file_, sizeof(FdCallsFile)); }

void FdCalls::fail(FdCall call, std::uint64_t nth, int error_number) {
  clear();
  file_->call = call;
  file_->error_number = error_number;
  file_->remaining.store(static_cast<std::int64_t>(nth), std::memory_order_release);
}

FdCalls::Outcome FdCalls::clear() {
  file_->remaining.store(0, std::memory_order_release);
  return {file_->fired.exchange(0, std::memory_order_acq_rel) > 0,
          file_->closed_again.exchange(0, std::memory_order_acq_rel) > 0};
}

}  // namespace tap
