#include "range.hpp"

#include "driver.hpp"

namespace vmm {

Range::Range(std::vector<MappingHandle> mappings) : mappings_(std::move(mappings)) {
  for (const auto& mapping : mappings_) size_ += mapping->size();
}

Result<Range> Range::map(const ReservationHandle& reservation,
                         const std::vector<AllocationHandle>& allocations,
                         const std::string& kind) {
  const std::size_t count = allocations.size();
  std::vector<MappingHandle> mappings;
  mappings.reserve(count);
  auto doing = [&](const char* verb, std::size_t first) {
    return std::string(verb) + " chunk " + std::to_string(first + 1) + " of " +
           std::to_string(count) + " (" + kind + ")";
  };
  std::size_t offset = 0;
  for (const auto& allocation : allocations) {
    auto mapping = Mapping::map(reservation, offset, allocation);
    if (!mapping) {
      mapping.error().detail = doing("mapping", mappings.size()) + ": " + mapping.error().detail;
      return mapping.error();
    }
    mappings.push_back(std::move(*mapping));
    offset += allocation->size();
  }
  for (std::size_t first = 0, last; first < count; first = last) {
    const Access& access = allocations[first]->access();
    std::size_t size = 0;
    for (last = first; last < count && same_access(allocations[last]->access(), access); ++last)
      size += allocations[last]->size();
    if (access.empty()) continue;
    if (CUresult result = driver().cuMemSetAccess(mappings[first]->pointer(), size, access.data(),
                                                  access.size()))
      return cuda_error("cuMemSetAccess", result, doing("setting the access of", first));
  }
  return Range(std::move(mappings));
}

Range Range::followed_by(const Range& next) const {
  std::vector<MappingHandle> all;
  all.reserve(mappings_.size() + next.mappings_.size());
  all.insert(all.end(), mappings_.begin(), mappings_.end());
  all.insert(all.end(), next.mappings_.begin(), next.mappings_.end());
  return Range(std::move(all));
}

std::vector<AllocationHandle> Range::allocations() const { return covering(size_); }

std::vector<AllocationHandle> Range::covering(std::size_t size) const {
  std::vector<AllocationHandle> found;
  std::size_t covered = 0;
  for (const auto& mapping : mappings_) {
    if (covered >= size) break;
    found.push_back(mapping->allocation());
    covered += mapping->size();
  }
  return found;
}

}  // namespace vmm
