#include "resource.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "catch2_compat.hpp"
#include "driver.hpp"

namespace vmm {
namespace {

// A driver table that counts each call and fails the n-th of those that make something.
const Driver* real = nullptr;
std::map<std::string, int> calls;
int made = 0, fail_at = 0;
std::atomic<int> cleanup_failures{0};

template <auto Member, class F>
struct Counted;
template <auto Member, class... A>
struct Counted<Member, CUresult (*)(A...)> {
  static inline const char* name;
  static inline bool may_fail;
  static CUresult call(A... arguments) {
    ++calls[name];
    if (may_fail && ++made == fail_at) return CUDA_ERROR_ILLEGAL_STATE;
    return (real->*Member)(arguments...);
  }
};

class CountingDriver {
 public:
  CountingDriver() {
    REQUIRE(load_driver());
    real = exchange_driver(&table_);
    table_ = *real;
#define COUNT(function, fails)                                            \
  using C_##function = Counted<&Driver::function, decltype(Driver::function)>; \
  C_##function::name = #function;                                         \
  C_##function::may_fail = fails;                                         \
  table_.function = C_##function::call;
    COUNT(cuMemCreate, true)
    COUNT(cuMemImportFromShareableHandle, true)
    COUNT(cuMemGetAllocationPropertiesFromHandle, true)
    COUNT(cuMemExportToShareableHandle, true)
    COUNT(cuMemAddressReserve, true)
    COUNT(cuMemMap, true)
    COUNT(cuMemSetAccess, true)
    COUNT(cuMemUnmap, false)
    COUNT(cuMemAddressFree, false)
    COUNT(cuMemRelease, false)
#undef COUNT
    calls.clear();
    made = fail_at = 0;
  }
  ~CountingDriver() { exchange_driver(real); }
  static int live() {
    return calls["cuMemCreate"] + calls["cuMemImportFromShareableHandle"] - calls["cuMemRelease"] +
           calls["cuMemMap"] - calls["cuMemUnmap"] + calls["cuMemAddressReserve"] -
           calls["cuMemAddressFree"];
  }

