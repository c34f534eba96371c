// What is behind a buffer: mappings that follow one another without a gap.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "mapping.hpp"

namespace vmm {

// Ordered, contiguous, immutable [I1]. Ranges share mappings, so an alias costs no driver call, and
// memory lives as long as any range that has it [GROW-08].
class Range {
 public:
  Range() = default;

  // Maps `allocations` one behind the other, from the start of `reservation`, which has exactly the
  // sum of their sizes, and gives each the access that it was born with [GROW-06]: one call for
  // each run of equal access. On failure everything done is undone. `kind` goes into messages.
  static Result<Range> map(const ReservationHandle& reservation,
                           const std::vector<AllocationHandle>& allocations,
                           const std::string& kind);
  // This range and, right behind it, `next`.
  Range followed_by(const Range& next) const;

  const std::vector<MappingHandle>& mappings() const noexcept { return mappings_; }
  CUdeviceptr pointer() const noexcept { return mappings_.empty() ? 0 : mappings_[0]->pointer(); }
  std::size_t size() const noexcept { return size_; }
  std::vector<AllocationHandle> allocations() const;
  // The allocations that the first `size` bytes need, in address order.
  std::vector<AllocationHandle> covering(std::size_t size) const;

 private:
  explicit Range(std::vector<MappingHandle> mappings);

  std::vector<MappingHandle> mappings_;
  std::size_t size_ = 0;
};

}  // namespace vmm
