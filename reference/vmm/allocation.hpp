// Physical memory: a reference to what cuMemCreate or cuMemImportFromShareableHandle gave.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "result.hpp"
#include "unique_fd.hpp"

namespace vmm {

using Access = std::vector<CUmemAccessDesc>;
bool same_access(const Access& a, const Access& b) noexcept;

// Immutable after birth [I1]. Owns one driver reference, which the last holder releases [I3]; the
// driver frees the memory when no mapping, import or open fd is left either.
class Allocation {
 public:
  // cuMemCreate of `size` bytes, a multiple of the granularity.
  static Result<std::shared_ptr<const Allocation>> create(std::size_t size,
                                                          const CUmemAllocationProp& properties,
                                                          Access access);
  // Imports a POSIX fd, which stays the caller's. `size` is the exporter's word for it: the driver
  // checks it when the allocation is mapped [IMP-17].
  static Result<std::shared_ptr<const Allocation>> import(BorrowedFd fd, std::size_t size,
                                                          Access access);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  CUmemGenericAllocationHandle handle() const noexcept { return handle_; }
  std::size_t size() const noexcept { return size_; }
  const Access& access() const noexcept { return access_; }
  // Whether another process made it: set at birth, never inferred [I4] [PROV-08].
  bool imported() const noexcept { return imported_; }

 private:
  struct Key {};  // make_shared needs a public constructor; nobody else can name its argument

 public:
  Allocation(Key, std::size_t size, Access access, bool imported)
      : size_(size), access_(std::move(access)), imported_(imported) {}

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  bool live_ = false;
  const std::size_t size_;
  const Access access_;
  const bool imported_;
};

using AllocationHandle = std::shared_ptr<const Allocation>;

}  // namespace vmm
