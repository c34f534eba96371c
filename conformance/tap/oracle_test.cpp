// The oracle on traces that are right, and on traces with one thing wrong.
#include "tap/oracle.hpp"

#include <catch2_compat.hpp>
#include <initializer_list>

using tap::Call;
using tap::Held;
using tap::Rule;

namespace {

constexpr std::uint64_t kHandle = 0x100;
constexpr std::uint64_t kOther = 0x200;
constexpr std::uint64_t kAt = 0x7000'0000;
constexpr std::uint64_t kSize = 0x20'0000;

// Calls of one process, one after the other.
class Trace {
 public:
  Trace& call(std::string_view name, std::initializer_list<std::uint64_t> arguments,
              int result = 0) {
    Call made;
    made.sequence = calls_.size() + 1;
    made.name = name;
    std::copy(arguments.begin(), arguments.end(), made.arguments.begin());
    made.result = result;
    made.pid = pid_;
    made.start_ns = made.sequence * 100;
    made.duration_ns = 10;
    calls_.push_back(made);
    return *this;
  }
  Trace& create(std::uint64_t handle = kHandle) { return call("cuMemCreate", {handle, kSize}); }
  Trace& release(std::uint64_t handle = kHandle, int result = 0) {
    return call("cuMemRelease", {handle}, result);
  }
  Trace& reserve(std::uint64_t size = kSize) { return call("cuMemAddressReserve", {kAt, size}); }
  Trace& free(std::uint64_t size = kSize) { return call("cuMemAddressFree", {kAt, size}); }
  Trace& map(std::uint64_t handle = kHandle, std::uint64_t offset = 0) {
    return call("cuMemMap", {kAt + offset, kSize, 0, handle});
  }
  Trace& unmap(std::uint64_t offset = 0, std::uint64_t size = kSize) {
    return call("cuMemUnmap", {kAt + offset, size});
  }
  Trace& made() { return create().reserve().map(); }
  Trace& undone() { return unmap().release().free(); }
  Trace& injected() {
    calls_.back().injected = true;
    calls_.back().result = 999;
    return *this;
  }
  Trace& of(pid_t pid) {
    pid_ = pid;
    return *this;
  }
  std::vector<Call>& calls() { return calls_; }

  std::vector<Rule> rules() const {
    tap::Oracle oracle;
    oracle.enter(calls_);
    std::vector<Rule> found;
    for (const tap::Finding& finding : oracle.take_findings()) found.push_back(finding.rule);
    for (const tap::Finding& finding : oracle.leaks()) found.push_back(finding.rule);
    return found;
  }

 private:
  pid_t pid_ = 1;
  std::vector<Call> calls_;
};

using Rules = std::vector<Rule>;

}  // namespace

TEST_CASE("right traces have no findings") {
  CHECK(Trace{}.rules().empty());
  CHECK(Trace{}.made().undone().rules().empty());
  CHECK(Trace{}.made().undone().made().undone().rules().empty());
  // Two references of one handle, and two allocations side by side that are unmapped in one go.
  CHECK(Trace{}.made().call("cuMemRetainAllocationHandle", {kHandle, kAt}).release().undone()
            .rules().empty());
  CHECK(Trace{}.create().create(kOther).reserve(2 * kSize).map().map(kOther, kSize)
            .unmap(0, 2 * kSize).release().release(kOther).free(2 * kSize).rules().empty());
  CHECK(Trace{}.call("cuMemImportFromShareableHandle", {kHandle}).reserve().map().undone()
            .rules().empty());
  CHECK(Trace{}.call("cuMemPoolCreate", {5}).call("cuMemPoolDestroy", {5}).rules().empty());
}

TEST_CASE("calls that failed change nothing") {
  CHECK(Trace{}.call("cuMemCreate", {0, kSize}, 2).rules().empty());
  CHECK(Trace{}.made().call("cuMemUnmap", {kAt, kSize}, 304).undone().rules().empty());
  CHECK(Trace{}.made().release(kHandle, 304).undone().rules().empty());
}

TEST_CASE("processes have their own handles") {
  CHECK(Trace{}.of(1).made().of(2).made().of(1).undone().of(2).undone().rules().empty());
  CHECK(Trace{}.of(1).made().undone().of(2).release(kHandle, 1).rules() ==
        Rules{Rule::undone_twice});
}

