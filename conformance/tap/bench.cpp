// tap_bench NEXT TAP: what the tap adds to a call, in nanoseconds. Prints the medians of a query on the
// driver NEXT alone, through TAP without a log, and through TAP with one, each in a process of its own.
//
//   build/conformance/tap/tap_bench build/softcuda/libcuda.so.1 build/tap/libcuda.so.1
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr int kBatch = 1000;   // calls that are timed together
constexpr int kBatches = 200;  // as many as a log of the tap's own has room for

// The median time of a call of cuMemGetAllocationGranularity, which does next to nothing itself.
double nanoseconds(const char* library) {
  void* driver = ::dlopen(library, RTLD_NOW);
  if (driver == nullptr) {
    std::fprintf(stderr, "tap_bench: %s\n", ::dlerror());
    std::exit(2);
  }
  const auto init = reinterpret_cast<decltype(&::cuInit)>(::dlsym(driver, "cuInit"));
  const auto call = reinterpret_cast<decltype(&::cuMemGetAllocationGranularity)>(
      ::dlsym(driver, "cuMemGetAllocationGranularity"));
  if (init(0) != CUDA_SUCCESS) {
    std::fprintf(stderr, "tap_bench: %s does not start\n", library);
    std::exit(2);
  }
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  std::vector<double> times;
  for (int batch = 0; batch < kBatches; ++batch) {
    std::size_t granularity = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) {
      call(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / kBatch);
  }
  std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
  return times[kBatches / 2];
}

double in_child(const char* library, const char* next, const char* log) {
  int pipe[2];
  if (::pipe(pipe) != 0) std::exit(3);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (next != nullptr) ::setenv("VMMCTS_TAP_NEXT", next, 1);
    if (log != nullptr) ::setenv("VMMCTS_TAP_LOG", log, 1);
    const double median = nanoseconds(library);
    std::exit(::write(pipe[1], &median, sizeof median) == sizeof median ? 0 : 3);
  }
  ::close(pipe[1]);
  double median = 0;
  const bool told = ::read(pipe[0], &median, sizeof median) == sizeof median;
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!told) std::exit(WEXITSTATUS(status));
  return median;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("tap_bench: usage: tap_bench NEXT TAP, two libcuda.so.1\n", stderr);
    return 2;
  }
  std::string directory = (std::filesystem::temp_directory_path() / "tap-bench-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return 3;
  const std::string log = directory + "/calls";
  const double alone = in_child(argv[1], nullptr, nullptr);
  const double off = in_child(argv[2], argv[1], nullptr);
  const double on = in_child(argv[2], argv[1], log.c_str());
  std::filesystem::remove_all(directory);
  std::printf("driver alone   %8.1f ns a call\n", alone);
  std::printf("tap, no log    %8.1f ns, %+8.1f ns\n", off, off - alone);
  std::printf("tap and log    %8.1f ns, %+8.1f ns\n", on, on - alone);
  return 0;
}
