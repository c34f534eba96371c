// Handles, their counts and what is known of them and of addresses: release, retain, props.
#include "situations.hpp"

#include <unistd.h>

namespace truth {
namespace {

void release_group() {
  start();
  size_t g = unit();
  auto handle = create(g);
  tell("once", cuMemRelease(handle));
  tell("twice", cuMemRelease(handle));
  tell("zero", cuMemRelease(0));
  Memory m = make(g);
  tell("while_mapped", cuMemRelease(m.handle));
  tell("use_after_release_mapped", cuMemsetD8(m.base, 7, g));
  note("read_back", {{"v", read_byte(m.base)}});
  int fd = -1;
  tell("export_after_release_mapped", cuMemExportToShareableHandle(&fd, m.handle, kFdType, 0));
  CUdeviceptr a = reserve(g);
  tell("map_after_release_mapped", cuMemMap(a, g, 0, m.handle, 0));
  CUmemGenericAllocationHandle again = 0;
  auto at = reinterpret_cast<void*>(m.base);
  tell("retain_after_release_mapped", cuMemRetainAllocationHandle(&again, at));
  note("retain_same_value", {{"value", again == m.handle}});
  tell("export_of_retained", cuMemExportToShareableHandle(&fd, again, kFdType, 0));
  tell("release_retained", cuMemRelease(again));
  tell("release_again", cuMemRelease(again));
  tell("unmap", cuMemUnmap(m.base, g));
  tell("free", cuMemAddressFree(m.base, g));
  tell("retain_after_unmap", cuMemRetainAllocationHandle(&again, at));
  handle = create(g);
  cuMemRelease(handle);
  CUresult r;
  properties_of(handle, &r);
  tell("props_after_release", r);
  tell("export_after_release", cuMemExportToShareableHandle(&fd, handle, kFdType, 0));
}

template <typename T>
void tell_attribute(const char* id, CUpointer_attribute attribute, CUdeviceptr at, T initial) {
  T value = initial;
  CUresult r = cuPointerGetAttribute(&value, attribute, at);
  tell(id, r, {{"v", value}});
}

void attributes(const Memory& m, CUdeviceptr only_reserved) {
  CUdeviceptr p = m.base;
  tell_attribute("attr.memtype", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p, 99u);
  tell_attribute("attr.allowed_handle_types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p, 99ull);
  for (auto [attribute, id] :
       {std::pair{CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "attr.legacy_ipc"},
        {CU_POINTER_ATTRIBUTE_MAPPED, "attr.mapped"}}) {
    int value = 99;
    CUresult r = cuPointerGetAttribute(&value, attribute, p);
    tell(id, r, {{"v", value & 0xff}});
  }
  tell_attribute("attr.ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p, 99);
  for (auto [attribute, id] :
       {std::pair{CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "attr.range_start"},
        {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "attr.mapping_base"}}) {
    CUdeviceptr base = 0;
    CUresult r = cuPointerGetAttribute(&base, attribute, p + 7);
    tell(id, r, {{"ok", base == p}});
  }
  tell_attribute("attr.range_size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, p, size_t{0});
  tell_attribute("attr.mapping_size", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p, size_t{0});
  unsigned long long id = 0;
  tell("attr.buffer_id", cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
  CUcontext context = nullptr;
  CUresult r = cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p);
  tell("attr.context", r, {{"is_null", context == nullptr}});
  tell_attribute("attr.memtype_reserved_only", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, only_reserved,
                 99u);
}

void retain_group() {
  start();
  size_t g = unit();
  Memory m = make(2 * g);
  CUmemGenericAllocationHandle got = 0;
  auto retain = [&](CUdeviceptr at) {
    return cuMemRetainAllocationHandle(&got, reinterpret_cast<void*>(at));
  };
  CUresult r = retain(m.base);
  tell("base", r, {{"same", got == m.handle}});
  tell("interior", retain(m.base + 4097));
  tell("out_null", cuMemRetainAllocationHandle(nullptr, reinterpret_cast<void*>(m.base)));
  tell("addr_null", retain(0));
  tell("unmapped", retain(m.base + 64 * g));
  CUdeviceptr plain = 0;
  cuMemAlloc(&plain, g);
  tell("cuMemAlloc_ptr", retain(plain));
  CUdeviceptr only_reserved = reserve(g);
  tell("reserved_unmapped", retain(only_reserved));
  int local = 0;
  tell("host_ptr", cuMemRetainAllocationHandle(&got, &local));
  for (const char* id : {"rel1", "rel2", "rel3", "rel4_over"}) tell(id, cuMemRelease(m.handle));
  read_byte(m.base, &r);
  tell("still_readable", r);
  tell("unmap", cuMemUnmap(m.base, 2 * g));
  Memory v = make(g);
  CUipcMemHandle ipc;
  tell("ipc_get_on_vmm", cuIpcGetMemHandle(&ipc, v.base));
  tell("ipc_get_on_cuMemAlloc", cuIpcGetMemHandle(&ipc, plain));
  tell("cuMemFree_on_vmm", cuMemFree(v.base));
  CUdeviceptr base = 0;
  size_t size = 0;
  r = cuMemGetAddressRange(&base, &size, v.base + 5);
  tell("addr_range", r, {{"base_ok", base == v.base}, {"size", size}});
  attributes(v, only_reserved);
}

void props_group() {
  start();
  Memory m = make(unit());
  CUresult r;
  Json facts = properties_of(m.handle, &r);
  CUmemAllocationProp prop;
  auto tell_facts = [&](const char* id) {
    Json line = {{"type", facts["type"]}, {"ht", facts["ht"]}, {"loc", facts["loc"]}};
    line["device"] = facts["id"];
    tell(id, r, line);
  };
  tell_facts("created");
  tell("out_null", cuMemGetAllocationPropertiesFromHandle(nullptr, m.handle));
  tell("handle0", cuMemGetAllocationPropertiesFromHandle(&prop, 0));
  CUmemGenericAllocationHandle imported = 0;
  CUresult import_result = import_fd(&imported, export_fd(m.handle));
  tell("import_same_process", import_result, {{"same_handle", imported == m.handle}});
  facts = properties_of(imported, &r);
  tell_facts("imported_same_process");
}

void twohandles_group() {
  start();
  size_t size = 64 * unit();
  long before = free_bytes();
  auto origin = create(size);
  CUmemGenericAllocationHandle imported = 0;
  int fd = export_fd(origin);
  import_fd(&imported, fd);
  close(fd);
  cuMemRelease(origin);
  note("import_keeps_alive", {{"held", before - free_bytes()}});
  CUdeviceptr a = reserve(size);
  tell("map_import_after_origin_release", cuMemMap(a, size, 0, imported, 0));
  tell("release_import_mapped", cuMemRelease(imported));
  note("mapping_keeps_alive", {{"held", before - free_bytes()}});
  cuMemUnmap(a, size);
  note("after_unmap", {{"held", before - free_bytes()}});
  tell("addrfree", cuMemAddressFree(a, size));
}

}  // namespace

std::vector<Group> handle_groups() {
  return {{"release", release_group},
          {"retain", retain_group},
          {"props", props_group},
          {"twohandles", twohandles_group}};
}

}  // namespace truth
