// A buffer: the first `size` bytes of a range, and whether it was imported.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "descriptor.hpp"
#include "range.hpp"
#include "result.hpp"

namespace vmm {

class VirtualMemoryResource;

// Owns a share of the range until close() or its end. Every operation takes the range once, at its
// start, so that a close from another thread lets it finish on live memory [I5] [EXP-05, CONC-01].
// After close every operation but close is a RuntimeError [ALLOC-08].
class VirtualMemoryBuffer {
 public:
  VirtualMemoryBuffer(std::shared_ptr<const VirtualMemoryResource> resource, Range range,
                      std::size_t size, bool is_mapped)
      : resource_(std::move(resource)),
        range_(std::make_shared<const Range>(std::move(range))),
        size_(size),
        is_mapped_(is_mapped) {}

  // True for an imported buffer and what is grown from one [IMP-01].
  bool is_mapped() const noexcept { return is_mapped_; }
  std::size_t size() const noexcept { return size_; }  // bytes
  const std::shared_ptr<const VirtualMemoryResource>& resource() const noexcept {
    return resource_;
  }
  Result<std::shared_ptr<const Range>> range() const;
  Result<CUdeviceptr> pointer() const;  // 0 for an empty buffer
  void close() noexcept;

  // Exports every allocation that the size needs and returns a new descriptor that owns the fds;
  // nothing is cached [DESC-01]. A RuntimeError before any driver call when the resource does not
  // share [RES-02] or an allocation was imported [PROV-01..03]. When an export fails, the fds made
  // so far close [DESC-11].
  Result<DescriptorHandle> ipc_descriptor() const;

  // Copies from and to host memory, complete on return, in the primary context of the resource's
  // device, which is current only for the call [ALLOC-05]. A ValueError out of bounds.
  Status write(std::size_t offset, const void* data, std::size_t size) const;
  Status read(std::size_t offset, void* data, std::size_t size) const;

 private:
  template <class Copy>
  Status copy(std::size_t offset, std::size_t size, const char* call, Copy&& copy) const;

  const std::shared_ptr<const VirtualMemoryResource> resource_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Range> range_;  // null when closed
  const std::size_t size_;
  const bool is_mapped_;
};

using BufferHandle = std::shared_ptr<VirtualMemoryBuffer>;

}  // namespace vmm
