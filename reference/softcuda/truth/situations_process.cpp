// A process and its context: before cuInit, without a context, capture, threads, reset, garbage.
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "situations.hpp"

namespace truth {
namespace {

// The number of fds, and what they are.
Json fd_census() {
  Json kinds = Json::object();
  int count = 0;
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    std::string target = std::filesystem::read_symlink(entry.path(), none).string();
    if (none || target.find("/fd") != std::string::npos) continue;
    bool nameless = target.rfind("pipe", 0) == 0 || target.rfind("socket", 0) == 0;
    if (nameless) target = target.substr(0, target.find(':'));
    kinds[target] = kinds.value(target, 0) + 1;
    count++;
  }
  return {{"n", count}, {"kinds", kinds}};
}

struct NamedAttribute {
  const char* name;
  CUdevice_attribute attribute;
};

constexpr NamedAttribute kAttributes[] = {
    {"VMM", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
    {"POSIX_FD", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
    {"WIN32", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED},
    {"FABRIC", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
    {"GDR_VMM", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
    {"UVA", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {"IPC_EVENT", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
    {"MULTICAST", CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED},
    {"MEMPOOLS", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {"MEMPOOL_HANDLES", CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES},
    {"HOST_NUMA_VMM", CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
    {"NUMA_ID", CU_DEVICE_ATTRIBUTE_NUMA_ID},
    {"HOST_NUMA_ID", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
    {"GENERIC_COMPRESSION", CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED},
    {"CC_MAJOR", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {"CC_MINOR", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {"PAGEABLE", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {"CONCURRENT_MANAGED", CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS}};

void before_init() {
  note("fd.before_init", {{"n", open_fds()}});
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = properties();
  CUdeviceptr a = 0;
  int fd = -1;
  tell("create_before_cuInit", cuMemCreate(&handle, 2 << 20, &prop, 0));
  tell("reserve_before_cuInit", cuMemAddressReserve(&a, 2 << 20, 0, 0, 0));
  tell("release_before_cuInit", cuMemRelease(1));
  tell("export_before_cuInit", cuMemExportToShareableHandle(&fd, 1, kFdType, 0));
}

void without_context() {
  size_t g = unit();
  CUmemGenericAllocationHandle handle = 0, imported = 0, retained = 0;
  CUmemAllocationProp prop = properties();
  CUmemAccessDesc rw = access_to_device();
  CUdeviceptr a = 0;
  size_t free, total;
  int fd = -1;
  tell("create_no_ctx", cuMemCreate(&handle, g, &prop, 0));
  note("fd.after_create_no_ctx", fd_census());
  tell("reserve_no_ctx", cuMemAddressReserve(&a, g, 0, 0, 0));
  tell("map_no_ctx", cuMemMap(a, g, 0, handle, 0));
  tell("access_no_ctx", cuMemSetAccess(a, g, &rw, 1));
  tell("export_no_ctx", cuMemExportToShareableHandle(&fd, handle, kFdType, 0));
  tell("import_no_ctx", import_fd(&imported, fd));
  tell("memset_no_ctx", cuMemsetD8(a, 1, 16));
  tell("getinfo_no_ctx", cuMemGetInfo(&free, &total));
  tell("retain_no_ctx", cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(a)));
  tell("unmap_no_ctx", cuMemUnmap(a, g));
  tell("free_no_ctx", cuMemAddressFree(a, g));
  tell("release_no_ctx", cuMemRelease(handle));
  close(fd);
}

// The import and the retained reference of without_context() still hold one unit in env.meminfo,
// as they did when it was recorded.
void env_group() {
  before_init();
  start(false);
  note("fd.after_cuInit", fd_census());
  int version = 0, count = 0;
  char name[100] = "";
  cuDriverGetVersion(&version);
  cuDeviceGetName(name, sizeof name, 0);
  cuDeviceGetCount(&count);
  note("device", {{"driver", version}, {"name", name}, {"count", count}});
  for (const NamedAttribute& a : kAttributes) {
    int value = -1;
    CUresult r = cuDeviceGetAttribute(&value, a.attribute, 0);
    tell(std::string("attr.") + a.name, r, {{"value", value}});
  }
  without_context();
  start();
  note("fd.after_ctx", fd_census());
  size_t free = 0, total = 0;
  cuMemGetInfo(&free, &total);
  note("meminfo", {{"free", free}, {"total", total}});
}

void capture_group() {
  start();
  size_t g = unit();
  Memory m = make(g);
  CUstream stream;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  tell("begin", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUmemAllocationProp prop = properties();
  CUmemAccessDesc rw = access_to_device();
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  CUdeviceptr a = 0;
  int fd = -1;
  tell("create_in_capture", cuMemCreate(&handle, g, &prop, 0));
  tell("reserve_in_capture", cuMemAddressReserve(&a, g, 0, 0, 0));
  tell("map_in_capture", cuMemMap(a, g, 0, handle, 0));
  tell("access_in_capture", cuMemSetAccess(a, g, &rw, 1));
  tell("export_in_capture", cuMemExportToShareableHandle(&fd, m.handle, kFdType, 0));
  tell("import_in_capture", import_fd(&imported, fd));
  tell("unmap_in_capture", cuMemUnmap(a, g));
  CUstreamCaptureStatus status;
  CUresult r = cuStreamIsCapturing(stream, &status);
  tell("status", r, {{"st", static_cast<int>(status)}});
  tell("sync_capturing_stream", cuStreamSynchronize(stream));
  r = cuStreamIsCapturing(stream, &status);
  tell("status2", r, {{"st", static_cast<int>(status)}});
  CUgraph graph = nullptr;
  tell("end", cuStreamEndCapture(stream, &graph));
}

void inflight_group() {
  start();
  Memory m = make(64 * unit());
  CUstream stream;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 2; i++) {
    cuMemsetD8Async(m.base, static_cast<unsigned char>(i), m.size, stream);
  }
  tell("query_before_unmap", cuStreamQuery(stream));
  tell("unmap_inflight", cuMemUnmap(m.base, m.size));
  tell("query_after_unmap", cuStreamQuery(stream));
  tell("sync", cuStreamSynchronize(stream));
}

// One full cycle of the VMM calls; false when one of them fails.
bool cycle() {
  size_t g = unit();
  Memory m = make(g);
  int fd = export_fd(m.handle);
  CUmemGenericAllocationHandle imported = 0;
  bool ok = fd >= 0 && import_fd(&imported, fd) == CUDA_SUCCESS;
  close(fd);
  CUdeviceptr b = reserve(g);
  ok = ok && cuMemMap(b, g, 0, imported, 0) == CUDA_SUCCESS;
  ok = ok && cuMemUnmap(b, g) == CUDA_SUCCESS;
  cuMemAddressFree(b, g);
  cuMemRelease(imported);
  drop(&m);
  return ok;
}

void threads_group() {
  start();
  std::vector<int> bad(8, 0);
  std::vector<std::thread> threads;
  for (int& count : bad) {
    threads.emplace_back([&count] {
      for (int i = 0; i < 40; i++) count += cycle() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  int sum = 0;
  for (int count : bad) sum += count;
  note("concurrent_cycles", {{"bad", sum}});
}

void ctxreset_group() {
  start();
  size_t g = unit();
  Memory m = make(g);
  cuMemsetD8(m.base, 3, g);
  tell("reset", cuDevicePrimaryCtxReset(0));
  start();
  CUresult r;
  int value = read_byte(m.base, &r);
  tell("read_after_reset", r, {{"v", value}});
  int fd = -1;
  tell("export_after_reset", cuMemExportToShareableHandle(&fd, m.handle, kFdType, 0));
  tell("unmap_after_reset", cuMemUnmap(m.base, g));
  tell("release_after_reset", cuMemRelease(m.handle));
  tell("free_after_reset", cuMemAddressFree(m.base, g));
}

void exitwithout_group() {
  start();
  Memory m = make(unit());
  bool exported = export_fd(m.handle) >= 0;
  note("left_open", {{"ok", exported}});
}

constexpr CUmemGenericAllocationHandle kGarbage = 0xdeadbeef;

void garbage_release() {
  start();
  tell("release", cuMemRelease(kGarbage));
}
void garbage_map() {
  start();
  tell("map", cuMemMap(reserve(unit()), unit(), 0, kGarbage, 0));
}
void garbage_props() {
  start();
  CUmemAllocationProp prop;
  tell("props", cuMemGetAllocationPropertiesFromHandle(&prop, kGarbage));
}
void garbage_export() {
  start();
  int fd;
  tell("export", cuMemExportToShareableHandle(&fd, kGarbage, kFdType, 0));
}

}  // namespace

std::vector<Group> process_groups() {
  return {{"env", env_group},
          {"capture", capture_group},
          {"inflight", inflight_group},
          {"threads", threads_group},
          {"ctxreset", ctxreset_group},
          {"exitwithout", exitwithout_group},
          {"garbage_release", garbage_release},
          {"garbage_map", garbage_map},
          {"garbage_props", garbage_props},
          {"garbage_export", garbage_export}};
}

}  // namespace truth
