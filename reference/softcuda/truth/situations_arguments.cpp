// Arguments, good and bad: granularity, create, reserve.
#include "situations.hpp"

namespace truth {
namespace {

void granularity() {
  start();
  size_t got = 0;
  auto query = [&](CUmemAllocationProp prop, int option = CU_MEM_ALLOC_GRANULARITY_MINIMUM) {
    got = 0;
    return cuMemGetAllocationGranularity(&got, &prop,
                                         static_cast<CUmemAllocationGranularity_flags>(option));
  };
  auto tell_size = [&](const std::string& id, CUresult r) { tell(id, r, {{"g", got}}); };
  CUmemAllocationProp prop = properties();
  tell_size("min", query(prop));
  tell_size("rec", query(prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  tell_size("min_no_handle", query(properties(0)));
  tell("prop_null",
       cuMemGetAllocationGranularity(&got, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  tell("out_null",
       cuMemGetAllocationGranularity(nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  tell("bad_option", query(prop, 7));
  CUmemAllocationProp other = prop;
  other.location.id = 99;
  tell("bad_device", query(other));
  other.location.id = -1;
  tell("neg_device", query(other));
  for (int type : {0, 9}) {
    other = prop;
    other.type = static_cast<CUmemAllocationType>(type);
    tell(type == 0 ? "type_invalid0" : "type_9", query(other));
  }
  for (int location : {0, 2, 3, 4, 9}) {
    for (bool with_fd : {true, false}) {
      other = properties(with_fd ? 1 : 0);
      other.location.type = static_cast<CUmemLocationType>(location);
      CUresult r = query(other);
      tell_size("loctype_" + std::to_string(location) + (with_fd ? "_fd" : "_none"), r);
    }
  }
  for (int types : {2, 4, 8, 9, 16, 3}) {
    CUresult r = query(properties(types));
    tell_size("handletype_" + std::to_string(types), r);
  }
}

CUmemGenericAllocationHandle g_handle;

// Creates, and releases again what was created.
CUresult try_create(const CUmemAllocationProp& prop, size_t size = unit()) {
  CUresult r = cuMemCreate(&g_handle, size, &prop, 0);
  if (r == CUDA_SUCCESS) cuMemRelease(g_handle);
  return r;
}

void create_locations() {
  for (int location : {0, 2, 3, 4, 9}) {
    for (int types : {0, 1}) {
      CUmemAllocationProp prop = properties(types);
      prop.location.type = static_cast<CUmemLocationType>(location);
      CUmemGenericAllocationHandle handle = 0;
      CUresult r = cuMemCreate(&handle, unit(), &prop, 0);
      tell("loctype_" + std::to_string(location) + "_ht_" + std::to_string(types), r);
      if (r != CUDA_SUCCESS) continue;
      if (location == CU_MEM_LOCATION_TYPE_HOST_NUMA && types == 1) {
        int fd = -1;
        tell("hostnuma_export", cuMemExportToShareableHandle(&fd, handle, kFdType, 0));
      }
      cuMemRelease(handle);
    }
  }
}

void create_group() {
  start();
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle one = 0, two = 0;
  tell("ok", cuMemCreate(&one, unit(), &prop, 0));
  tell("ok2", cuMemCreate(&two, 3 * unit(), &prop, 0));
  note("handles_distinct", {{"value", one != two}});
  cuMemRelease(one);
  cuMemRelease(two);
  tell("size0", try_create(prop, 0));
  tell("size_unaligned_1", try_create(prop, 1));
  tell("size_unaligned_64k", try_create(prop, 65536));
  tell("size_unaligned_G+4096", try_create(prop, unit() + 4096));
  tell("prop_null", cuMemCreate(&one, unit(), nullptr, 0));
  tell("out_null", cuMemCreate(nullptr, unit(), &prop, 0));
  tell("flags1", cuMemCreate(&one, unit(), &prop, 1));
  CUmemAllocationProp other = prop;
  other.location.id = 99;
  tell("bad_device", try_create(other));
  other.location.id = -1;
  tell("neg_device", try_create(other));
  for (auto [type, id] : {std::pair{0, "type_0"}, {2, "type_2_managed"}, {9, "type_9"}}) {
    other = prop;
    other.type = static_cast<CUmemAllocationType>(type);
    tell(id, try_create(other));
  }
  create_locations();
  for (int types : {0, 2, 4, 8, 9, 3, 16, 64}) {
    tell("handletype_" + std::to_string(types), try_create(properties(types)));
  }
  size_t free = 0, total = 0;
  cuMemGetInfo(&free, &total);
  tell("huge_1PiB", try_create(prop, size_t{1} << 50));
  tell("over_free", try_create(prop, (total + unit()) / unit() * unit()));
  other = prop;
  other.allocFlags.gpuDirectRDMACapable = 1;
  tell("gdr", try_create(other));
  other = prop;
  other.allocFlags.compressionType = 1;
  tell("compression", try_create(other));
  other = prop;
  other.allocFlags.reserved[0] = 1;
  tell("reserved_nonzero", try_create(other));
  long before = free_bytes();
  one = create(64 * unit());
  long during = free_bytes();
  cuMemRelease(one);
  note("accounting", {{"create_delta", before - during},
                      {"release_delta", free_bytes() - during},
                      {"G64", 64 * unit()}});
}

// Reserves and frees again. `base` keeps the address.
CUresult try_reserve(CUdeviceptr* base, size_t size, size_t alignment = 0, CUdeviceptr hint = 0) {
  *base = 0;
  CUresult r = cuMemAddressReserve(base, size, alignment, hint, 0);
  if (r == CUDA_SUCCESS) cuMemAddressFree(*base, size);
  return r;
}

void reserve_hints(CUdeviceptr base) {
  size_t g = unit();
  CUdeviceptr got = 0;
  auto tell_granted = [&](const char* id, CUdeviceptr hint, size_t alignment = 0) {
    CUresult r = try_reserve(&got, g, alignment, hint);
    tell(id, r, {{"granted", got == hint}});
  };
  tell_granted("hint_adjacent", base + 4 * g);
  tell_granted("hint_occupied", base);
  tell("hint_unaligned_4096", try_reserve(&got, g, 0, base + 4 * g + 4096));
  tell_granted("hint_align64k_hint64k", base + 4 * g + 65536, 65536);
  tell_granted("hint_low_2M", 2 << 20);
  tell("hint_noncanonical", try_reserve(&got, g, 0, CUdeviceptr{1} << 60));
}

void reserve_group() {
  start();
  size_t g = unit();
  CUdeviceptr a = 0;
  CUresult r = cuMemAddressReserve(&a, g, 0, 0, 0);
  int bits = a == 0 ? 0 : 64 - __builtin_clzll(a);
  tell("ok_align0", r, {{"mod2M", a % (2 << 20)}, {"ptr_bits", bits}});
  tell("free_ok", cuMemAddressFree(a, g));
  tell("size0", cuMemAddressReserve(&a, 0, 0, 0, 0));
  tell("out_null", cuMemAddressReserve(nullptr, g, 0, 0, 0));
  tell("flags1", cuMemAddressReserve(&a, g, 0, 0, 1));
  for (size_t size : {size_t{1}, size_t{4096}, size_t{65536}, size_t{1} << 20, g + 4096, g + 65536}) {
    r = try_reserve(&a, size);
    tell("size_" + std::to_string(size), r, {{"mod2M", a % (2 << 20)}});
  }
  for (size_t alignment : {1ul, 3ul, 4096ul, 65536ul, 1ul << 20, 2ul << 20, 3ul << 20, 4ul << 20,
                           6ul << 20, 1ul << 30, 5000000ul}) {
    r = try_reserve(&a, g, alignment);
    Json aligned = r == CUDA_SUCCESS ? Json(a % alignment == 0) : Json(nullptr);
    tell("align_" + std::to_string(alignment), r, {{"aligned", aligned}});
  }
  tell("base", cuMemAddressReserve(&a, 4 * g, 0, 0, 0));
  reserve_hints(a);
  tell("free_wrong_size_small", cuMemAddressFree(a, g));
  tell("free_wrong_size_large", cuMemAddressFree(a, 8 * g));
  tell("free_interior", cuMemAddressFree(a + g, g));
  tell("free_interior_rest", cuMemAddressFree(a + g, 3 * g));
  tell("free_exact", cuMemAddressFree(a, 4 * g));
  tell("free_twice", cuMemAddressFree(a, 4 * g));
  tell("free_zero", cuMemAddressFree(0, 0));
  tell("free_null_size", cuMemAddressFree(0, g));
  tell("huge_1TiB", try_reserve(&a, size_t{1} << 40));
  tell("huge_64TiB", try_reserve(&a, size_t{1} << 46));
  tell("huge_128TiB", try_reserve(&a, size_t{1} << 47));
  tell("huge_max", try_reserve(&a, ~size_t{0} & ~(g - 1)));
  Memory m = make(2 * g);
  tell("free_while_mapped", cuMemAddressFree(m.base, 2 * g));
  read_byte(m.base, &r);
  tell("use_after_refused_free", r);
  CUdeviceptr x = reserve(g);
  note("adjacent_pair", {{"granted", reserve(g, x + g) == x + g}});
}

}  // namespace

std::vector<Group> argument_groups() {
  return {{"granularity", granularity}, {"create", create_group}, {"reserve", reserve_group}};
}

}  // namespace truth
