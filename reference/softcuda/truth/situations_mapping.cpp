// Mapping, access, and what copies meet: map, access, fault_*, grow.
#include "situations.hpp"

namespace truth {
namespace {

void map_group() {
  start();
  size_t g = unit();
  auto two = create(2 * g), one = create(g);
  CUdeviceptr a = reserve(8 * g);
  tell("offset_G", cuMemMap(a, g, g, two, 0));
  tell("size_small", cuMemMap(a, g, 0, two, 0));
  tell("size_large", cuMemMap(a, 4 * g, 0, two, 0));
  tell("size0", cuMemMap(a, 0, 0, two, 0));
  tell("flags1", cuMemMap(a, 2 * g, 0, two, 1));
  tell("handle0", cuMemMap(a, 2 * g, 0, 0, 0));
  tell("ptr_unaligned_4096", cuMemMap(a + 4096, 2 * g, 0, two, 0));
  tell("ptr_unaligned_64k", cuMemMap(a + 65536, 2 * g, 0, two, 0));
  tell("ptr_unreserved", cuMemMap(a + 64 * g, 2 * g, 0, two, 0));
  tell("ptr_null", cuMemMap(0, 2 * g, 0, two, 0));
  tell("past_end", cuMemMap(a + 7 * g, 2 * g, 0, two, 0));
  tell("ok_base", cuMemMap(a, 2 * g, 0, two, 0));
  tell("same_va_again", cuMemMap(a, 2 * g, 0, two, 0));
  tell("overlap", cuMemMap(a + g, g, 0, one, 0));
  tell("same_handle_second_va", cuMemMap(a + 2 * g, 2 * g, 0, two, 0));
  tell("third", cuMemMap(a + 4 * g, g, 0, one, 0));
  CUmemAccessDesc rw = access_to_device();
  CUresult r;
  tell("access_first", cuMemSetAccess(a, 2 * g, &rw, 1));
  tell("write_first", cuMemsetD8(a, 9, 2 * g));
  read_byte(a + 2 * g, &r);
  tell("read_alias_without_access", r);
  tell("access_alias", cuMemSetAccess(a + 2 * g, 2 * g, &rw, 1));
  note("alias_value", {{"v", read_byte(a + 2 * g + 100)}});
  tell("unmap_partial_front", cuMemUnmap(a, g));
  tell("unmap_partial_back", cuMemUnmap(a + g, g));
  tell("unmap_unaligned", cuMemUnmap(a + 4096, g));
  tell("unmap_size0", cuMemUnmap(a, 0));
  tell("unmap_hole", cuMemUnmap(a + 6 * g, g));
  tell("unmap_unreserved", cuMemUnmap(a + 64 * g, g));
  tell("unmap_span_with_hole", cuMemUnmap(a, 8 * g));
  read_byte(a, &r);
  tell("first_still_ok_after_span_attempt", r);
  tell("unmap_span_three_maps", cuMemUnmap(a, 5 * g));
  tell("unmap_twice", cuMemUnmap(a, 2 * g));
  cuMemRelease(two);
  cuMemRelease(one);
  tell("free", cuMemAddressFree(a, 8 * g));  // the mapping past the end is still there
  CUdeviceptr s = 0;
  cuMemAddressReserve(&s, 2 * g, 65536, 0, 0);
  tell("map_in_64k_reservation", cuMemMap(s, g, 0, create(g), 0), {{"mod", s % g}});
}

Json flags_at(CUdeviceptr at, CUresult* r, const CUmemLocation& location = device_location()) {
  unsigned long long flags = 99;
  *r = cuMemGetAccess(&flags, &location, at);
  return {{"flags", flags}};
}

void tell_flags(const char* id, CUdeviceptr at) {
  CUresult r;
  Json flags = flags_at(at, &r);
  tell(id, r, flags);
}

void access_refusals(CUdeviceptr a, size_t g) {
  CUmemAccessDesc rw = access_to_device();
  auto set = [&](size_t offset, size_t size, const CUmemAccessDesc& desc) {
    return cuMemSetAccess(a + offset, size, &desc, 1);
  };
  tell("count0", cuMemSetAccess(a, 2 * g, &rw, 0));
  tell("desc_null", cuMemSetAccess(a, 2 * g, nullptr, 1));
  tell("size0", set(0, 0, rw));
  tell("partial_front", set(0, g, rw));
  tell_flags("get_after_partial_front_0", a);
  tell_flags("get_after_partial_front_G", a + g);
  tell("partial_back", set(g, g, rw));
  tell("unaligned", set(4096, g, rw));
  tell("past_end", set(0, 4 * g, rw));
  tell("unmapped", set(64 * g, g, rw));
  CUmemAccessDesc desc = rw;
  desc.location.id = 99;
  tell("bad_device", set(0, 2 * g, desc));
  tell("flags_2", set(0, 2 * g, access_to_device(2)));
  tell("flags_8", set(0, 2 * g, access_to_device(8)));
  for (auto [type, id] : {std::pair{CU_MEM_LOCATION_TYPE_INVALID, "loctype0"},
                          {CU_MEM_LOCATION_TYPE_HOST, "loctype_host"},
                          {CU_MEM_LOCATION_TYPE_HOST_NUMA, "loctype_hostnuma"}}) {
    desc = rw;
    desc.location.type = type;
    tell(id, set(0, 2 * g, desc));
  }
}

void access_group() {
  start();
  size_t g = unit();
  Memory m = make(2 * g, kFdType, false);
  CUdeviceptr a = m.base;
  CUmemAccessDesc rw = access_to_device(), ro = access_to_device(1), none = access_to_device(0);
  tell_flags("get_before_set", a);
  access_refusals(a, g);
  tell("rw", cuMemSetAccess(a, 2 * g, &rw, 1));
  tell_flags("get_rw", a);
  tell_flags("get_interior", a + 12345);
  tell("to_read", cuMemSetAccess(a, 2 * g, &ro, 1));
  tell_flags("get_read", a);
  tell("to_none", cuMemSetAccess(a, 2 * g, &none, 1));
  tell_flags("get_none", a);
  tell("back_rw", cuMemSetAccess(a, 2 * g, &rw, 1));
  CUmemAccessDesc both[] = {rw, ro};
  tell("dup_desc", cuMemSetAccess(a, 2 * g, both, 2));
  tell_flags("get_dup", a);
  cuMemSetAccess(a, 2 * g, &rw, 1);
  unsigned long long flags = 0;
  CUmemLocation here = device_location();
  CUresult r;
  tell("get_flags_null", cuMemGetAccess(nullptr, &here, a));
  tell("get_loc_null", cuMemGetAccess(&flags, nullptr, a));
  tell("get_unmapped", cuMemGetAccess(&flags, &here, a + 64 * g));
  CUmemLocation other = here;
  other.id = 99;
  tell("get_bad_device", cuMemGetAccess(&flags, &other, a));
  CUmemLocation host{};
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  Json host_flags = flags_at(a, &r, host);
  tell("get_host", r, host_flags);
  cuMemUnmap(a, 2 * g);
  cuMemMap(a, 2 * g, 0, m.handle, 0);
  tell_flags("get_after_remap", a);
}

void fault_noaccess() {
  start();
  Memory m = make(unit(), kFdType, false);
  CUresult r;
  tell("memset_noaccess", cuMemsetD8(m.base, 1, unit()));
  tell("sync", cuCtxSynchronize());
  read_byte(m.base, &r);
  tell("dtoh_after", r);
}

void fault_noaccess_dtoh() {
  start();
  Memory m = make(unit(), kFdType, false);
  CUresult r;
  unsigned char byte = 3;
  read_byte(m.base, &r);
  tell("dtoh_noaccess", r);
  tell("htod_noaccess", cuMemcpyHtoD(m.base, &byte, 1));
  tell("sync", cuCtxSynchronize());
}

void fault_readonly() {
  start();
  Memory m = make(unit());
  cuMemsetD8(m.base, 1, unit());
  CUmemAccessDesc ro = access_to_device(1);
  CUresult r;
  tell("set_ro", cuMemSetAccess(m.base, unit(), &ro, 1));
  int value = read_byte(m.base, &r);
  tell("dtoh_ro", r, {{"v", value}});
  tell("memset_ro", cuMemsetD8(m.base, 2, unit()));
  tell("sync", cuCtxSynchronize());
  value = read_byte(m.base, &r);
  tell("dtoh_after", r, {{"v", value}});
}

void fault_readonly_htod() {
  start();
  Memory m = make(unit());
  CUmemAccessDesc ro = access_to_device(1);
  cuMemSetAccess(m.base, unit(), &ro, 1);
  unsigned char byte = 0;
  tell("htod_ro", cuMemcpyHtoD(m.base, &byte, 1));
  tell("sync", cuCtxSynchronize());
}

void fault_unmapped() {
  start();
  Memory m = make(unit());
  CUresult r;
  cuMemUnmap(m.base, unit());
  read_byte(m.base, &r);
  tell("dtoh_reserved_unmapped", r);
  tell("memset_reserved_unmapped", cuMemsetD8(m.base, 1, 16));
  tell("sync", cuCtxSynchronize());
  cuMemAddressFree(m.base, unit());
  read_byte(m.base, &r);
  tell("dtoh_freed", r);
  tell("memset_freed", cuMemsetD8(m.base, 1, 16));
}

void fault_overrun() {
  start();
  Memory m = make(unit());
  std::vector<char> host(2 * unit());
  CUresult r;
  tell("dtoh_overrun", cuMemcpyDtoH(host.data(), m.base, 2 * unit()));
  tell("memset_overrun", cuMemsetD8(m.base, 1, 2 * unit()));
  tell("sync", cuCtxSynchronize());
  read_byte(m.base, &r);
  tell("after", r);
}

// Whether a hint right above a fresh reservation is granted, over fifty of them.
void grow_adjacent(size_t g) {
  int granted = 0;
  std::vector<CUdeviceptr> kept;
  for (int i = 0; i < 50; i++) {
    CUdeviceptr a = reserve(g);
    CUdeviceptr b = reserve(g, a + g);
    granted += b == a + g;
    cuMemAddressFree(b, g);
    kept.push_back(a);
  }
  note("adjacent_hint_after_sequential_reservations",
       {{"granted", granted}, {"of", 50}, {"descending", kept[1] < kept[0]}});
  for (CUdeviceptr a : kept) cuMemAddressFree(a, g);
}

void grow_two_mappings(size_t g) {
  CUdeviceptr a = reserve(2 * g);
  auto one = create(g), two = create(g);
  CUmemAccessDesc rw = access_to_device(), ro = access_to_device(1);
  cuMemMap(a, g, 0, one, 0);
  cuMemMap(a + g, g, 0, two, 0);
  tell("access_spanning_two_maps_one_reservation", cuMemSetAccess(a, 2 * g, &rw, 1));
  tell("memset_spanning_two_maps", cuMemsetD8(a, 5, 2 * g));
  tell("access_partial_of_two", cuMemSetAccess(a, g + 65536, &rw, 1));
  CUdeviceptr base = 0;
  size_t size = 0;
  CUresult r = cuMemGetAddressRange(&base, &size, a + 10);
  tell("addrrange_two_maps", r, {{"base_is_first", base == a}, {"size", size}});
  tell("dtod_across", cuMemcpyDtoD(a + g - 4096, a, 8192));
  tell("unmap_both", cuMemUnmap(a, 2 * g));
  cuMemMap(a, g, 0, one, 0);
  cuMemMap(a + g, g, 0, two, 0);
  cuMemSetAccess(a, g, &rw, 1);
  cuMemSetAccess(a + g, g, &ro, 1);
  tell("memset_over_rw_then_ro", cuMemsetD8(a, 5, 2 * g));
  std::vector<char> host(2 * g);
  tell("dtoh_over_rw_then_ro", cuMemcpyDtoH(host.data(), a, 2 * g));
}

void grow_group() {
  start();
  size_t g = unit();
  grow_adjacent(g);
  CUdeviceptr a = reserve(g);
  auto tell_hint = [&](const char* id, CUdeviceptr hint, bool keep = false) {
    CUdeviceptr b = 0;
    CUresult r = cuMemAddressReserve(&b, g, 0, hint, 0);
    tell(id, r, {{"granted", b == hint}});
    if (!keep) cuMemAddressFree(b, g);
  };
  tell_hint("hint_above", a + g);
  tell_hint("hint_below", a - g);
  tell_hint("hint_gap_above", a + 512 * g);
  CUdeviceptr big = reserve(64 * g);
  cuMemAddressFree(big, 64 * g);
  tell_hint("hint_into_freed", big, true);
  tell_hint("hint_next_in_freed", big + g, true);
  grow_two_mappings(g);
}

}  // namespace

std::vector<Group> mapping_groups() {
  return {{"map", map_group},
          {"access", access_group},
          {"fault_noaccess", fault_noaccess},
          {"fault_noaccess_dtoh", fault_noaccess_dtoh},
          {"fault_readonly", fault_readonly},
          {"fault_readonly_htod", fault_readonly_htod},
          {"fault_unmapped", fault_unmapped},
          {"fault_overrun", fault_overrun},
          {"grow", grow_group}};
}

}  // namespace truth
