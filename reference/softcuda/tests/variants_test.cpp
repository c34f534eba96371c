// Profiles and legal variants: the parsers, and what each variant changes in a fresh process.
#include <cuda.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "catch2_compat.hpp"
#include "process.hpp"
#include "profile.hpp"

using softcuda::parse_profile;
using softcuda::parse_variants;
using softcuda::Profile;
using softcuda::Variants;
using softcuda_test::PrivateDirectory;

namespace {

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Runs `probe` in a child with the variants; what it returned.
int under(const char* variants, const std::function<int()>& probe) {
  PrivateDirectory directory;
  pid_t pid = fork();
  if (pid == 0) {
    setenv("SOFTCUDA_VARIANT", variants, 1);
    CUcontext context;
    bool ready = cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 &&
                 cuCtxSetCurrent(context) == 0;
    _exit(ready ? probe() : 99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CUmemAllocationProp properties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = kFd;
  return prop;
}

// The minimum granularity in units of 64 KiB, after using it.
int granularity_units() {
  CUmemAllocationProp prop = properties();
  size_t granularity = 0;
  cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  CUmemGenericAllocationHandle handle;
  if (cuMemCreate(&handle, granularity, &prop, 0) != 0) return 1;
  if (cuMemCreate(&handle, granularity / 2, &prop, 0) == 0) return 2;
  return static_cast<int>(granularity >> 16) & 0xff;
}

constexpr size_t kUnit = size_t{2} << 20;

// How many of ten hints right above a fresh reservation are granted.
int hints_granted() {
  int granted = 0;
  for (int i = 0; i < 10; i++) {
    CUdeviceptr a = 0, b = 0;
    cuMemAddressReserve(&a, kUnit, 0, 0, 0);
    cuMemAddressReserve(&b, kUnit, 0, a + kUnit, 0);
    granted += b == a + kUnit;
    cuMemAddressFree(b, kUnit);
  }
  return granted;
}

int second_value_same() {
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle one, two;
  cuMemCreate(&one, kUnit, &prop, 0);
  cuMemRelease(one);
  cuMemCreate(&two, kUnit, &prop, 0);
  return one == two;
}

int descending() {
  CUdeviceptr a = 0, b = 0;
  cuMemAddressReserve(&a, kUnit, 0, 0, 0);
  cuMemAddressReserve(&b, kUnit, 0, 0, 0);
  return b < a;
}

int cloexec() {
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle handle;
  int fd = -1;
  cuMemCreate(&handle, kUnit, &prop, 0);
  cuMemExportToShareableHandle(&fd, handle, kFd, 0);
  return fcntl(fd, F_GETFD) & FD_CLOEXEC;
}

// The result of importing a stranger's fd.
int import_of_stranger() {
  CUmemGenericAllocationHandle handle;
  void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(open("/dev/null", O_RDWR)));
  return cuMemImportFromShareableHandle(&handle, os_handle, kFd) == CUDA_ERROR_UNKNOWN;
}

}  // namespace

TEST_CASE("a profile file sets devices, memory, granularity and attributes") {
  Profile profile;
  std::string error;
  REQUIRE(parse_profile("# a machine\n"
                        "devices = 4\n"
                        "name = \"Some GPU #4\"  # the name\n"
                        "memory = 16GiB\n"
                        "granularity = 64KiB\n"
                        "peer_access = false\n"
                        "[attributes]\n"
                        "75 = 8\n",
                        "test", &profile, &error));
  CHECK(profile.devices == 4);
  CHECK(profile.name == "Some GPU #4");
  CHECK(profile.total_bytes == uint64_t{16} << 30);
  CHECK(profile.granularity == 64u << 10);
  CHECK_FALSE(profile.peer_access);
  CHECK(profile.attributes[75] == 8);
}

TEST_CASE("a profile line that cannot be used is named with its number") {
  for (const char* bad : {"devices = many", "colour = 3", "granularity = 3MiB", "devices = 99",
                          "devices", "memory = -1"}) {
    Profile profile;
    std::string error;
    CHECK_FALSE(parse_profile(std::string("# head\n") + bad + "\n", "file", &profile, &error));
    CHECK(error == std::string("file:2: cannot use '") + bad + "'");
  }
}

TEST_CASE("an unknown variant is refused by name") {
  Profile profile;
  Variants variants;
  std::string error;
  CHECK_FALSE(parse_variants("hints-never, sideways", &profile, &variants, &error));
  CHECK(error == "SOFTCUDA_VARIANT: no variant 'sideways'");
}

TEST_CASE("granularity variants change the unit that is accepted") {
  CHECK(under("", granularity_units) == 32);
  CHECK(under("granularity-64k", granularity_units) == 1);
  CHECK(under("granularity-16m", granularity_units) == 0);  // 256, as an exit status
}

TEST_CASE("hints are granted as measured, never or always") {
  CHECK(under("", hints_granted) == 8);
  CHECK(under("hints-never", hints_granted) == 0);
  CHECK(under("hints-always", hints_granted) == 10);
}

TEST_CASE("handle values are reused at once or never") {
  CHECK(under("handles-reused", second_value_same) == 1);
  CHECK(under("handles-never-reused", second_value_same) == 0);
}

TEST_CASE("addresses descend") {
  CHECK(under("", descending) == 0);
  CHECK(under("addresses-descending", descending) == 1);
}

TEST_CASE("exported fds may be inherited") {
  CHECK(under("", cloexec) == FD_CLOEXEC);
  CHECK(under("fds-inherited", cloexec) == 0);
}

TEST_CASE("another error code stands where only an error is promised") {
  CHECK(under("", import_of_stranger) == 1);
  CHECK(under("other-errors", import_of_stranger) == 0);
}

TEST_CASE("a bad variant or profile is one error of cuInit") {
  auto never = [] { return 0; };
  CHECK(under("nonsense", never) == 99);
  setenv("SOFTCUDA_PROFILE", "/nowhere/profile", 1);
  CHECK(under("", never) == 99);
  unsetenv("SOFTCUDA_PROFILE");
}
