// Every driver call that an operation makes is failed in turn, until a run has none left to fail.
#include <optional>

#include "shares.hpp"

using namespace cts;

namespace {

// CUresult codes that a driver may answer with.
const std::vector<int> kCodes{2 /* OUT_OF_MEMORY */, 304 /* OPERATING_SYSTEM */, 999 /* UNKNOWN */};

constexpr int kMostCalls = 100;  // more driver calls than any operation here makes

// What an operation works on; prepared once for each failed call.
struct Fixture {
  Worker& worker;
  Resource resource;
  Buffer input;           // what must be unchanged by a failure
  std::uint64_t seed;     // its pattern
  Descriptor descriptor;  // of the input
};

struct Operation {
  std::string name;
  std::string clauses;
  std::function<Answer<int>(Fixture&)> run;  // the number of what it made
};

template <class T>
Answer<int> number(const Answer<T>& answer) {
  return answer.map([](const T& made) { return made.id; });
}

std::vector<Operation> operations() {
  return {
      {"allocate", "ERR-01 ALLOC-03",
       [](Fixture& f) { return number(f.worker.allocate(f.resource, 1)); }},
      {"grow", "ERR-01 GROW-07",
       [](Fixture& f) {
         return number(f.worker.modify(f.resource, f.input, f.input.size + 1));
       }},
      {"export", "ERR-01 DESC-11",
       [](Fixture& f) { return number(f.worker.export_descriptor(f.input)); }},
      {"import", "ERR-01 IMP-08",
       [](Fixture& f) { return number(f.worker.import(f.resource, f.descriptor)); }},
      {"alias", "ERR-01",
       [](Fixture& f) { return number(f.worker.modify(f.resource, f.input, 1)); }},
  };
}

// Fails call 1, 2, 3 ... of the operation with `code`. Returns the number of calls failed.
int sweep(Scenario& s, Fixture& fixture, const Operation& operation, int code) {
  Worker& worker = fixture.worker;
  for (int nth = 1; nth <= kMostCalls; ++nth) {
    const auto in_case = s.in_case(operation.name + ", call " + std::to_string(nth) +
                                   " fails with " + std::to_string(code));
    const FdSet before = worker.fds();
    const std::uint64_t free = s.free_memory();
    const tap::Held held = s.held(worker);
    worker.call_log()->inject({.call = "*", .nth = static_cast<std::uint64_t>(nth),
                               .action = tap::Action::fail, .code = code});
    const auto failed = operation.run(fixture);
    const bool fired = worker.call_log()->injections_fired() > 0;
    worker.call_log()->clear_injections();
    if (!fired) {
      s.check(operation.clauses, failed.ok(), "the operation works when nothing fails");
      if (failed.ok()) worker.drop(failed.value()).value();
      return nth - 1;
    }
    if (failed.ok()) {
      // Allowed only where another way led to the result; it must then be complete.
      s.check(operation.clauses, operation.name.starts_with("grow"),
              "a failed driver call surfaces");
      worker.drop(failed.value()).value();
    } else {
      s.check_error(operation.clauses, failed, "RuntimeError");
      s.check_equal(operation.clauses, "the driver's status", failed.error().cuda, code);
    }
    s.check_fds(operation.clauses, worker, before, "after the failure");
    s.check_free_memory(operation.clauses, free, "after the failure");
    s.check_held(operation.clauses, worker, held, "after the failure");
    s.check_bytes(operation.clauses, worker, fixture.input, fixture.seed, "after the failure");
    const Buffer same = worker.info(fixture.input).value();
    s.check(operation.clauses,
            same.pointer == fixture.input.pointer && same.size == fixture.input.size,
            "the input keeps pointer and size");
    const auto again = operation.run(fixture);
    s.check(operation.clauses, again.ok(), "the same operation then succeeds");
    if (again.ok()) worker.drop(again.value()).value();
    s.check_free_memory(operation.clauses, free, "after the operation succeeded and was undone");
  }
  s.check(operation.clauses, false, "the sweep ends");
  return kMostCalls;
}

}  // namespace

VMMCTS_SCENARIO("core", "failure sweep: each driver call of each operation fails in turn",
                "[ERR-01][ALLOC-03][GROW-07][DESC-11][IMP-08]") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  for (const Layout& layout : std::vector<Layout>{{1}, {1, 2, 1}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer input = allocate_chunks(worker, resource, layout);
    worker.fill(input, 191);
    Fixture fixture{worker, resource, input, 191, worker.export_descriptor(input).value()};
    // What stands above the input sends its grows elsewhere: both ways to grow are swept.
    std::optional<Buffer> above;
    for (const bool blocked : {false, true}) {
      if (blocked) above = worker.modify(resource, input, input.size + 1).value();
      const auto way = s.in_case(blocked ? "blocked above" : "free above");
      for (const Operation& operation : operations()) {
        int points = 0;
        for (const int code : kCodes) points += sweep(s, fixture, operation, code);
        // An alias may do without.
        s.check(operation.clauses, points > 0 || operation.name == "alias",
                operation.name + " makes driver calls");
        s.note(operation.name + " on " + to_string(layout) +
               (blocked ? ", blocked above: " : ": ") + std::to_string(points) +
               " failure points");
      }
    }
    for (const int id : {above->id, fixture.descriptor.id, input.id}) worker.drop(id).value();
  }
}

