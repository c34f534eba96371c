// Every system call that an operation makes on descriptors is failed in turn, until a run has none
// left to fail.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shares.hpp"
#include "transports.hpp"

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
  std::vector<std::string> errors;  // kinds that a failure may surface as; OSError alone: with errno
  std::function<Answer<int>()> run;
  bool in_background = false;  // another thread of the worker closes a part of what is left
};
const std::vector<std::string> kOsError{"OSError"};
const std::vector<std::string> kOsOrRuntimeError{"OSError", "RuntimeError"};

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

void check_state(Scenario& s, const Operation& operation, Worker& worker, const State& before,
                 const std::string& when) {
  if (operation.in_background) {
    s.check_fds_soon(operation.clauses, worker, before.fds, when);
  } else {
    s.check_fds(operation.clauses, worker, before.fds, when);
  }
  s.check_free_memory(operation.clauses, before.free, when);
  s.check_held(operation.clauses, worker, before.held, when);
}

// What went wrong is told as an error of a kind that the operation has.
void check_error(Scenario& s, const Operation& operation, const Error& error, int error_number) {
  const auto& kinds = operation.errors;
  s.check(operation.clauses, std::find(kinds.begin(), kinds.end(), error.kind) != kinds.end(),
          "the failure surfaces as a clear error, not as " + error.to_string());
  if (kinds == kOsError) {
    s.check_equal(operation.clauses, "errno", error.error_number, error_number);
  }
}

// Fails call 1, 2, 3 ... of the operation and of its undoing. Returns how many were failed.
int sweep(Scenario& s, Worker& worker, const Operation& operation, const Failure& failure) {
  tap::FdCalls& calls = s.fd_calls(worker);
  const State before = state_of(s, worker);
  for (int nth = 1; nth <= kMostCalls; ++nth) {
    const auto in_case = s.in_case(operation.name + ", " + std::string(name_of(failure.call)) + " " +
                                   std::to_string(nth) + " fails with " +
                                   strerrorname_np(failure.error_number));
    calls.fail(failure.call, static_cast<std::uint64_t>(nth), failure.error_number);
    const auto answer = operation.run();
    const bool undoing_is_left = answer.ok();
    if (undoing_is_left) worker.drop(answer.value()).value();
    const tap::FdCalls::Outcome outcome = calls.clear();
    s.check(operation.clauses, !outcome.closed_again,
            "a number is not closed again after close failed: it may be another file's by then");
    check_state(s, operation, worker, before, "afterwards");
    if (s.failed()) return nth;  // what is not as before would be told, and waited for, each time
    if (!outcome.fired) {
      s.check(operation.clauses, answer.ok(), "the operation works when nothing fails");
      return nth - 1;
    }
    const bool may_go_on = failure.call == tap::FdCall::close || failure.error_number == EINTR;
    if (!answer.ok()) check_error(s, operation, answer.error(), failure.error_number);
    s.check(operation.clauses, !answer.ok() || may_go_on, "the failure surfaces");
    const auto again = operation.run();
    s.check(operation.clauses, again.ok(), "the same operation then succeeds");
    if (again.ok()) worker.drop(again.value()).value();
    check_state(s, operation, worker, before, "after it succeeded and was undone");
  }
  s.check(operation.clauses, false, "the sweep ends");
  return kMostCalls;
}

void sweep_all(Scenario& s, Worker& worker, const std::vector<Operation>& operations) {
  int all = 0;  // one of them may well make no system call
  for (const Operation& operation : operations) {
    int points = 0;
    for (const Failure& failure : kFailures) points += sweep(s, worker, operation, failure);
    s.note(operation.name + ": " + std::to_string(points) + " failure points");
    all += points;
  }
  s.check("ERR-02", all > 0, "system calls were failed");
}

}  // namespace

VMMCTS_SCENARIO("rawfd", "system calls: each one of from_fds fails in turn",
                "[ERR-02][RAW-10][RAW-11][RAW-17]") {
  Worker& worker = s.worker("importer");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2, 1});
  worker.fill(buffer, 221);
  const Descriptor exported = worker.export_descriptor(buffer).value();
  const Json first{{"handle", worker.handle(exported, 0).value().id}};
  const Json last{{"handle", worker.handle(exported, 2).value().id}};
  const std::string clauses = "ERR-02 RAW-11 RAW-17";
  sweep_all(s, worker,
            {{"from_fds of integers", clauses, kOsError,
              [&] { return number(worker.from_fds(exported.fds, exported.sizes)); }},
             {"from_fds of an integer between handles", clauses, kOsError, [&] {
                return number(worker.from_fds({first, exported.fds[1], last}, exported.sizes));
              }}});
  s.check_bytes("ERR-02", worker, worker.import(resource, exported).value(), 221,
                "imported from the caller's descriptors");
  s.check_error("RAW-10", worker.from_fds({1 << 20}, {granule(worker, resource)}), "OSError");
}

VMMCTS_SCENARIO("core", "system calls: each one of export and release and import fails in turn",
                "[ERR-02][DESC-10][DESC-12]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2, 1});
  worker.fill(buffer, 222);
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  const std::string clauses = "ERR-02 DESC-10 DESC-12";
  sweep_all(s, worker,
            {{"export", clauses, kOsOrRuntimeError,
              [&] { return number(worker.export_descriptor(buffer)); }},
             {"export and close", clauses, kOsOrRuntimeError,
              [&] {
                const auto made = worker.export_descriptor(buffer);
                if (made.ok()) worker.close(made.value().id);  // it may tell that a close failed
                return number(made);
              }},
             {"import", "ERR-02", kOsOrRuntimeError,
              [&] { return number(worker.import(resource, descriptor)); }}});
  s.check_bytes("ERR-02", worker, buffer, 222, "at the end");
}

VMMCTS_SCENARIO("python", "system calls: each one of a way through a Pipe fails in turn", "[ERR-02]") {
  Worker& worker = s.worker("sender");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2, 1});
  worker.fill(buffer, 223);
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  const auto [here, there] = make_pipe(worker, "spawn");
  // Both ends are in the worker, so that what both do is failed.
  const auto through_pipe = [&, here = here, there = there](int object, auto next) {
    return [&worker, here, there, object, next]() -> Answer<int> {
      const auto sent = worker.call("send", {{"connection", here}, {"object", object}});
      if (!sent.ok()) return sent.map([](const Json&) { return 0; });
      return number(next(worker, "recv", there));
    };
  };
  // Who waits for what could not be sent sees the connection end.
  const std::vector<std::string> errors{"OSError", "RuntimeError", "EOFError"};
  sweep_all(s, worker,
            {{"a descriptor through a Pipe", "ERR-02", errors,
              through_pipe(descriptor.id, next_descriptor), true},
             {"a buffer through a Pipe", "ERR-02", errors, through_pipe(buffer.id, next_buffer),
              true}});
  s.check_bytes("ERR-02", worker, buffer, 223, "at the end");
}

VMMCTS_SCENARIO("core", "system calls: canary of the failures", "") {
  Worker& worker = s.worker("exporter");
  tap::FdCalls& calls = s.fd_calls(worker);
  const int fd = worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  calls.fail(tap::FdCall::close, 1, EIO);
  s.check("", !worker.call("close_fd", {{"fd", fd}}).ok(), "a failure reaches the worker");
  s.check("", calls.clear().fired, "a close of the worker is counted");
  const int other = worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  calls.fail(tap::FdCall::close, 1, EINTR);
  worker.call("close_fd", {{"fd", other}});
  worker.call("close_fd", {{"fd", other}});
  s.check("", calls.clear().closed_again, "a second close of the number is noticed");
}