 private:
  Driver table_;
};

std::set<std::string> fd_set() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    found.insert(entry.path().filename());
  return found;
}

ResourceHandle make_resource(VirtualMemoryResourceOptions options = {}, int device = 0) {
  auto made_resource = VirtualMemoryResource::create(device, std::move(options));
  if (!made_resource) FAIL(made_resource.error().message());
  return *made_resource;
}

template <class T>
T take(Result<T> result) {
  if (!result) FAIL(result.error().message());
  return std::move(*result);
}

const bool sink_installed = [] {
  set_cleanup_sink([](const char*, CUresult, int) noexcept { ++cleanup_failures; });
  return true;
}();

std::size_t granularity(const ResourceHandle& resource) { return take(resource->allocate(1))->size(); }

// Grows until both ways have been seen; a blocker right behind a buffer forces a move.
BufferHandle grow_moved(const ResourceHandle& resource, const VirtualMemoryBuffer& buffer,
                        std::size_t size) {
  CUdeviceptr blocker = 0;
  const CUdeviceptr end = take(buffer.pointer()) + buffer.size();
  const std::size_t g = granularity(resource);
  REQUIRE(driver().cuMemAddressReserve(&blocker, g, 0, end, 0) == CUDA_SUCCESS);
  auto grown = take(resource->modify_allocation(buffer, size));
  REQUIRE(driver().cuMemAddressFree(blocker, g) == CUDA_SUCCESS);
  return grown;
}

TEST_CASE("sizes are rounded up, and what cannot be is an error") {
  auto resource = make_resource();
  const std::size_t g = granularity(resource);
  CHECK(take(resource->allocate(g - 1))->size() == g);
  CHECK(take(resource->allocate(g))->size() == g);
  CHECK(take(resource->allocate(g + 1))->size() == 2 * g);
  auto huge = resource->allocate(std::numeric_limits<std::size_t>::max());
  REQUIRE_FALSE(huge);
  CHECK(huge.error().kind == ErrorKind::kValue);
}

TEST_CASE("an empty buffer makes no driver call, exports and imports") {
  auto resource = make_resource();
  CountingDriver counting;
  auto buffer = take(resource->allocate(0));
  auto descriptor = take(buffer->ipc_descriptor());
  CHECK(descriptor->size() == 0);
  CHECK(take(descriptor->fds()).empty());
  CHECK(take(resource->from_ipc_descriptor(*descriptor))->is_mapped());
  CHECK(calls.empty());
}

TEST_CASE("an alias makes no driver call; a grow in place and a move keep the bytes") {
  auto resource = make_resource();
  const std::size_t g = granularity(resource);
  auto buffer = take(resource->allocate(g));
  CHECK(buffer->write(0, "bytes", 5));
  {
    CountingDriver counting;
    auto alias = take(resource->modify_allocation(*buffer, g / 2));
    CHECK(alias->size() == g);
    CHECK(calls.empty());
  }
  auto grown = take(resource->modify_allocation(*buffer, 3 * g));
  auto moved = grow_moved(resource, *grown, 4 * g);
  CHECK(take(moved->pointer()) != take(grown->pointer()));
  char bytes[5] = {};
  CHECK(moved->read(0, bytes, 5));
  CHECK(std::string(bytes, 5) == "bytes");
  CHECK(moved->write(0, "BYTES", 5));
  buffer->close();
  CHECK(grown->read(0, bytes, 5));
  CHECK(std::string(bytes, 5) == "BYTES");
  CHECK(take(take(moved->ipc_descriptor())->fds()).size() >= 3);
  CHECK_FALSE(buffer->read(0, bytes, 1));
}

TEST_CASE("an import sees the bytes, and it and what grows from it are never exported again") {
  auto resource = make_resource();
  const std::size_t g = granularity(resource);
  auto buffer = take(resource->allocate(g));
  auto before = fd_set();
  auto descriptor = take(buffer->ipc_descriptor());
  CHECK(fd_set().size() == before.size() + 1);
  auto imported = take(resource->from_ipc_descriptor(*descriptor));
  descriptor->close();
  CHECK(fd_set() == before);
  CHECK(buffer->write(g - 1, "x", 1));
  char byte = 0;
  CHECK(imported->read(g - 1, &byte, 1));
  CHECK(byte == 'x');
  auto grown = take(resource->modify_allocation(*imported, 2 * g));
  auto moved = grow_moved(resource, *grown, 3 * g);
  CountingDriver counting;
  for (const auto& derived : {imported, grown, moved}) {
    auto refused = derived->ipc_descriptor();
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::kRuntime);
    CHECK(refused.error().message().find("forward the descriptor") != std::string::npos);
  }
  CHECK(calls.empty());
  CHECK(take(resource->from_ipc_descriptor(*take(buffer->ipc_descriptor())))->is_mapped());
  CHECK_FALSE(resource->from_ipc_descriptor(*descriptor));
}

TEST_CASE("configurations that cannot share say so") {
  CHECK_FALSE(VirtualMemoryResource::create(0, {.location_type = CU_MEM_LOCATION_TYPE_HOST}));
  auto plain = make_resource({.handle_type = CU_MEM_HANDLE_TYPE_NONE});
  auto sharing = make_resource();
  CHECK_FALSE(plain->is_ipc_enabled());
  auto buffer = take(plain->allocate(1));
  CHECK(buffer->ipc_descriptor().error().kind == ErrorKind::kRuntime);
  VirtualMemoryResourceOptions other;
  CHECK(plain->modify_allocation(*buffer, 1, &other).error().kind == ErrorKind::kValue);
  CHECK(sharing->modify_allocation(*buffer, 1).error().kind == ErrorKind::kType);
  auto descriptor = take(take(sharing->allocate(1))->ipc_descriptor());
  CHECK_FALSE(plain->from_ipc_descriptor(*descriptor));
}

TEST_CASE("a malformed descriptor is a ValueError before any driver call") {
  auto resource = make_resource();
  auto genuine = take(take(resource->allocate(1))->ipc_descriptor());
  const std::uint64_t g = genuine->size();
  const auto handles = take(genuine->handles());
  const auto posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  auto closed = std::make_shared<IPCAllocationHandle>(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  closed->close();
  using Descriptor = VirtualMemoryIPCBufferDescriptor;
  CountingDriver counting;
  auto refused = [&](const Descriptor& bad) {
    auto result = resource->from_ipc_descriptor(bad);
    return !result && result.error().kind == ErrorKind::kValue && calls.empty();
  };
  CHECK(refused(Descriptor(CU_MEM_HANDLE_TYPE_FABRIC, g, {g}, handles)));
  CHECK(refused(Descriptor(posix, g, {g, g}, handles)));
  CHECK(refused(Descriptor(posix, g, {0}, handles)));
  CHECK(refused(Descriptor(posix, g, {g + 1}, handles)));
  CHECK(refused(Descriptor(posix, g + 1, {g}, handles)));
  CHECK(refused(Descriptor(posix, g, {}, {})));
  CHECK(refused(Descriptor(posix, g, {g}, {closed})));
  CHECK(resource->from_ipc_descriptor(*genuine));
  auto wrong = resource->from_ipc_descriptor(Descriptor(posix, 2 * g, {2 * g}, handles));
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message().find("mapping chunk 1 of 1 (posix_fd)") != std::string::npos);
}

