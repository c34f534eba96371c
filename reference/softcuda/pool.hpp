// Memory pools: an identity that may be shared, and the allocations made from it.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "books.hpp"

// cuda.h leaves this type to the driver.
struct CUmemPoolHandle_st {
  CUmemPoolProps props{};
  softcuda::Extent anchor;  // the pool's identity in the books, when it can be exported
  bool imported = false;
  bool destroyed = false;  // lives on until its last allocation is freed
  uint64_t release_threshold = 0;
  int reuse[3] = {1, 1, 1};  // follow events, opportunistic, internal dependencies
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t reserved = 0;
  uint64_t reserved_high = 0;
  uint64_t live = 0;
  std::array<uint8_t, softcuda::kMaxDevices> access{};
};

namespace softcuda {

class Driver;
struct Mapping;

// Keeps a pool's figures when an allocation of it goes; mutex held. Frees a destroyed pool with its
// last allocation.
void forget_pool_allocation(Driver& driver, const Mapping& mapping);

}  // namespace softcuda
