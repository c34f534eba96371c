// A reserved range of device addresses.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "result.hpp"

namespace vmm {

// Immutable after birth [I1]; freed once, with its exact pointer and size [I3] [TEAR-01].
class Reservation {
 public:
  // The driver may answer another address than `hint`; 0 leaves the choice to it.
  static Result<std::shared_ptr<const Reservation>> reserve(std::size_t size, CUdeviceptr hint);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  CUdeviceptr pointer() const noexcept { return pointer_; }
  std::size_t size() const noexcept { return size_; }

 private:
  struct Key {};

 public:
  Reservation(Key, std::size_t size) : size_(size) {}

 private:
  CUdeviceptr pointer_ = 0;
  bool live_ = false;
  const std::size_t size_;
};

using ReservationHandle = std::shared_ptr<const Reservation>;

}  // namespace vmm
