// One allocation mapped whole into a reservation.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "allocation.hpp"
#include "reservation.hpp"
#include "result.hpp"

namespace vmm {

// Immutable after birth [I1]. Keeps its allocation and its reservation; when the last holder goes
// it unmaps, then lets go of the allocation, then of the reservation [I3].
class Mapping {
 public:
  // Maps `allocation` at `offset` of `reservation`, without access.
  static Result<std::shared_ptr<const Mapping>> map(ReservationHandle reservation,
                                                    std::size_t offset,
                                                    AllocationHandle allocation);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  CUdeviceptr pointer() const noexcept { return pointer_; }
  std::size_t size() const noexcept { return allocation_->size(); }
  const AllocationHandle& allocation() const noexcept { return allocation_; }

 private:
  struct Key {};

 public:
  Mapping(Key, ReservationHandle reservation, std::size_t offset, AllocationHandle allocation)
      : reservation_(std::move(reservation)),
        allocation_(std::move(allocation)),
        pointer_(reservation_->pointer() + offset) {}

 private:
  // Members go from the last to the first: allocation before reservation.
  const ReservationHandle reservation_;
  const AllocationHandle allocation_;
  const CUdeviceptr pointer_;
  bool live_ = false;
};

using MappingHandle = std::shared_ptr<const Mapping>;

}  // namespace vmm
