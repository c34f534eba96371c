// What a call costs with 100, 1,000 and 10,000 allocations alive, each with an exported fd, beside
// the H200's medians (truth/: timing.median_us, one allocation at a time).
// Exit status 1 when a call failed; the times are for people.
#include <cuda.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
// Below this a ratio measures the clock and the scheduler, not the driver.
constexpr double kFloorUs = 1.0;

double now_us() {
  using Micro = std::chrono::duration<double, std::micro>;
  return Micro(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool g_failed = false;

// The median time of `count` calls.
template <typename Call>
double median_of(size_t count, Call call) {
  std::vector<double> times(count);
  for (size_t i = 0; i < count; i++) {
    double start = now_us();
    if (!call(i)) g_failed = true;
    times[i] = now_us() - start;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(count / 2), times.end());
  return times[count / 2];
}

// The medians of one population, in the order of kRows.
struct Row {
  const char* name;
  double h200_us;  // 0: not measured
};
constexpr Row kRows[] = {{"create", 8.1},        {"export", 494.1}, {"import", 16.8},
                         {"cuMemGetInfo", 0},    {"close", 515.2},  {"release", 9.2},
                         {"fd-held GetInfo", 0}};
constexpr size_t kRowCount = sizeof kRows / sizeof kRows[0];

CUmemAllocationProp exportable() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = kFd;
  return prop;
}

bool get_info() {
  size_t free, total;
  return cuMemGetInfo(&free, &total) == CUDA_SUCCESS;
}

std::vector<double> measure(size_t count) {
  std::vector<CUmemGenericAllocationHandle> handles(count), imports(count);
  std::vector<int> fds(count);
  CUmemAllocationProp prop = exportable();
  std::vector<double> medians;
  medians.push_back(median_of(count, [&](size_t i) {
    return cuMemCreate(&handles[i], kUnit, &prop, 0) == CUDA_SUCCESS;
  }));
  medians.push_back(median_of(count, [&](size_t i) {
    return cuMemExportToShareableHandle(&fds[i], handles[i], kFd, 0) == CUDA_SUCCESS;
  }));
  medians.push_back(median_of(count, [&](size_t i) {
    void* fd = reinterpret_cast<void*>(static_cast<uintptr_t>(fds[i]));
    return cuMemImportFromShareableHandle(&imports[i], fd, kFd) == CUDA_SUCCESS;
  }));
  medians.push_back(median_of(200, [](size_t) { return get_info(); }));
  for (auto handle : imports) cuMemRelease(handle);
  medians.push_back(median_of(count, [&](size_t i) { return close(fds[i]) == 0; }));
  medians.push_back(
      median_of(count, [&](size_t i) { return cuMemRelease(handles[i]) == CUDA_SUCCESS; }));
  // Allocations that only an fd keeps: the books have to ask the kernel about each.
  for (size_t i = 0; i < count; i++) {
    cuMemCreate(&handles[i], kUnit, &prop, 0);
    cuMemExportToShareableHandle(&fds[i], handles[i], kFd, 0);
    cuMemRelease(handles[i]);
  }
  medians.push_back(median_of(20, [](size_t) { return get_info(); }));
  for (int fd : fds) close(fd);
  return medians;
}

}  // namespace

int main() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  CUcontext context;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 2;
  cuCtxSetCurrent(context);
  measure(100);  // warm up
  std::vector<size_t> counts = {100, 1000, 10000};
  if (limit.rlim_cur < 10100) {
    printf("the limit of open files is %lu; measuring fewer\n",
           static_cast<unsigned long>(limit.rlim_cur));
    counts.back() = limit.rlim_cur - 100;
  }
  std::vector<std::vector<double>> columns;
  for (size_t count : counts) columns.push_back(measure(count));
  printf("%-16s", "median us");
  for (size_t count : counts) printf("%10zu", count);
  printf("%10s%10s\n", "growth", "H200");
  for (size_t row = 0; row < kRowCount; row++) {
    double base = std::max(columns.front()[row], kFloorUs);
    double growth = std::max(columns.back()[row], kFloorUs) / base;
    printf("%-16s", kRows[row].name);
    for (auto& column : columns) printf("%10.2f", column[row]);
    printf("%9.1fx", growth);
    if (kRows[row].h200_us > 0) printf("%10.1f", kRows[row].h200_us);
    printf("\n");
  }
  if (g_failed) fprintf(stderr, "a call failed\n");
  return g_failed ? 1 : 0;
}
