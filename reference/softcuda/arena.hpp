// Virtual addresses to hand out: regions that the process reserved from the kernel with no access,
// and the free intervals in them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace softcuda {

class Arena {
 public:
  // `granularity` is the unit of all sizes. `measured_holes`: the first two places that fit one
  // unit have something else right above them, as on a measured H200 with a context.
  void configure(size_t granularity, bool measured_holes, bool descending);

  // The first (or last, when descending) fitting place. False when the address space is used up.
  bool take(size_t size, size_t alignment, CUdeviceptr* base);

  // Exactly this place. False when it is not free or not in a region.
  bool take_at(CUdeviceptr base, size_t size);

  void give_back(CUdeviceptr base, size_t size);

  // Whether the range lies in one region, free or not.
  bool contains(CUdeviceptr base, size_t size) const;

 private:
  struct Region {
    CUdeviceptr base;
    size_t size;
    CUdeviceptr mapped_base;
    size_t mapped_size;
    std::map<CUdeviceptr, size_t> free;
  };

  bool add_region(size_t size, size_t alignment);
  bool take_in(Region& region, size_t size, size_t alignment, CUdeviceptr* base) const;
  static void carve(Region& region, std::map<CUdeviceptr, size_t>::iterator interval,
                    CUdeviceptr base, size_t size);
  static bool inside(const Region& region, CUdeviceptr base, size_t size);

  size_t granularity_ = size_t{2} << 20;
  bool measured_holes_ = false;
  bool descending_ = false;
  std::vector<Region> regions_;
};

}  // namespace softcuda
