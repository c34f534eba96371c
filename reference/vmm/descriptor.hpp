// What a buffer is to another process: one file descriptor for each allocation, with sizes.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "result.hpp"
#include "unique_fd.hpp"

namespace vmm {

// "posix_fd", "none", "win32", "win32_kmt", "fabric", or the number.
std::string handle_type_name(CUmemAllocationHandleType type);

// A shared owner of one exported fd: it closes with the last holder [RAW-02], or for all of them
// with close(). Safe from any thread.
class IPCAllocationHandle {
 public:
  explicit IPCAllocationHandle(UniqueFd fd)
      : fd_(std::make_shared<const UniqueFd>(std::move(fd))) {}

  // The number, valid until the handle closes; a RuntimeError after that [DESC-09].
  Result<int> fd() const;
  // Keeps the fd open through a call that uses it, whoever closes meanwhile [I6]; null if closed.
  std::shared_ptr<const UniqueFd> lease() const;
  void close() noexcept;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const UniqueFd> fd_;
};

using IPCHandle = std::shared_ptr<IPCAllocationHandle>;

// The descriptor holds its handles and nothing else: it pins the memory through their fds
// [PIN-01] and is independent of the buffer [DESC-08]. Safe from any thread.
class VirtualMemoryIPCBufferDescriptor {
 public:
  // As a peer described it, unchecked: import validates every field [IMP-15].
  VirtualMemoryIPCBufferDescriptor(CUmemAllocationHandleType handle_type, std::uint64_t size,
                                   std::vector<std::uint64_t> sizes,
                                   std::vector<IPCHandle> handles)
      : handle_type_(handle_type),
        size_(size),
        sizes_(std::move(sizes)),
        handles_(std::move(handles)) {}

  // Rebuilds a descriptor from fds that arrived by a transport of the caller's. An integer is
  // duplicated and stays the caller's [RAW-01]; a handle is shared [RAW-02]. `size` is the sum of
  // `sizes` by default [RAW-04]. ValueError, RuntimeError or OSError as RAW-05..10 say, and then
  // nothing is left open [RAW-11]. No driver call [RAW-19].
  static Result<std::shared_ptr<VirtualMemoryIPCBufferDescriptor>> from_fds(
      std::span<const std::variant<BorrowedFd, IPCHandle>> fds,
      std::span<const std::int64_t> sizes,
      CUmemAllocationHandleType handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      std::optional<std::int64_t> size = std::nullopt);

  CUmemAllocationHandleType handle_type() const noexcept { return handle_type_; }
  std::uint64_t size() const noexcept { return size_; }
  const std::vector<std::uint64_t>& sizes() const noexcept { return sizes_; }
  // A RuntimeError when the descriptor is closed; fds also when one of its handles is.
  Result<std::vector<IPCHandle>> handles() const;
  Result<std::vector<int>> fds() const;
  // Lets go of the handles; may be repeated [DESC-10].
  void close() noexcept;

 private:
  const CUmemAllocationHandleType handle_type_;
  const std::uint64_t size_;
  const std::vector<std::uint64_t> sizes_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::vector<IPCHandle> handles_;
};

using DescriptorHandle = std::shared_ptr<VirtualMemoryIPCBufferDescriptor>;

}  // namespace vmm