TEST_CASE("a release too many") {
  CHECK(Trace{}.made().undone().release().rules() == Rules{Rule::undone_twice});
  CHECK(Trace{}.release(kHandle, 1).rules() == Rules{Rule::undone_twice});
}

TEST_CASE("a handle of a call that is not traced is released as the driver allows") {
  CHECK(Trace{}.release().rules().empty());
}

TEST_CASE("a dead handle is exported or mapped") {
  CHECK(Trace{}.create().release().call("cuMemExportToShareableHandle", {3, kHandle}, 1).rules() ==
        Rules{Rule::dead_handle});
  CHECK(Trace{}.create().release().reserve().map().unmap().free().rules() ==
        Rules{Rule::dead_handle});
}

TEST_CASE("a driver that dies of a dead handle is told of too") {
  Trace trace;
  trace.create().release().call("cuMemExportToShareableHandle", {0, kHandle}, Call::kUnfinished);
  CHECK(trace.rules() == Rules{Rule::dead_handle});
  CHECK(Trace{}.call("cuMemCreate", {0, kSize}, Call::kUnfinished).rules().empty());
}

TEST_CASE("a mapping is unmapped twice, in part, or never was") {
  CHECK(Trace{}.made().unmap().undone().rules() == Rules{Rule::undone_twice});
  CHECK(Trace{}.made().unmap(0, kSize / 2).undone().rules() == Rules{Rule::wrong_range});
  CHECK(Trace{}.made().unmap(kSize / 2, kSize / 2).undone().rules() == Rules{Rule::wrong_range});
  CHECK(Trace{}.reserve().unmap().free().rules() == Rules{Rule::undone_twice});
}

TEST_CASE("addresses are freed twice, in part, or with memory in them") {
  CHECK(Trace{}.made().undone().free().rules() == Rules{Rule::undone_twice});
  CHECK(Trace{}.made().unmap().free(kSize / 2).release().free().rules() ==
        Rules{Rule::wrong_range});
  CHECK(Trace{}.made().call("cuMemAddressFree", {kAt, kSize}, 1).undone().rules() ==
        Rules{Rule::mapped_when_freed});
}

TEST_CASE("the last release comes before the unmap") {
  CHECK(Trace{}.made().release().unmap().free().rules() == Rules{Rule::order});
}

TEST_CASE("what is left is told with the call that made it") {
  CHECK(Trace{}.create().rules() == Rules{Rule::leak});
  CHECK(Trace{}.reserve().rules() == Rules{Rule::leak});
  CHECK(Trace{}.made().release().rules() == Rules{Rule::order, Rule::leak, Rule::leak});
  CHECK(Trace{}.call("cuMemPoolCreate", {5}).rules() == Rules{Rule::leak});
  tap::Oracle oracle;
  Trace trace;
  oracle.enter(trace.create(kOther).create(kHandle).release(kOther).calls());
  REQUIRE(oracle.leaks().size() == 1);
  CHECK(oracle.leaks()[0].call.sequence == 2);
  CHECK(oracle.held(1) == Held{1, 0, 0, 0});
}

TEST_CASE("plain memory is given back twice when the driver says so") {
  CHECK(Trace{}.call("cuMemAlloc", {5}).call("cuMemFree", {5}).call("cuMemFree", {5}, 1).rules() ==
        Rules{Rule::undone_twice});
  CHECK(Trace{}.call("cuMemFree", {5}).rules().empty());
}

TEST_CASE("an undoing call that was made to fail excuses what it left") {
  CHECK(Trace{}.made().unmap().injected().release().free().rules().empty());
  CHECK(Trace{}.made().unmap().release().injected().free().rules().empty());
  CHECK(Trace{}.made().unmap().release().free().injected().rules().empty());
  // The implementation may try again.
  CHECK(Trace{}.made().unmap().release().injected().release().free().rules().empty());
}

TEST_CASE("a descriptor that is open at the end") {
  CHECK(Trace{}.call(tap::kDescriptorOpenAtExit, {7}).rules() == Rules{Rule::fd_open});
}

TEST_CASE("a value that the driver gives out again at once belongs to the later call") {
  // Two threads: the create began before the release ended, and took its handle.
  Trace trace;
  trace.create().create().release().release();
  auto& calls = trace.calls();
  calls[1].start_ns = 150;
  calls[1].duration_ns = 500;
  calls[2].start_ns = 200;
  calls[2].duration_ns = 300;
  calls[3].start_ns = 800;
  CHECK(trace.rules().empty());
}