VMMCTS_SCENARIO("core", "failure sweep: growing an import fails in turn", "[ERR-01][GROW-07][PROV-05]") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  Worker& exporter = s.worker("exporter");
  Worker& worker = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource resource = worker.resource().value();
  const Buffer original = allocate_chunks(exporter, source, {1, 1});
  const Buffer imported = share(exporter, original, worker, resource);
  worker.fill(imported, 192);
  Fixture fixture{worker, resource, imported, 192, {}};
  const Operation grow = operations().at(1);
  sweep(s, fixture, grow, kCodes.front());
  s.check_error("PROV-05", worker.export_descriptor(imported), "RuntimeError", {"imported"});
}

VMMCTS_SCENARIO("core", "failure sweep: each driver call of a copy fails in turn", "[ERR-01]") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  Worker& worker = s.worker("exporter");
  const Buffer buffer = worker.allocate(worker.resource().value(), 1).value();
  worker.fill(buffer, 193);
  const Json bytes = {{"buffer", buffer.id}, {"offset", 0}, {"size", 64}, {"seed", 193}};
  for (const std::string operation : {"fill", "read"}) {
    int points = 0;
    for (bool fired = true; fired && points < kMostCalls; points += fired) {
      const auto in_case = s.in_case(operation + ", call " + std::to_string(points + 1));
      worker.call_log()->inject(
          {.nth = static_cast<std::uint64_t>(points + 1), .code = kCodes.back()});
      const auto answer = worker.call(operation, bytes);
      fired = worker.call_log()->injections_fired() > 0;
      worker.call_log()->clear_injections();
      s.check("ERR-01", answer.ok() != fired, "the copy fails when a call of it does, and only then");
      if (!answer.ok()) {
        s.check_error("ERR-01", answer, "RuntimeError");
        s.check_equal("ERR-01", "the driver's status", answer.error().cuda, kCodes.back());
      }
      s.check_bytes("ERR-01", worker, buffer, 193, "after the failure");
    }
    s.check("ERR-01", points > 0, operation + " makes driver calls");
    s.note(operation + ": " + std::to_string(points) + " failure points");
  }
}

VMMCTS_SCENARIO("core", "failure sweep: a close that fails at a call undoes the rest", "[ERR-01]") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  for (const std::string call : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}) {
    const auto in_case = s.in_case(call + " fails");
    // What the failed call leaves is there until its process ends.
    Worker& worker = s.worker(call);
    const Resource resource = worker.resource().value();
    tap::Held left = s.held(worker);
    if (call == "cuMemUnmap") ++left.reservations;  // a driver frees no addresses that are mapped
    const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
    worker.call_log()->inject({.call = call, .code = kCodes.back()});
    worker.drop(buffer.id);
    s.check_equal("ERR-01", "calls that were failed", worker.call_log()->injections_fired(),
                  std::uint64_t{1});
    s.check_held("ERR-01", worker, left, "beside what was made to fail");
    worker.kill();
  }
}

VMMCTS_SCENARIO("core", "failure sweep: a failed clean-up is told beside the first error", "[ERR-03]") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  constexpr int kFirst = 2;       // CUDA_ERROR_OUT_OF_MEMORY
  constexpr int kCleanup = 999;   // CUDA_ERROR_UNKNOWN
  Worker& exporter = s.worker("exporter");
  const Buffer original = allocate_chunks(exporter, exporter.resource().value(), {1, 1});
  const Descriptor exported = exporter.export_descriptor(original).value();
  for (const Operation& operation : operations()) {
    // Their clean-up calls no driver.
    if (operation.name == "export" || operation.name == "alias") continue;
    for (const std::string call : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}) {
      const auto in_case = s.in_case(operation.name + ", then " + call);
      // What a failed clean-up leaves is there until its process ends.
      Worker& worker = s.worker(operation.name + " " + call);
      const Resource resource = worker.resource().value();
      Fixture fixture{worker, resource, worker.allocate(resource, 1).value(), 0,
                      forward(exporter, exported, worker)};
      worker.call_log()->inject({.call = "cuMemSetAccess", .code = kFirst});
      worker.call_log()->inject({.call = call, .code = kCleanup});
      const std::size_t said = worker.log().size();
      const auto failed = operation.run(fixture);
      s.check_equal("ERR-03", "calls that were failed", worker.call_log()->injections_fired(),
                    std::uint64_t{2});
      s.check_error("ERR-03", failed, "RuntimeError", {"cuMemSetAccess"});
      if (!failed.ok()) {
        s.check_equal("ERR-03", "the driver's status", failed.error().cuda, kFirst);
        const std::string told = failed.error().message + worker.log().substr(said);
        s.check("ERR-03", told.find(call) != std::string::npos,
                "the error, or what the process printed, names the clean-up that failed");
      }
      worker.kill();
    }
  }
}

VMMCTS_SCENARIO("core", "failure sweep: canary of the injection", "") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  worker.call_log()->inject(
      {.call = "cuMemCreate", .nth = 1, .action = tap::Action::fail, .code = 2});
  const auto failed = worker.allocate(resource, 1);
  s.check("", !failed.ok(), "an injected failure reaches the implementation");
  s.check_equal("", "injections that fired", worker.call_log()->injections_fired(),
                std::uint64_t{1});
  worker.call_log()->clear_injections();
  s.check("", worker.allocate(resource, 1).ok(), "a cleared injection does not");
}
