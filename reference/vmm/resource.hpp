// The resource: where buffers are made, grown and imported.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "buffer.hpp"
#include "descriptor.hpp"
#include "result.hpp"

namespace vmm {

// `handle_type` is the one switch for sharing; there is no other [RES-01].
struct VirtualMemoryResourceOptions {
  CUmemAllocationHandleType handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemLocationType location_type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccess_flags self_access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;  // of the device itself
  CUmemAccess_flags peer_access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;  // of each peer
  std::vector<int> peers = {};  // device ordinals
};

// Immutable; safe from any thread. Buffers keep it. No operation needs a current context, and none
// leaves one current that was not [ALLOC-05].
class VirtualMemoryResource : public std::enable_shared_from_this<VirtualMemoryResource> {
 public:
  // Initializes the driver if need be. A ValueError for options that cannot work [RES-05].
  static Result<std::shared_ptr<const VirtualMemoryResource>> create(
      int device, VirtualMemoryResourceOptions options);

  int device() const noexcept { return device_; }
  const VirtualMemoryResourceOptions& options() const noexcept { return options_; }
  // The query that belongs to handle_type: only POSIX fds have a transport [RES-10].
  bool is_ipc_enabled() const noexcept {
    return options_.handle_type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }

  // A buffer of `size` bytes, rounded up to the granularity [ALLOC-01]. Size 0 makes an empty
  // buffer without a driver call [ALLOC-02].
  Result<BufferHandle> allocate(std::size_t size) const;

  // A new buffer of at least `size` bytes over the memory of `buffer`, which stays as it is, also
  // on failure [GROW-01, GROW-07]: an alias where the range covers the request [GROW-02], else
  // grown in place [GROW-03], else moved to new addresses, with the old ones valid too [GROW-04].
  // `config` governs the new chunk only [RES-08] and keeps the handle type [RES-07]. A TypeError
  // for a buffer of another resource [GROW-10].
  Result<BufferHandle> modify_allocation(
      const VirtualMemoryBuffer& buffer, std::size_t size,
      const VirtualMemoryResourceOptions* config = nullptr) const;

  // Maps what `descriptor` describes, with the access of this resource's options [IMP-03]. The
  // descriptor is neither consumed nor kept [IMP-04]. Every field is checked before any driver
  // call that imports, reserves or maps [IMP-15].
  Result<BufferHandle> from_ipc_descriptor(
      const VirtualMemoryIPCBufferDescriptor& descriptor) const;

 private:
  struct Key {};

 public:
  VirtualMemoryResource(Key, int device, VirtualMemoryResourceOptions options)
      : device_(device), options_(std::move(options)) {}

 private:
  // How a new chunk is made: what a resource's options, or a config, come to in driver terms.
  struct Recipe {
    CUmemAllocationProp properties = {};
    std::size_t granularity = 0;
    Access access;
  };
  static Result<Recipe> recipe(int device, const VirtualMemoryResourceOptions& options);
  Result<AllocationHandle> import_chunk(const UniqueFd& fd, std::size_t size,
                                        const std::string& chunk) const;

  const int device_;
  const VirtualMemoryResourceOptions options_;
  Recipe recipe_;
};

using ResourceHandle = std::shared_ptr<const VirtualMemoryResource>;

// The primary context of `device`, retained at the first copy and kept until the process ends:
// giving it back after each copy would destroy and build it each time.
Result<CUcontext> primary_context(int device);

}  // namespace vmm
