// Reservations and mappings. Measured facts, beside those of arena.cpp: sizes and hints must be
// multiples of the granularity (reserve.*); a hint is granted right above a live reservation, else
// not (grow.hint_*); freeing needs the exact range with nothing mapped in it; a mapping may run
// past the end of its reservation (map.past_end); unmapping takes whole mappings and any holes.
#include "address_space.hpp"

#include <algorithm>

namespace softcuda {
namespace {

constexpr CUdeviceptr kAddressEnd = CUdeviceptr{1} << 47;

}  // namespace

void AddressSpace::configure(const Profile& profile, const Variants& variants) {
  granularity_ = profile.granularity;
  hints_ = variants.hints;
  bool measured = variants.hints == Variants::Hints::kMeasured && !variants.descending_addresses;
  reserved_.configure(granularity_, measured, variants.descending_addresses);
  plain_.configure(std::max(granularity_, size_t{2} << 20), false, variants.descending_addresses);
}

CUresult AddressSpace::reserve(CUdeviceptr* base, size_t size, size_t alignment,
                               CUdeviceptr hint) {
  if (size == 0 || size % granularity_ != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (hint % granularity_ != 0) return CUDA_ERROR_INVALID_VALUE;
  if (hint >= kAddressEnd || size >= kAddressEnd || alignment >= kAddressEnd) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  bool aligned = alignment == 0 || hint % alignment == 0;
  if (hint != 0 && aligned && hint_allowed(hint) && reserved_.take_at(hint, size)) {
    *base = hint;
  } else if (!reserved_.take(size, alignment, base)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (hints_ == Variants::Hints::kNever && hint != 0 && *base == hint) {
    bool elsewhere = reserved_.take(size, alignment, base);
    reserved_.give_back(hint, size);
    if (!elsewhere) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  reservations_[*base] = {size};
  return CUDA_SUCCESS;
}

bool AddressSpace::hint_allowed(CUdeviceptr hint) const {
  if (hints_ != Variants::Hints::kMeasured) return hints_ == Variants::Hints::kAlways;
  auto next = reservations_.lower_bound(hint);
  if (next == reservations_.begin()) return false;
  auto below = std::prev(next);
  return below->first + below->second.size == hint;
}

CUresult AddressSpace::free_reservation(CUdeviceptr base, size_t size) {
  auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  if (overlaps_mapping(base, size)) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(found);
  reserved_.give_back(base, size);
  return CUDA_SUCCESS;
}

bool AddressSpace::can_map(CUdeviceptr base, size_t size) const {
  CUdeviceptr start = 0;
  size_t length = 0;
  return find_reservation(base, &start, &length) && reserved_.contains(base, size) &&
         !overlaps_mapping(base, size);
}

bool AddressSpace::can_unmap(CUdeviceptr base, size_t size) const {
  CUdeviceptr end = base + size;
  for (CUdeviceptr at = base; at < end;) {
    CUdeviceptr next = at;
    CUdeviceptr start = 0;
    size_t length = 0;
    if (find_reservation(at, &start, &length)) next = start + length;
    auto above = mappings_.upper_bound(at);
    if (above != mappings_.begin()) {
      const Mapping& m = std::prev(above)->second;
      if (m.base + m.span > at) next = std::max(next, m.base + m.span);
    }
    if (next == at) return false;
    at = next;
  }
  auto it = mappings_.upper_bound(base);
  if (it != mappings_.begin()) --it;
  for (; it != mappings_.end() && it->first < end; ++it) {
    const Mapping& m = it->second;
    if (m.base + m.span <= base) continue;
    if (m.origin != Origin::kMap || m.base < base || m.base + m.span > end) return false;
  }
  return true;
}

bool AddressSpace::overlaps_mapping(CUdeviceptr base, size_t size) const {
  auto above = mappings_.lower_bound(base + size);
  if (above == mappings_.begin()) return false;
  const Mapping& last = std::prev(above)->second;
  return last.base + last.span > base;
}

bool AddressSpace::take_plain(size_t span, CUdeviceptr* base) {
  return plain_.take(span, 0, base);
}

void AddressSpace::give_plain_back(const Mapping& mapping) {
  plain_.give_back(mapping.base, mapping.span);
}

Mapping& AddressSpace::add(const Mapping& mapping) {
  Mapping& added = mappings_[mapping.base] = mapping;
  added.buffer_id = next_buffer_id_++;
  return added;
}

Mapping* AddressSpace::find(CUdeviceptr address) {
  auto above = mappings_.upper_bound(address);
  if (above == mappings_.begin()) return nullptr;
  Mapping& m = std::prev(above)->second;
  return address - m.base < m.size ? &m : nullptr;
}

bool AddressSpace::find_reservation(CUdeviceptr address, CUdeviceptr* base, size_t* size) const {
  auto above = reservations_.upper_bound(address);
  if (above == reservations_.begin()) return false;
  const auto& [start, reservation] = *std::prev(above);
  if (address - start >= reservation.size) return false;
  *base = start;
  *size = reservation.size;
  return true;
}

std::vector<Mapping*> AddressSpace::whole_mappings(CUdeviceptr base, size_t size) {
  std::vector<Mapping*> found = mappings_in(base, size);
  if (found.empty() || found.front()->base != base) return {};
  if (found.back()->base + found.back()->span != base + size) return {};
  for (size_t i = 1; i < found.size(); i++) {
    if (found[i - 1]->base + found[i - 1]->span != found[i]->base) found.resize(i);
  }
  return found;
}

std::vector<Mapping*> AddressSpace::mappings_in(CUdeviceptr base, size_t size) {
  std::vector<Mapping*> found;
  for (auto it = mappings_.lower_bound(base);
       it != mappings_.end() && it->first < base + size; ++it) {
    found.push_back(&it->second);
  }
  return found;
}

std::vector<Mapping*> AddressSpace::mappings_if(
    const std::function<bool(const Mapping&)>& wanted) {
  std::vector<Mapping*> found;
  for (auto& [base, mapping] : mappings_) {
    if (wanted(mapping)) found.push_back(&mapping);
  }
  return found;
}

bool AddressSpace::segments(CUdeviceptr base, size_t size, int device, bool write,
                            std::vector<Segment>* out) const {
  uint8_t needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  while (size > 0) {
    auto above = mappings_.upper_bound(base);
    if (above == mappings_.begin()) return false;
    const Mapping& m = std::prev(above)->second;
    uint64_t inside = base - m.base;
    if (inside >= m.size || (m.access[device] & needed) != needed) return false;
    size_t part = std::min<size_t>(size, m.size - inside);
    out->push_back({&m, m.extent.offset + inside, part});
    base += part;
    size -= part;
  }
  return true;
}

bool AddressSpace::is_device_address(CUdeviceptr address) const {
  return reserved_.contains(address, 1) || plain_.contains(address, 1);
}

}  // namespace softcuda
