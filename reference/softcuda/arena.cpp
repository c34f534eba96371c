// Where addresses come from. Measured facts: addresses have 47 bits (reserve.ok_align0); 64 TiB can
// be reserved, 128 TiB cannot (reserve.huge_*); places are taken first-fit and ascending, and of 50
// one-unit reservations the first two had no room right above them (grow.*, reserve.adjacent_pair).
// A 2-unit reservation after an 8-unit one starts right behind it (map.map_in_64k_reservation).
#include "arena.hpp"

#include <sys/mman.h>

#include <algorithm>

namespace softcuda {
namespace {

// Enough that a second region is rare, little enough for eight arenas under a sanitizer.
constexpr size_t kRegionBytes = size_t{256} << 30;

CUdeviceptr round_up(CUdeviceptr value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

void Arena::configure(size_t granularity, bool measured_holes, bool descending) {
  granularity_ = granularity;
  measured_holes_ = measured_holes;
  descending_ = descending;
}

bool Arena::take(size_t size, size_t alignment, CUdeviceptr* base) {
  alignment = std::max(alignment, granularity_);
  for (Region& region : regions_) {
    if (take_in(region, size, alignment, base)) return true;
  }
  return add_region(size, alignment) && take_in(regions_.back(), size, alignment, base);
}

bool Arena::take_in(Region& region, size_t size, size_t alignment, CUdeviceptr* base) const {
  auto attempt = [&](std::map<CUdeviceptr, size_t>::iterator interval) {
    auto [start, length] = *interval;
    CUdeviceptr at = round_up(start, alignment);
    if (at - start > length || length - (at - start) < size) return false;
    if (descending_) at += (start + length - at - size) / alignment * alignment;
    carve(region, interval, at, size);
    *base = at;
    return true;
  };
  if (descending_) {
    for (auto it = region.free.end(); it != region.free.begin();) {
      if (attempt(--it)) return true;
    }
    return false;
  }
  for (auto it = region.free.begin(); it != region.free.end(); ++it) {
    if (attempt(it)) return true;
  }
  return false;
}

bool Arena::take_at(CUdeviceptr base, size_t size) {
  for (Region& region : regions_) {
    if (!inside(region, base, size)) continue;
    auto it = region.free.upper_bound(base);
    if (it == region.free.begin()) return false;
    --it;
    if (base - it->first >= it->second || it->second - (base - it->first) < size) return false;
    carve(region, it, base, size);
    return true;
  }
  return false;
}

void Arena::carve(Region& region, std::map<CUdeviceptr, size_t>::iterator interval,
                  CUdeviceptr base, size_t size) {
  auto [start, length] = *interval;
  region.free.erase(interval);
  if (base > start) region.free[start] = base - start;
  if (base + size < start + length) region.free[base + size] = start + length - (base + size);
}

void Arena::give_back(CUdeviceptr base, size_t size) {
  auto region = std::find_if(regions_.begin(), regions_.end(),
                             [&](const Region& r) { return inside(r, base, size); });
  if (region == regions_.end()) return;
  auto next = region->free.lower_bound(base);
  if (next != region->free.end() && next->first == base + size) {
    size += next->second;
    next = region->free.erase(next);
  }
  if (next != region->free.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == base) {
      base = previous->first;
      size += previous->second;
      region->free.erase(previous);
    }
  }
  region->free[base] = size;
  if (region != regions_.begin() && size == region->size) {
    munmap(reinterpret_cast<void*>(region->mapped_base), region->mapped_size);
    regions_.erase(region);
  }
}

bool Arena::contains(CUdeviceptr base, size_t size) const {
  return std::any_of(regions_.begin(), regions_.end(),
                     [&](const Region& r) { return inside(r, base, size); });
}

bool Arena::inside(const Region& region, CUdeviceptr base, size_t size) {
  return base >= region.base && base - region.base < region.size &&
         size <= region.size - (base - region.base);
}

bool Arena::add_region(size_t size, size_t alignment) {
  if (size > (size_t{1} << 47)) return false;
  void* got = MAP_FAILED;
  size_t wanted = 0;
  for (size_t bytes = std::max(kRegionBytes, size + alignment);; bytes /= 2) {
    wanted = std::max(bytes, size + alignment);
    got = mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got != MAP_FAILED || wanted == size + alignment) break;
  }
  if (got == MAP_FAILED) return false;
  auto mapped = reinterpret_cast<CUdeviceptr>(got);
  Region region{round_up(mapped, alignment), 0, mapped, wanted, {}};
  region.size = (wanted - (region.base - mapped)) / granularity_ * granularity_;
  CUdeviceptr start = region.base;
  if (measured_holes_ && regions_.empty() && region.size > 16 * granularity_) {
    region.free[start + granularity_] = granularity_;
    region.free[start + 3 * granularity_] = granularity_;
    start += 5 * granularity_;
  }
  region.free[start] = region.base + region.size - start;
  regions_.push_back(std::move(region));
  return true;
}

}  // namespace softcuda
