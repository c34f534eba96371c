// A process's view of device addresses: reservations, and what is mapped where with what access.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "arena.hpp"
#include "books.hpp"
#include "profile.hpp"

namespace softcuda {

struct Handle;

// What a mapping came from.
enum class Origin { kMap, kAlloc, kPoolAlloc, kIpc, kPoolImport };

struct Mapping {
  CUdeviceptr base = 0;
  size_t size = 0;       // as the caller knows it
  size_t span = 0;       // of address space; differs from size for cuMemAlloc and pools
  Origin origin = Origin::kMap;
  Handle* handle = nullptr;  // kMap only
  Extent extent;
  CUcontext context = nullptr;  // kAlloc, kIpc: whose memory it is
  CUmemoryPool pool = nullptr;  // kPoolAlloc, kPoolImport
  std::array<uint8_t, kMaxDevices> access{};  // CUmemAccess_flags per device
  uint8_t host_access = 0;                    // host-located memory only
  uint64_t buffer_id = 0;
};

struct Reservation {
  size_t size;
};

// A part of a copy that lies in one mapping.
struct Segment {
  const Mapping* mapping;
  uint64_t offset;  // in the store
  size_t size;
};

class AddressSpace {
 public:
  void configure(const Profile& profile, const Variants& variants);

  CUresult reserve(CUdeviceptr* base, size_t size, size_t alignment, CUdeviceptr hint);
  CUresult free_reservation(CUdeviceptr base, size_t size);

  // Whether a mapping may be placed: it starts in a reservation and meets no other mapping.
  bool can_map(CUdeviceptr base, size_t size) const;

  // Whether each byte is reserved or mapped, and no mapping is cut by the range.
  bool can_unmap(CUdeviceptr base, size_t size) const;

  // Takes addresses for memory that the driver places itself.
  bool take_plain(size_t span, CUdeviceptr* base);
  void give_plain_back(const Mapping& mapping);

  Mapping& add(const Mapping& mapping);
  void remove(CUdeviceptr base) { mappings_.erase(base); }

  // The mapping or reservation that an address lies in, or null.
  Mapping* find(CUdeviceptr address);
  bool find_reservation(CUdeviceptr address, CUdeviceptr* base, size_t* size) const;

  // The mappings that setting access on a range reaches: if it starts with one and ends with one,
  // those before the first gap (measured: a gap is no error, and what is behind it is left alone).
  // Empty when the range does not start and end so.
  std::vector<Mapping*> whole_mappings(CUdeviceptr base, size_t size);

  // The mappings inside a range.
  std::vector<Mapping*> mappings_in(CUdeviceptr base, size_t size);

  // The mappings that a predicate picks.
  std::vector<Mapping*> mappings_if(const std::function<bool(const Mapping&)>& wanted);

  // Cuts a range into segments that `device` may read, or write. False when a byte is not mapped,
  // or not accessible.
  bool segments(CUdeviceptr base, size_t size, int device, bool write,
                std::vector<Segment>* out) const;

  // Whether an address is one of those that this driver hands out.
  bool is_device_address(CUdeviceptr address) const;

 private:
  bool hint_allowed(CUdeviceptr hint) const;
  bool overlaps_mapping(CUdeviceptr base, size_t size) const;

  size_t granularity_ = 0;
  Variants::Hints hints_ = Variants::Hints::kMeasured;
  Arena reserved_;
  Arena plain_;
  std::map<CUdeviceptr, Reservation> reservations_;
  std::map<CUdeviceptr, Mapping> mappings_;
  uint64_t next_buffer_id_ = 1;
};

}  // namespace softcuda
