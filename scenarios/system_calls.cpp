// Every system call that an operation makes on descriptors is failed in turn, until a run has none
// left to fail.
#include <cerrno>
#include <cstring>

#include "shares.hpp"

using namespace cts;

namespace {

constexpr int kMostCalls = 100;  // more system calls than any operation here makes

struct Failure {
  tap::FdCall call;
  int error_number;
};
const std::vector<Failure> kFailures{
    {tap::FdCall::dup, EMFILE},   {tap::FdCall::dup, EBADF},   {tap::FdCall::dup, EINTR},
    {tap::FdCall::fcntl, EBADF},  {tap::FdCall::close, EINTR}, {tap::FdCall::close, EIO},
    {tap::FdCall::sendmsg, ENOMEM}, {tap::FdCall::recvmsg, ENOMEM}};

// An operation that makes an object, and undoes it by dropping that.
struct Operation {
  std::string name;
  std::string clauses;
  bool raises_os_error;  // what a failed dup or fcntl of it surfaces as
  std::function<Answer<int>()> run;
};

template <class T>
Answer<int> number(const Answer<T>& answer) {
  return answer.map([](const T& made) { return made.id; });
}

// What has to be as it was, whatever failed.
struct State {
  FdSet fds;
  std::uint64_t free;
  tap::Held held;
};

State state_of(Scenario& s, Worker& worker) {
  return {worker.fds(), s.free_memory(), s.held(worker)};
}

void check_state(Scenario& s, const std::string& clauses, Worker& worker, const State& before,
                 const std::string& when) {
  s.check_fds(clauses, worker, before.fds, when);
  s.check_free_memory(clauses, before.free, when);
  s.check_held(clauses, worker, before.held, when);
}

// Fails call 1, 2, 3 ... of the operation and of its undoing. Returns how many were failed.
int sweep(Scenario& s, Worker& worker, const Operation& operation, const Failure& failure) {
  tap::FdCalls& calls = s.fd_calls(worker);
  for (int nth = 1; nth <= kMostCalls; ++nth) {
    const auto in_case = s.in_case(operation.name + ", " + std::string(name_of(failure.call)) + " " +
                                   std::to_string(nth) + " fails with " +
                                   strerrorname_np(failure.error_number));
    const State before = state_of(s, worker);
    calls.fail(failure.call, static_cast<std::uint64_t>(nth), failure.error_number);
    const auto answer = operation.run();
    const bool undoing_is_left = answer.ok();
    if (undoing_is_left) worker.drop(answer.value()).value();
    const bool fired = calls.clear();
    check_state(s, operation.clauses, worker, before, "afterwards");
    if (!fired) {
      s.check(operation.clauses, answer.ok(), "the operation works when nothing fails");
      return nth - 1;
    }
    const bool may_go_on = failure.call == tap::FdCall::close || failure.error_number == EINTR;
    if (!answer.ok() && operation.raises_os_error) {
      s.check_error(operation.clauses, answer, "OSError");
      s.check_equal(operation.clauses, "errno", answer.error().error_number, failure.error_number);
    }
    s.check(operation.clauses, !answer.ok() || may_go_on, "the failure surfaces");
    const auto again = operation.run();
    s.check(operation.clauses, again.ok(), "the same operation then succeeds");
    if (again.ok()) worker.drop(again.value()).value();
    check_state(s, operation.clauses, worker, before, "after it succeeded and was undone");
  }
  s.check(operation.clauses, false, "the sweep ends");
  return kMostCalls;
}

void sweep_all(Scenario& s, Worker& worker, const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    int points = 0;
    for (const Failure& failure : kFailures) points += sweep(s, worker, operation, failure);
    s.check(operation.clauses, points > 0, operation.name + " makes system calls");
    s.note(operation.name + ": " + std::to_string(points) + " failure points");
  }
}

}  // namespace

VMMCTS_SCENARIO("rawfd", "system calls: each one of from_fds fails in turn",
                "[ERR-02][RAW-10][RAW-11][RAW-17]") {
  Worker& worker = s.worker("importer");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2, 1});
  worker.fill(buffer, 221);
  const Descriptor exported = worker.export_descriptor(buffer).value();
  sweep_all(s, worker,
            {{"from_fds", "ERR-02 RAW-11 RAW-17", true, [&] {
                return number(worker.from_fds(exported.fds, exported.sizes));
              }}});
  s.check_bytes("ERR-02", worker, worker.import(resource, exported).value(), 221,
                "imported from the caller's descriptors");
  s.check_error("RAW-10", worker.from_fds({1 << 20}, {granule(worker, resource)}), "OSError");
}

VMMCTS_SCENARIO("core", "system calls: each one of export and release fails in turn",
                "[ERR-02][DESC-10][DESC-12]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2, 1});
  worker.fill(buffer, 222);
  sweep_all(s, worker, {{"export", "ERR-02 DESC-10 DESC-12", false, [&] {
                           return number(worker.export_descriptor(buffer));
                         }}});
  s.check_bytes("ERR-02", worker, buffer, 222, "at the end");
}

VMMCTS_SCENARIO("core", "system calls: canary of the failures", "") {
  Worker& worker = s.worker("exporter");
  const int fd = worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  s.fd_calls(worker).fail(tap::FdCall::close, 1, EIO);
  const auto closed = worker.call("close_fd", {{"fd", fd}});
  s.check("", s.fd_calls(worker).clear(), "a close of the worker is counted");
  s.check("", !closed.ok(), "and its failure reaches the worker");
}