TEST_CASE("the failure of any driver call surfaces and leaves everything as it was") {
  auto resource = make_resource();
  const std::size_t g = granularity(resource);
  auto buffer = take(resource->modify_allocation(*take(resource->allocate(g)), 3 * g));
  auto descriptor = take(buffer->ipc_descriptor());
  const auto before = fd_set();
  CUdeviceptr blocker = 0;
  driver().cuMemAddressReserve(&blocker, g, 0, take(buffer->pointer()) + buffer->size(), 0);
  auto sweep = [&](auto operation) {
    for (int n = 1;; ++n) {
      CountingDriver counting;
      fail_at = n;
      const auto error = operation();
      if (!error) break;
      CHECK(error->cuda_result == CUDA_ERROR_ILLEGAL_STATE);
      int failed = calls["cuMemCreate"] + calls["cuMemImportFromShareableHandle"] +
                   calls["cuMemMap"] + calls["cuMemAddressReserve"];
      int undone = calls["cuMemRelease"] + calls["cuMemUnmap"] + calls["cuMemAddressFree"];
      CHECK((failed == undone || failed == undone + 1));
      CHECK(fd_set() == before);
      REQUIRE(n < 40);
    }
  };
  auto error_of = [](const auto& result) {
    return result ? std::nullopt : std::optional<Error>(result.error());
  };
  sweep([&] { return error_of(resource->allocate(g)); });
  sweep([&] { return error_of(resource->modify_allocation(*buffer, 5 * g)); });
  sweep([&] { return error_of(buffer->ipc_descriptor()); });
  sweep([&] { return error_of(resource->from_ipc_descriptor(*descriptor)); });
  if (blocker) driver().cuMemAddressFree(blocker, g);
  CHECK(cleanup_failures == 0);
}

TEST_CASE("everything is undone exactly once") {
  auto resource = make_resource();
  const std::size_t g = granularity(resource);
  CountingDriver counting;
  {
    auto buffer = take(resource->allocate(g));
    auto grown = take(resource->modify_allocation(*buffer, 2 * g));
    auto moved = grow_moved(resource, *grown, 3 * g);
    auto imported = take(resource->from_ipc_descriptor(*take(moved->ipc_descriptor())));
    buffer->close();
    buffer->close();
  }
  CHECK(CountingDriver::live() == 0);
  CHECK(cleanup_failures == 0);
}

TEST_CASE("export at the fd limit says so and works again later") {
  auto resource = make_resource();
  auto buffer = take(resource->allocate(1));
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  struct rlimit low = {3, limit.rlim_max};
  while (::fcntl(static_cast<int>(low.rlim_cur), F_GETFD) >= 0) ++low.rlim_cur;
  ::setrlimit(RLIMIT_NOFILE, &low);
  auto refused = buffer->ipc_descriptor();
  ::setrlimit(RLIMIT_NOFILE, &limit);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().system_errno == EMFILE);
  CHECK(refused.error().message().find("file descriptor limit") != std::string::npos);
  CHECK(buffer->ipc_descriptor());
}

TEST_CASE("threads export, grow and close one buffer at once") {
  auto resource = make_resource();
  const auto before = fd_set();
  for (int round = 0; round < 20; ++round) {
    auto buffer = take(resource->allocate(1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        if (t == 7) return buffer->close();
        if (auto descriptor = buffer->ipc_descriptor())
          (void)resource->from_ipc_descriptor(**descriptor);
        (void)resource->modify_allocation(*buffer, 2 * buffer->size());
      });
    for (auto& thread : threads) thread.join();
  }
  CHECK(fd_set() == before);
  CHECK(cleanup_failures == 0);
}

}  // namespace
}  // namespace vmm
