#include "buffer.hpp"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include "driver.hpp"
#include "resource.hpp"

namespace vmm {
namespace {

// Says why an export failed, if the reason is that no fd number is free: asked of the system
// itself, before anything closes, and never guessed from the driver's status [EXP-06].
void explain_fd_limit(Error& error) {
  int probe = ::eventfd(0, EFD_CLOEXEC);
  if (probe >= 0) {
    ::close(probe);
  } else if (errno == EMFILE) {
    error.system_errno = EMFILE;
    struct rlimit limit = {};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    error.detail += " (the file descriptor limit of this process was reached: RLIMIT_NOFILE is " +
                    std::to_string(limit.rlim_cur) + ")";
  }
}

}  // namespace

Result<std::shared_ptr<const Range>> VirtualMemoryBuffer::range() const {
  std::lock_guard lock(mutex_);
  if (!range_) return runtime_error("the buffer is closed");
  return range_;
}

Result<CUdeviceptr> VirtualMemoryBuffer::pointer() const {
  auto held = range();
  if (!held) return held.error();
  return (*held)->pointer();
}

void VirtualMemoryBuffer::close() noexcept {
  std::shared_ptr<const Range> gone;  // teardown runs outside the lock
  std::lock_guard lock(mutex_);
  gone.swap(range_);
}

Result<DescriptorHandle> VirtualMemoryBuffer::ipc_descriptor() const {
  auto held = range();
  if (!held) return held.error();
  if (!resource_->is_ipc_enabled())
    return runtime_error("the buffer cannot be shared: its resource has handle_type '" +
                         handle_type_name(resource_->options().handle_type) +
                         "'; make it with handle_type 'posix_fd'");
  const auto allocations = (*held)->covering(size_);
  for (const auto& allocation : allocations)
    if (allocation->imported())
      return runtime_error(
          "the buffer contains memory imported from another process, which cannot be exported "
          "again; forward the descriptor it was imported from, or copy into a buffer you own");

  std::vector<IPCHandle> handles;
  std::vector<std::uint64_t> sizes;
  handles.reserve(allocations.size());
  sizes.reserve(allocations.size());
  for (const auto& allocation : allocations) {
    int fd = -1;
    if (CUresult result = driver().cuMemExportToShareableHandle(
            &fd, allocation->handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) {
      Error error = cuda_error("cuMemExportToShareableHandle", result,
                               "exporting allocation " + std::to_string(handles.size() + 1) +
                                   " of " + std::to_string(allocations.size()) + " as posix_fd");
      explain_fd_limit(error);
      return error;
    }
    UniqueFd owner(fd);  // the driver's own fd, no duplicate of it [DESC-15]
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {  // not every driver's fd is [DESC-07]
      const int reason = errno;
      return system_error("fcntl(F_SETFD)", reason,
                          "making file descriptor " + std::to_string(fd) + " close-on-exec");
    }
    handles.push_back(std::make_shared<IPCAllocationHandle>(std::move(owner)));
    sizes.push_back(allocation->size());
  }
  return std::make_shared<VirtualMemoryIPCBufferDescriptor>(
      resource_->options().handle_type, size_, std::move(sizes), std::move(handles));
}

template <class Copy>
Status VirtualMemoryBuffer::copy(std::size_t offset, std::size_t size, const char* call,
                                 Copy&& copy_in_context) const {
  auto held = range();
  if (!held) return held.error();
  if (offset > size_ || size > size_ - offset)
    return value_error("bytes [" + std::to_string(offset) + ", +" + std::to_string(size) +
                       ") are outside the buffer of " + std::to_string(size_) + " bytes");
  if (size == 0) return Done{};
  auto context = primary_context(resource_->device());
  if (!context) return context.error();
  const std::string doing = "copying " + std::to_string(size) + " bytes";
  if (CUresult result = driver().cuCtxPushCurrent(*context))
    return cuda_error("cuCtxPushCurrent", result, doing);
  Status status = Done{};
  if (CUresult result = copy_in_context((*held)->pointer() + offset))
    status = cuda_error(call, result, doing);
  else if (CUresult waited = driver().cuCtxSynchronize())
    status = cuda_error("cuCtxSynchronize", waited, doing);
  CUcontext popped = nullptr;
  if (CUresult result = driver().cuCtxPopCurrent(&popped))
    report_cleanup_failure("cuCtxPopCurrent", result, 0);
  return status;
}

Status VirtualMemoryBuffer::write(std::size_t offset, const void* data, std::size_t size) const {
  return copy(offset, size, "cuMemcpyHtoD",
              [&](CUdeviceptr at) { return driver().cuMemcpyHtoD(at, data, size); });
}

Status VirtualMemoryBuffer::read(std::size_t offset, void* data, std::size_t size) const {
  return copy(offset, size, "cuMemcpyDtoH",
              [&](CUdeviceptr at) { return driver().cuMemcpyDtoH(data, at, size); });
}

}  // namespace vmm
