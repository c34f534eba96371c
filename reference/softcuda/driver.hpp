// The process's driver: everything that exists after cuInit, behind one lock.
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "address_space.hpp"
#include "books.hpp"
#include "pool.hpp"
#include "profile.hpp"

// cuda.h leaves these types to the driver.
struct CUctx_st {
  int device = 0;
  bool primary = false;
  bool alive = false;
  unsigned int flags = 0;
  unsigned int references = 0;  // of a primary context
  unsigned long long id = 0;
  size_t limits[16] = {};
  std::map<int, unsigned int> peers;  // devices enabled by cuCtxEnablePeerAccess
};

namespace softcuda {

// An allocation handle of this process.
struct Handle {
  CUmemGenericAllocationHandle value = 0;
  Extent extent;
  int references = 0;
  int mappings = 0;
  bool imported = false;
};

// Host memory that CUDA knows of.
struct HostRange {
  size_t size = 0;
  unsigned int flags = 0;
  bool registered = false;  // cuMemHostRegister: the memory is the caller's
  bool managed = false;
  CUcontext context = nullptr;
  uint64_t buffer_id = 0;
};

class Driver {
 public:
  Driver(Profile profile, Variants variants, std::unique_ptr<Books> books);

  const Profile profile;
  const Variants variants;
  const std::unique_ptr<Books> books;

  // Shared for what only reads the state below (copies, queries), exclusive for what changes it.
  std::shared_mutex mutex;
  AddressSpace space;

  // Handles (handles.cpp); mutex held.
  Handle* make_handle(const Extent& extent, bool imported);
  Handle* find_handle(CUmemGenericAllocationHandle value);
  const Extent* find_dead_handle(CUmemGenericAllocationHandle value) const;
  void destroy_if_unused(Handle* handle);

  // References of this process to extents, over the books' one bit; mutex held.
  void count_extent(ExtentId id) { extent_references_[id]++; }
  void drop_extent(ExtentId id);

  // Removes a mapping that the driver or the caller made, whatever its origin; mutex held.
  void unmap(Mapping* mapping);

  // Memory that the driver places itself (cuMemAlloc, pools). On success `out` is mapped and
  // accessible from every device, and from the CPU when it is located there; mutex held.
  CUresult allocate_plain(size_t size, int location_type, int location_id, Origin origin,
                          Mapping** out);

  // Gives a mapping of a held extent an address, and the CPU access that its location implies.
  bool place_plain(Mapping* mapping);

  // Makes host-located memory reachable for the CPU at its address, or no more. What devices see
  // goes through the store and needs no mapping.
  bool set_cpu_access(Mapping& mapping, uint8_t flags);

  std::map<CUmemoryPool, std::unique_ptr<CUmemPoolHandle_st>> pools;
  std::map<std::tuple<int, int, int>, CUmemoryPool> default_pools;  // type, location, id
  std::map<CUdevice, CUmemoryPool> current_pools;

  std::map<uintptr_t, HostRange> host_ranges;
  uint64_t next_host_id = uint64_t{1} << 32;

  std::vector<CUctx_st> primary_contexts;
  std::map<CUcontext, std::unique_ptr<CUctx_st>> contexts;  // made by cuCtxCreate
  unsigned long long next_context_id = 1;

  // `measured`, or under the variant other-errors another code, where only "an error" is promised.
  CUresult code(CUresult measured, CUresult other) const {
    return variants.other_error_codes ? other : measured;
  }

 private:
  CUmemGenericAllocationHandle next_handle_value();

  std::unordered_map<CUmemGenericAllocationHandle, std::unique_ptr<Handle>> handles_;
  std::unordered_map<ExtentId, int> extent_references_;
  uint64_t handle_counter_ = 0;
  std::vector<CUmemGenericAllocationHandle> reusable_values_;
  struct DeadHandle {
    CUmemGenericAllocationHandle value = 0;
    Extent extent;
  };
  std::array<DeadHandle, 64> dead_handles_{};
  size_t dead_handle_next_ = 0;
};

// The driver, or null before cuInit, after a failed one, and in a forked child.
Driver* ready() noexcept;

// Starts the driver; what cuInit answers.
CUresult start() noexcept;

// The calling thread's current context. Null when there is none.
CUcontext current_context() noexcept;

// CUDA_SUCCESS and the current context, or what a call that needs one answers without.
CUresult require_context(CUcontext* context) noexcept;

// Frees what belongs to a context that ends; mutex held.
void free_context_memory(Driver& driver, CUcontext context);

using Exclusive = std::unique_lock<std::shared_mutex>;
using Shared = std::shared_lock<std::shared_mutex>;

}  // namespace softcuda
