#include "descriptor.hpp"

#include <limits>

namespace vmm {

std::string handle_type_name(CUmemAllocationHandleType type) {
  switch (static_cast<int>(type)) {
    case 0: return "none";
    case 1: return "posix_fd";
    case 2: return "win32";
    case 4: return "win32_kmt";
    case 8: return "fabric";
    default: return "handle type " + std::to_string(static_cast<int>(type));
  }
}

Result<int> IPCAllocationHandle::fd() const {
  auto held = lease();
  if (!held) return runtime_error("the IPC allocation handle is closed");
  return held->borrow().number;
}

std::shared_ptr<const UniqueFd> IPCAllocationHandle::lease() const {
  std::lock_guard lock(mutex_);
  return fd_;
}

void IPCAllocationHandle::close() noexcept {
  std::shared_ptr<const UniqueFd> gone;  // closes outside the lock
  std::lock_guard lock(mutex_);
  gone.swap(fd_);
}

Result<DescriptorHandle> VirtualMemoryIPCBufferDescriptor::from_fds(
    std::span<const std::variant<BorrowedFd, IPCHandle>> fds, std::span<const std::int64_t> sizes,
    CUmemAllocationHandleType handle_type, std::optional<std::int64_t> size) {
  if (handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return value_error("handle type '" + handle_type_name(handle_type) +
                       "' cannot be shared between processes; use 'posix_fd'");
  if (fds.size() != sizes.size())
    return value_error(std::to_string(fds.size()) + " file descriptors for " +
                       std::to_string(sizes.size()) + " sizes: the counts differ");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 0)
      return value_error("size " + std::to_string(i + 1) + " of " + std::to_string(sizes.size()) +
                         " is " + std::to_string(sizes[i]) + ", not positive");
    if (sizes[i] > std::numeric_limits<std::int64_t>::max() - sum)
      return value_error("the sum of the sizes overflows");
    sum += sizes[i];
  }
  const std::int64_t total = size.value_or(sum);
  if (total < 0 || (total == 0 && !sizes.empty()))
    return value_error("the size is " + std::to_string(total) + ", not positive");
  if (total > sum)
    return value_error("the size " + std::to_string(total) + " exceeds the sum of the sizes, " +
                       std::to_string(sum));

  std::vector<IPCHandle> handles;
  handles.reserve(fds.size());
  for (const auto& item : fds) {
    if (const IPCHandle* shared = std::get_if<IPCHandle>(&item)) {
      if (auto open = (*shared)->fd(); !open) return open.error();
      handles.push_back(*shared);
    } else {
      auto copy = UniqueFd::duplicate(std::get<BorrowedFd>(item));
      if (!copy) return copy.error();
      handles.push_back(std::make_shared<IPCAllocationHandle>(std::move(*copy)));
    }
  }
  return std::make_shared<VirtualMemoryIPCBufferDescriptor>(
      handle_type, static_cast<std::uint64_t>(total),
      std::vector<std::uint64_t>(sizes.begin(), sizes.end()), std::move(handles));
}

Result<std::vector<IPCHandle>> VirtualMemoryIPCBufferDescriptor::handles() const {
  std::lock_guard lock(mutex_);
  if (closed_) return runtime_error("the IPC buffer descriptor is closed");
  return handles_;
}

Result<std::vector<int>> VirtualMemoryIPCBufferDescriptor::fds() const {
  auto held = handles();
  if (!held) return held.error();
  std::vector<int> numbers;
  numbers.reserve(held->size());
  for (const auto& handle : *held) {
    auto fd = handle->fd();
    if (!fd) return fd.error();
    numbers.push_back(*fd);
  }
  return numbers;
}

void VirtualMemoryIPCBufferDescriptor::close() noexcept {
  std::vector<IPCHandle> gone;  // closes outside the lock
  std::lock_guard lock(mutex_);
  closed_ = true;
  gone.swap(handles_);
}

}  // namespace vmm
