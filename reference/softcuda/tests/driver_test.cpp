// The wider API, on two devices (profile h200x2): peers, host-located memory, plain memory, pools,
// streams, contexts, entry points. One process; every case leaves free memory as it found it.
#include <cuda.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "catch2_compat.hpp"

namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUcontext g_contexts[2];

void on_device(int device) {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  for (int i = 0; i < 2; i++) {
    if (g_contexts[i] == nullptr) {
      REQUIRE(cuDevicePrimaryCtxRetain(&g_contexts[i], i) == CUDA_SUCCESS);
    }
  }
  REQUIRE(cuCtxSetCurrent(g_contexts[device]) == CUDA_SUCCESS);
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  return free;
}

CUmemAccessDesc access_for(CUmemLocationType type, int id, int flags) {
  CUmemAccessDesc desc{};
  desc.location.type = type;
  desc.location.id = id;
  desc.flags = static_cast<CUmemAccess_flags>(flags);
  return desc;
}

// An allocation with an address, released when the object goes.
struct Memory {
  explicit Memory(CUmemLocationType type, int id = 0, int handle_types = 0,
                  CUmemGenericAllocationHandle existing = 0)
      : handle(existing) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = type;
    prop.location.id = id;
    prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
    if (handle == 0) REQUIRE(cuMemCreate(&handle, kUnit, &prop, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressReserve(&base, kUnit, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(base, kUnit, 0, handle, 0) == CUDA_SUCCESS);
  }
  ~Memory() {
    cuMemUnmap(base, kUnit);
    cuMemAddressFree(base, kUnit);
    cuMemRelease(handle);
  }
  CUresult grant(CUmemLocationType type, int id, int flags) const {
    CUmemAccessDesc desc = access_for(type, id, flags);
    return cuMemSetAccess(base, kUnit, &desc, 1);
  }
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base = 0;
};

CUresult read(CUdeviceptr at, unsigned char* byte) { return cuMemcpyDtoH(byte, at, 1); }

std::string log_text() {
  std::ifstream file(getenv("SOFTCUDA_LOG"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("each device has memory of its own") {
  on_device(1);
  size_t free_on_one = free_bytes();
  on_device(0);
  size_t before = free_bytes();
  Memory memory(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  CHECK(before - free_bytes() == kUnit);
  on_device(1);
  CHECK(free_bytes() == free_on_one);
}

TEST_CASE("a peer reaches memory after a grant and not after its end") {
  on_device(0);
  Memory memory(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  REQUIRE(memory.grant(CU_MEM_LOCATION_TYPE_DEVICE, 0, 3) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8(memory.base, 0x42, kUnit) == CUDA_SUCCESS);
  unsigned char byte = 0;
  on_device(1);
  CHECK(read(memory.base, &byte) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(memory.grant(CU_MEM_LOCATION_TYPE_DEVICE, 1, 1) == CUDA_SUCCESS);
  CHECK(read(memory.base, &byte) == CUDA_SUCCESS);
  CHECK(byte == 0x42);
  CHECK(cuMemsetD8(memory.base, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(memory.grant(CU_MEM_LOCATION_TYPE_DEVICE, 1, 0) == CUDA_SUCCESS);
  CHECK(read(memory.base, &byte) == CUDA_ERROR_INVALID_VALUE);
  on_device(0);
  CHECK(read(memory.base, &byte) == CUDA_SUCCESS);
}

TEST_CASE("access for one device leaves the other's, and the last of two descriptors counts") {
  on_device(0);
  Memory memory(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  CUmemAccessDesc both[] = {access_for(CU_MEM_LOCATION_TYPE_DEVICE, 0, 3),
                            access_for(CU_MEM_LOCATION_TYPE_DEVICE, 1, 3),
                            access_for(CU_MEM_LOCATION_TYPE_DEVICE, 1, 1)};
  REQUIRE(cuMemSetAccess(memory.base, kUnit, both, 3) == CUDA_SUCCESS);
  unsigned long long flags = 9;
  REQUIRE(cuMemGetAccess(&flags, &both[1].location, memory.base) == CUDA_SUCCESS);
  CHECK(flags == 1);
  REQUIRE(memory.grant(CU_MEM_LOCATION_TYPE_DEVICE, 1, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemGetAccess(&flags, &both[0].location, memory.base) == CUDA_SUCCESS);
  CHECK(flags == 3);
}

TEST_CASE("peer access between contexts is counted by enable and disable") {
  on_device(0);
  int can = 0;
  REQUIRE(cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS);
  CHECK(can == 1);
  CHECK(cuCtxEnablePeerAccess(g_contexts[1], 0) == CUDA_SUCCESS);
  CHECK(cuCtxEnablePeerAccess(g_contexts[1], 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CHECK(cuCtxDisablePeerAccess(g_contexts[1]) == CUDA_SUCCESS);
  CHECK(cuCtxDisablePeerAccess(g_contexts[1]) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

TEST_CASE("host memory takes nothing from a device and is one memory for CPU and device") {
  on_device(0);
  size_t before = free_bytes();
  for (auto type : {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA}) {
    Memory memory(type);
    CHECK(free_bytes() == before);
    REQUIRE(memory.grant(CU_MEM_LOCATION_TYPE_DEVICE, 0, 3) == CUDA_SUCCESS);
    REQUIRE(memory.grant(type, 0, 3) == CUDA_SUCCESS);
    auto* bytes = reinterpret_cast<volatile unsigned char*>(memory.base);
    bytes[5] = 77;
    unsigned char byte = 0;
    REQUIRE(read(memory.base + 5, &byte) == CUDA_SUCCESS);
    CHECK(byte == 77);
    REQUIRE(cuMemsetD8(memory.base, 78, kUnit) == CUDA_SUCCESS);
    CHECK(bytes[kUnit - 1] == 78);
  }
}

TEST_CASE("an import of host memory is coherent with its origin on the CPU") {
  on_device(0);
  Memory origin(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, kFd);
  int fd = -1;
  REQUIRE(cuMemExportToShareableHandle(&fd, origin.handle, kFd, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
  REQUIRE(cuMemImportFromShareableHandle(&handle, os_handle, kFd) == CUDA_SUCCESS);
  close(fd);
  Memory imported(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 0, handle);
  REQUIRE(origin.grant(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 3) == CUDA_SUCCESS);
  REQUIRE(imported.grant(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 3) == CUDA_SUCCESS);
  reinterpret_cast<volatile unsigned char*>(origin.base)[9] = 5;
  CHECK(reinterpret_cast<volatile unsigned char*>(imported.base)[9] == 5);
}

TEST_CASE("plain memory is freed once, by its base, and dies with its context") {
  on_device(0);
  size_t before = free_bytes();
  CUdeviceptr a = 0;
  REQUIRE(cuMemAlloc(&a, 1000) == CUDA_SUCCESS);
  CHECK(before - free_bytes() == kUnit);  // as measured
  CHECK(cuMemFree(a + 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(a) == CUDA_SUCCESS);
  CHECK(cuMemFree(a) == CUDA_ERROR_INVALID_VALUE);
  CUcontext context;
  REQUIRE(cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc(&a, 1000) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy(context) == CUDA_SUCCESS);
  on_device(0);
  CHECK(free_bytes() == before);
}

TEST_CASE("copies of bad host addresses are refused, not fatal") {
  on_device(0);
  CUdeviceptr a = 0;
  REQUIRE(cuMemAlloc(&a, 4096) == CUDA_SUCCESS);
  CHECK(cuMemcpyHtoD(a, reinterpret_cast<void*>(8), 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH(reinterpret_cast<void*>(8), a, 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(a) == CUDA_SUCCESS);
}

TEST_CASE("fills of 2 and 4 bytes and of rows write their pattern") {
  on_device(0);
  CUdeviceptr a = 0;
  REQUIRE(cuMemAlloc(&a, 1 << 20) == CUDA_SUCCESS);
  std::vector<unsigned> words(1 << 18);
  REQUIRE(cuMemsetD32(a, 0x01020304, words.size()) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH(words.data(), a, 1 << 20) == CUDA_SUCCESS);
  CHECK(std::count(words.begin(), words.end(), 0x01020304u) == 1 << 18);
  CHECK(cuMemsetD32(a + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemsetD16(a, 0xabcd, 3) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD2D8(a + 16, 64, 0xee, 4, 2) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH(words.data(), a, 256) == CUDA_SUCCESS);
  CHECK(words[0] == 0xabcdabcd);
  CHECK(words[1] == 0x0102abcd);
  CHECK(words[4] == 0xeeeeeeee);
  CHECK(words[5] == 0x01020304);
  CHECK(words[20] == 0xeeeeeeee);
  CHECK(cuMemFree(a) == CUDA_SUCCESS);
}

TEST_CASE("overlapping copies on a device move bytes as memmove does") {
  on_device(0);
  CUdeviceptr a = 0;
  constexpr size_t kSize = 3 << 20;
  REQUIRE(cuMemAlloc(&a, kSize + 4096) == CUDA_SUCCESS);
  std::vector<unsigned char> bytes(kSize), back(kSize);
  for (size_t i = 0; i < kSize; i++) bytes[i] = static_cast<unsigned char>(i * 31 + i / 4096);
  REQUIRE(cuMemcpyHtoD(a, bytes.data(), kSize) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoD(a + 4096, a, kSize) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH(back.data(), a + 4096, kSize) == CUDA_SUCCESS);
  CHECK(back == bytes);
  CHECK(cuMemFree(a) == CUDA_SUCCESS);
}

TEST_CASE("a pool counts what it gave, and lives until its last allocation goes") {
  on_device(0);
  size_t before = free_bytes();
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool;
  REQUIRE(cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS);
  CUdeviceptr a = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&a, 1000, pool, nullptr) == CUDA_SUCCESS);
  uint64_t used = 0;
  REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS);
  CHECK(used == 1000);
  CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8(a, 1, 1000) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(a, nullptr) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}

TEST_CASE("a pool pointer does not import into another pool") {
  on_device(0);
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = kFd;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pools[2], imported[2];
  for (int i = 0; i < 2; i++) {
    REQUIRE(cuMemPoolCreate(&pools[i], &props) == CUDA_SUCCESS);
    int fd = -1;
    REQUIRE(cuMemPoolExportToShareableHandle(&fd, pools[i], kFd, 0) == CUDA_SUCCESS);
    void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
    REQUIRE(cuMemPoolImportFromShareableHandle(&imported[i], os_handle, kFd, 0) == CUDA_SUCCESS);
    close(fd);
  }
  CUdeviceptr a = 0, b = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&a, 4096, pools[0], nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8(a, 0x31, 4096) == CUDA_SUCCESS);
  CUmemPoolPtrExportData data;
  REQUIRE(cuMemPoolExportPointer(&data, a) == CUDA_SUCCESS);
  CHECK(cuMemPoolImportPointer(&b, imported[1], &data) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemPoolImportPointer(&b, imported[0], &data) == CUDA_SUCCESS);
  CHECK(cuMemFree(a) == CUDA_SUCCESS);
  unsigned char byte = 0;
  CHECK(read(b, &byte) == CUDA_SUCCESS);
  CHECK(byte == 0x31);
  CHECK(cuMemFree(b) == CUDA_SUCCESS);
  for (int i = 0; i < 2; i++) {
    CHECK(cuMemPoolDestroy(imported[i]) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pools[i]) == CUDA_SUCCESS);
  }
}

TEST_CASE("work on a capturing stream is refused by name, never recorded falsely") {
  on_device(0);
  CUstream stream;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUdeviceptr a = 0;
  REQUIRE(cuMemAlloc(&a, 4096) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(a, 1, 16, stream) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(log_text().find("cuMemsetD8Async: not modelled on a capturing stream") !=
        std::string::npos);
  CUgraph graph;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuMemsetD8Async(a, 1, 16, stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemFree(a) == CUDA_SUCCESS);
}

TEST_CASE("events measure time between records") {
  on_device(0);
  CUevent start, end;
  REQUIRE(cuEventCreate(&start, 0) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&end, 0) == CUDA_SUCCESS);
  float ms = -1;
  CHECK(cuEventElapsedTime(&ms, start, end) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuEventRecord(start, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(end, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventElapsedTime(&ms, start, end) == CUDA_SUCCESS);
  CHECK(ms >= 0);
  CHECK(cuEventDestroy(start) == CUDA_SUCCESS);
  CHECK(cuEventDestroy(end) == CUDA_SUCCESS);
}

TEST_CASE("a thread starts without a context and has a stack of its own") {
  on_device(1);
  std::thread([] {
    CUcontext current = g_contexts[0];
    CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == nullptr);
    CHECK(cuCtxPushCurrent(g_contexts[0]) == CUDA_SUCCESS);
    CUdevice device = -1;
    CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
    CHECK(device == 0);
    CHECK(cuCtxPopCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == g_contexts[0]);
    CHECK(cuCtxPopCurrent(&current) == CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  CUdevice device = -1;
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 1);
}

TEST_CASE("entry points are found by name and version") {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  REQUIRE(cuGetProcAddress("cuMemCreate", &found, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK(found == reinterpret_cast<void*>(&cuMemCreate));
  REQUIRE(cuGetProcAddress("cuMemCreate", &found, 9000, 0, &status) == CUDA_SUCCESS);
  CHECK(found == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  REQUIRE(cuGetProcAddress("cuNoSuchCall", &found, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK(found == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  REQUIRE(cuGetProcAddress("cuMemAlloc", &found, 3020, 0, &status) == CUDA_SUCCESS);
  CHECK(found == reinterpret_cast<void*>(&cuMemAlloc));
}

TEST_CASE("what is not modelled says so by name") {
  on_device(0);
  CUmodule module;
  CHECK(cuModuleLoad(&module, "nowhere") == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(log_text().find("cuModuleLoad: not modelled") != std::string::npos);
}

TEST_CASE("eight threads copy, map and share at once") {
  on_device(0);
  size_t before = free_bytes();
  std::vector<std::thread> threads;
  std::vector<int> failures(8, 0);
  for (int t = 0; t < 8; t++) {
    threads.emplace_back([t, &failures] {
      cuCtxSetCurrent(g_contexts[0]);
      CUmemAllocationProp prop{};
      prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      prop.requestedHandleTypes = kFd;
      CUmemAccessDesc rw = access_for(CU_MEM_LOCATION_TYPE_DEVICE, 0, 3);
      for (int i = 0; i < 30; i++) {
        CUmemGenericAllocationHandle handle = 0, imported = 0;
        CUdeviceptr a = 0;
        int fd = -1;
        unsigned char byte = 0;
        auto value = static_cast<unsigned char>(t * 30 + i);
        bool ok = cuMemCreate(&handle, kUnit, &prop, 0) == 0;
        ok = ok && cuMemExportToShareableHandle(&fd, handle, kFd, 0) == 0;
        void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
        ok = ok && cuMemImportFromShareableHandle(&imported, os_handle, kFd) == 0;
        ok = ok && cuMemRelease(handle) == 0 && cuMemAddressReserve(&a, kUnit, 0, 0, 0) == 0;
        ok = ok && cuMemMap(a, kUnit, 0, imported, 0) == 0;
        ok = ok && cuMemSetAccess(a, kUnit, &rw, 1) == 0;
        ok = ok && cuMemsetD8(a, value, 4096) == 0 && read(a + 4095, &byte) == 0;
        ok = ok && byte == value;
        close(fd);
        cuMemUnmap(a, kUnit);
        cuMemAddressFree(a, kUnit);
        cuMemRelease(imported);
        failures[t] += ok ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == std::vector<int>(8, 0));
  CHECK(free_bytes() == before);
}
