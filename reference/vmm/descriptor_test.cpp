#include "descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "catch2_compat.hpp"

namespace vmm {
namespace {

using Item = std::variant<BorrowedFd, IPCHandle>;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

UniqueFd open_null() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

auto build(std::vector<Item> items, std::vector<std::int64_t> sizes,
           std::optional<std::int64_t> size = std::nullopt, int type = 1) {
  return VirtualMemoryIPCBufferDescriptor::from_fds(
      items, sizes, static_cast<CUmemAllocationHandleType>(type), size);
}

TEST_CASE("from_fds duplicates integers and shares handles") {
  UniqueFd mine = open_null();
  auto shared = std::make_shared<IPCAllocationHandle>(open_null());
  auto descriptor = build({mine.borrow(), shared}, {10, 20});
  REQUIRE(descriptor);
  CHECK((*descriptor)->size() == 30);
  const auto fds = *(*descriptor)->fds();
  CHECK(fds[0] != mine.borrow().number);
  CHECK((::fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(fds[1] == *shared->fd());
  (*descriptor)->close();
  (*descriptor)->close();
  CHECK_FALSE(is_open(fds[0]));
  CHECK(is_open(fds[1]));
  CHECK(is_open(mine.borrow().number));
  CHECK((*descriptor)->fds().error().kind == ErrorKind::kRuntime);
}

TEST_CASE("from_fds refuses what is wrong by the kind of error that the rule names") {
  UniqueFd mine = open_null();
  auto closed = std::make_shared<IPCAllocationHandle>(open_null());
  closed->close();
  const BorrowedFd fd = mine.borrow();
  CHECK(build({fd}, {1, 2}).error().kind == ErrorKind::kValue);
  CHECK(build({fd}, {0}).error().kind == ErrorKind::kValue);
  CHECK(build({fd}, {-1}).error().kind == ErrorKind::kValue);
  CHECK(build({fd}, {1}, 2).error().kind == ErrorKind::kValue);
  CHECK(build({fd}, {1}, 0).error().kind == ErrorKind::kValue);
  CHECK(build({fd}, {1}, std::nullopt, 0).error().kind == ErrorKind::kValue);
  CHECK(build({fd, closed}, {1, 1}).error().kind == ErrorKind::kRuntime);
  auto bad = build({fd, BorrowedFd{-1}}, {1, 1});
  CHECK(bad.error().kind == ErrorKind::kOs);
  CHECK(bad.error().system_errno == EBADF);
  CHECK(is_open(fd.number));
}

TEST_CASE("a close behind the back is reported and does not keep the others open") {
  static int reported = 0;
  auto before = set_cleanup_sink([](const char*, CUresult, int error) noexcept {
    reported += error == EBADF;
  });
  UniqueFd mine = open_null();
  auto descriptor = build({mine.borrow(), mine.borrow(), mine.borrow()}, {1, 1, 1});
  const auto fds = *(*descriptor)->fds();
  ::close(fds[1]);
  (*descriptor)->close();
  set_cleanup_sink(before);
  CHECK(reported == 1);
  CHECK_FALSE(is_open(fds[0]));
  CHECK_FALSE(is_open(fds[2]));
}

TEST_CASE("a handle that closes stays open for who uses it") {
  IPCAllocationHandle handle(open_null());
  const int fd = *handle.fd();
  auto lease = handle.lease();
  handle.close();
  CHECK(is_open(fd));
  CHECK_FALSE(handle.fd());
  lease.reset();
  CHECK_FALSE(is_open(fd));
}

}  // namespace
}  // namespace vmm
