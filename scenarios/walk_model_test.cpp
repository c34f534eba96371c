// The model knows what is due, and what is planted in a system is found and shrunk to its core.
#include <catch2_compat.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "coordinator/plan.hpp"
#include "walk_generator.hpp"
#include "walk_model.hpp"
#include "walk_runner.hpp"
#include "walk_shrink.hpp"

namespace {

using namespace cts::walk;

constexpr std::uint64_t kUnit = 65536;

// Steps by hand; each gives the number of what it makes.
struct Script {
  explicit Script(int processes = 2) : model(processes, kUnit) {}

  Due apply(Step step) {
    const auto due = model.apply(step);
    REQUIRE(due.has_value());
    return *due;
  }
  int make(Op op, int process, int object, int granules = 0) {
    Step step;
    step.op = op;
    step.process = process;
    step.object = object;
    step.out = ++names;
    step.granules = granules;
    if (op == Op::from_fds) {
      for (std::size_t i = 0; i < model.fd_holders().at(object).sizes.size(); ++i) {
        step.order.push_back(static_cast<int>(i));
      }
    }
    last = apply(step);
    return names;
  }
  Expected act(Op op, int process, int object, int seed = 0) {
    Step step;
    step.op = op;
    step.process = process;
    step.object = object;
    step.seed = seed;
    if (op == Op::exporting || op == Op::importing) step.out = ++names;
    last = apply(step);
    return last.expected;
  }
  // Exports in one process and imports in another; nothing but the import is left.
  int share(int from, int buffer, int to) {
    const int exported = make(Op::exporting, from, buffer);
    const int raw = make(Op::receive, to, make(Op::send, from, exported));
    const int rebuilt = make(Op::from_fds, to, raw);
    const int imported = make(Op::importing, to, rebuilt);
    act(Op::drop, from, exported);
    act(Op::drop, to, raw);
    act(Op::drop, to, rebuilt);
    return imported;
  }

  Model model;
  Due last;
  int names = 0;
};

// A system that does what the model says, but for one planted fault.
class Fake : public System {
 public:
  enum class Fault {
    none,
    exports_grown_import,  // the mark does not reach a grown buffer
    import_leaks,          // closing an import keeps its memory
    alias_write_lost,      // what is written through an alias goes nowhere
    third_export_leaks,    // the third export makes one fd too many
    short_import_dies,     // an import of less than the sum ends the process
    left_at_the_end,       // a descriptor that nothing but the end shows
    alias_moves,
    wrong_kind,
    wrong_words,
    alias_calls_driver,
  };

  Fake(int processes, Fault fault) : model_(processes, kUnit), fault_(fault) {}

  std::uint64_t granule() override { return kUnit; }

  Reply apply(const Action& action) override {
    const Step& step = action.step;
    const auto buffer = model_.buffers().find(step.object);
    const bool on_buffer = buffer != model_.buffers().end();
    const Origin origin = on_buffer ? buffer->second.origin : Origin::allocated;
    const bool was_open = on_buffer && buffer->second.open;
    const std::uint64_t size = on_buffer ? buffer->second.range : 0;
    if (fault_ == Fault::alias_write_lost && step.op == Op::fill && origin == Origin::derived &&
        was_open) {
      return {};
    }
    const auto due = model_.apply(step);
    REQUIRE(due.has_value());
    const Expected& expected = due->expected;
    Reply reply;
    reply.ok = expected.ok;
    reply.kind = expected.kind.empty() ? "RuntimeError" : expected.kind;
    reply.size = expected.size.value_or(0);
    reply.is_mapped = expected.is_mapped.value_or(false);
    reply.sizes = expected.sizes.value_or(std::vector<std::uint64_t>{});
    for (const std::string& part : expected.says) reply.message += part + " ";
    reply.pointer = step.op == Op::alias ? pointers_[step.object] : 4096u * ++addresses_;
    switch (fault_) {
      case Fault::exports_grown_import:
        if (step.op == Op::exporting && was_open && origin == Origin::derived) reply.ok = true;
        break;
      case Fault::import_leaks:
        if (was_open && origin == Origin::imported && !open(step.object)) leaked_ += size;
        break;
      case Fault::third_export_leaks:
        if (step.op == Op::exporting && expected.ok && ++exports_ == 3) ++extra_fds_[step.process];
        break;
      case Fault::short_import_dies:
        if (step.op == Op::importing && expected.ok &&
            model_.buffers().at(step.out).size < model_.buffers().at(step.out).range) {
          throw Lost("B died", nullptr);
        }
        break;
      case Fault::left_at_the_end: exports_ += step.op == Op::importing; break;
      case Fault::alias_moves:
        if (step.op == Op::alias) reply.pointer += 1;
        break;
      case Fault::wrong_kind:
        if (!expected.ok) reply.kind = "KeyError";
        break;
      case Fault::wrong_words: reply.message = "no"; break;
      case Fault::alias_calls_driver:
        if (step.op == Op::alias) reply.calls = {"cuMemCreate"};
        break;
      case Fault::alias_write_lost:
      case Fault::none: break;
    }
    if (step.op == Op::verify && expected.ok && action.windows != due->action.windows) {
      reply.mismatch = 0;  // what is there is not what is asked for
    }
    pointers_[step.out] = reply.pointer;
    return reply;
  }

  OpenFds fds(int process) override { return {model_.fds(process) + extra_fds_[process], "", ""}; }
  std::uint64_t held() override { return (finished_ ? 0 : model_.held()) + leaked_; }
  std::string finish() override {
    finished_ = true;
    return fault_ == Fault::left_at_the_end && exports_ > 0 ? "A: +7 memory" : "";
  }

 private:
  bool open(int buffer) const {
    const auto found = model_.buffers().find(buffer);
    return found != model_.buffers().end() && found->second.open;
  }

  Model model_;
  Fault fault_;
  std::map<int, std::uint64_t> pointers_;
  std::map<int, std::size_t> extra_fds_;
  std::uint64_t leaked_ = 0;
  int addresses_ = 0;
  int exports_ = 0;
  bool finished_ = false;
};

struct Found {
  Difference difference;
  Walk shortest;
};

// Walks from seeds until one shows the fault, and shrinks it.
Found find(Fake::Fault fault, int processes) {
  const auto run = [&](const Walk& walk) {
    Fake fake(walk.processes, fault);
    return play(walk, fake);
  };
  for (std::uint64_t seed = 1; seed < 500; ++seed) {
    Walk walk = generate(seed, processes, 60);
    auto difference = run(walk);
    if (!difference) continue;
    walk.steps.resize(std::min(walk.steps.size(), difference->step + 1));
    const Walk shortest = shrink(
        walk,
        [&](const Walk& candidate) {
          const auto again = run(candidate);
          if (!again || !again->same_fault(*difference)) return false;
          difference = again;
          return true;
        },
        [] { return false; });
    return {*difference, shortest};
  }
  FAIL("no walk showed the fault");
  throw std::logic_error("unreachable");
}

std::vector<Op> ops(const Walk& walk) {
  std::vector<Op> result;
  for (const Step& step : walk.steps) result.push_back(step.op);
  return result;
}

std::size_t processes_of(const Walk& walk) {
  std::set<int> seen;
  for (const Step& step : walk.steps) seen.insert(step.process);
  return seen.size();
}

}  // namespace

TEST_CASE("an import keeps memory that its exporter let go, and is not exported") {
  Script s;
  const int buffer = s.make(Op::allocate, 0, 0, 2);
  CHECK(s.model.held() == 2 * kUnit);
  const int imported = s.share(0, buffer, 1);
  CHECK(s.model.fds(0) == 0);
  CHECK(s.model.fds(1) == 0);
  const Expected closed = s.act(Op::drop, 0, buffer);
  CHECK(closed.early_clauses == "PIN-04");
  CHECK(s.model.held() == 2 * kUnit);
  const Expected refused = s.act(Op::exporting, 1, imported);
  CHECK(!refused.ok);
  CHECK(refused.kind == "RuntimeError");
  CHECK(refused.clauses == "PROV-01");
  CHECK(s.act(Op::close, 1, imported).leak_clauses == "PIN-05");
  CHECK(s.model.held() == 0);
  CHECK(!s.act(Op::verify, 1, imported).ok);
  CHECK(s.act(Op::close, 1, imported).ok);
}

TEST_CASE("the mark goes with the allocation through aliases and grows, and not to fresh memory") {
  Script s;
  const int buffer = s.make(Op::allocate, 0, 0, 1);
  int imported = s.share(0, buffer, 1);
  for (int i = 0; i < 4; ++i) {
    imported = s.make(i % 2 == 0 ? Op::grow : Op::alias, 1, imported, 1);
    const Expected refused = s.act(Op::exporting, 1, imported);
    CHECK(!refused.ok);
    CHECK(refused.clauses == "PROV-07");
  }
  CHECK(s.act(Op::exporting, 0, buffer).ok);
  CHECK(s.act(Op::exporting, 1, s.make(Op::allocate, 1, 0, 1)).ok);
  // An imported buffer of nothing has no marked memory; what grows from it is its owner's.
  const int nothing = s.share(0, s.make(Op::allocate, 0, 0, 0), 1);
  CHECK(s.act(Op::exporting, 1, s.make(Op::grow, 1, nothing, 1)).ok);
}

TEST_CASE("each holder of a descriptor pins the memory until it is gone") {
  Script s;
  const int buffer = s.make(Op::allocate, 0, 0, 1);
  const int grown = s.make(Op::grow, 0, buffer, 2);
  CHECK(s.act(Op::drop, 0, buffer).early_clauses == "GROW-08");
  const int exported = s.make(Op::exporting, 0, grown);
  CHECK(s.model.fds(0) == 2);
  CHECK(s.last.expected.sizes == std::vector<std::uint64_t>{kUnit, 2 * kUnit});
  CHECK(s.act(Op::drop, 0, grown).early_clauses == "PIN-01");
  const int parcel = s.make(Op::send, 0, exported);
  CHECK(s.act(Op::close, 0, exported).early_clauses == "PIN-07");
  CHECK(s.model.fds(0) == 0);
  CHECK(!s.act(Op::importing, 0, exported).ok);
  s.act(Op::kill, 0, 0);
  CHECK(s.model.held() == 3 * kUnit);
  const int raw = s.make(Op::receive, 1, parcel);
  CHECK(s.model.fds(1) == 2);
  s.act(Op::kill, 1, 0);
  CHECK(s.model.held() == 0);
  Step lost;
  lost.op = Op::drop;
  lost.process = 1;
  lost.object = raw;
  CHECK(!s.model.apply(lost));
}

TEST_CASE("bytes follow the memory to another place") {
  Script s;
  const int buffer = s.make(Op::grow, 0, s.make(Op::allocate, 0, 0, 1), 1);
  s.act(Op::fill, 0, buffer, 9);
  CHECK(s.last.action.windows.size() == 3);
  const int raw = s.make(Op::receive, 1, s.make(Op::send, 0, s.make(Op::exporting, 0, buffer)));
  Step swapped;
  swapped.op = Op::from_fds;
  swapped.process = 1;
  swapped.object = raw;
  swapped.out = 100;
  swapped.order = {1, 0};
  swapped.less = 4096;
  CHECK(s.apply(swapped).expected.size == 2 * kUnit - 4096);
  Step import;
  import.op = Op::importing;
  import.process = 1;
  import.object = 100;
  import.out = 101;
  s.apply(import);
  s.act(Op::verify, 1, 101);
  // The last window is beyond the size; the first two that touch have different seeds now.
  const auto& windows = s.last.action.windows;
  REQUIRE(windows.size() == 3);
  CHECK(windows[0].offset == 0);
  CHECK(windows[2].offset == kUnit);
  CHECK(windows[2].seed != windows[1].seed);
}

TEST_CASE("wrong sizes are refused at the import and equal ones may be swapped") {
  for (const int second : {1, 2}) {
    Script s;
    const int buffer = s.make(Op::grow, 0, s.make(Op::allocate, 0, 0, 1), second);
    const int raw = s.make(Op::receive, 1, s.make(Op::send, 0, s.make(Op::exporting, 0, buffer)));
    Step rebuilt;
    rebuilt.op = Op::from_fds;
    rebuilt.process = 1;
    rebuilt.object = raw;
    rebuilt.out = 100;
    rebuilt.order = {0, 1};
    rebuilt.flaw = Flaw::swapped;
    s.apply(rebuilt);
    CHECK(s.act(Op::importing, 1, 100).ok == (second == 1));
  }
}

TEST_CASE("a seed gives one walk, of steps that the model understands and of every kind") {
  std::set<Op> seen;
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const int processes = 2 + static_cast<int>(seed % 3);
    const Walk walk = generate(seed, processes, 60);
    CHECK(walk.steps == generate(seed, processes, 60).steps);
    Model model(processes, kUnit);
    for (const Step& step : walk.steps) {
      const auto due = model.apply(step);
      REQUIRE(due.has_value());
      seen.insert(step.op);
      refused += !due->expected.ok;
      CHECK(model.held() <= 24 * kUnit);
    }
  }
  CHECK(seen.size() == 14);
  CHECK(refused > 100);
}

TEST_CASE("a walk survives its file, and what is no walk is said") {
  const std::string path = "walk_model_test.json";
  Walk walk = generate(3, 3, 80);
  save(walk, "why", path);
  const Walk loaded = load(path);
  std::remove(path.c_str());
  CHECK(loaded.steps == walk.steps);
  CHECK(loaded.processes == 3);
  CHECK(loaded.seed == 3);
  CHECK_THROWS_WITH(load("no such walk"), "cannot read the walk no such walk");
  CHECK_THROWS_AS(step_from_json({{"op", "dance"}, {"process", 0}}), std::runtime_error);
  CHECK_THROWS_AS(step_from_json({{"op", "fill"}}), std::runtime_error);
}

TEST_CASE("a right system shows no difference") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Walk walk = generate(seed, 3, 80);
    Fake fake(3, Fake::Fault::none);
    const auto difference = play(walk, fake);
    INFO(seed << ": " << (difference ? difference->text : ""));
    CHECK(!difference);
  }
}

TEST_CASE("steps whose objects are gone are skipped") {
  Walk walk = generate(5, 2, 40);
  walk.steps.erase(walk.steps.begin(), walk.steps.begin() + 10);
  Fake fake(2, Fake::Fault::none);
  Seen seen;
  CHECK(!play(walk, fake, &seen));
  CHECK(seen.steps > 0);
  CHECK(seen.steps < static_cast<int>(walk.steps.size()));
}

TEST_CASE("a planted fault is found and shrunk to the shortest walk that shows it") {
  using Fault = Fake::Fault;
  struct Planted {
    Fault fault;
    std::string witness, clauses;
    std::vector<Op> shortest;
  };
  const Planted all[] = {
      {Fault::exports_grown_import, "error", "PROV-07",
       {Op::allocate, Op::exporting, Op::importing, Op::alias, Op::exporting}},
      {Fault::import_leaks, "free_memory", "PIN-05",
       {Op::allocate, Op::exporting, Op::importing, Op::drop}},
      {Fault::alias_write_lost, "bytes", "GROW-08", {Op::allocate, Op::alias, Op::fill, Op::verify}},
      {Fault::third_export_leaks, "fd_set", "DESC-02",
       {Op::allocate, Op::exporting, Op::exporting, Op::exporting}},
      {Fault::short_import_dies, "process", "",
       {Op::allocate, Op::exporting, Op::send, Op::receive, Op::from_fds, Op::importing}},
      {Fault::left_at_the_end, "fd_set", "DESC-04", {Op::allocate, Op::exporting, Op::importing}},
      {Fault::alias_moves, "assertion", "GROW-02", {Op::allocate, Op::alias}},
      {Fault::alias_calls_driver, "call_trace", "GROW-02", {Op::allocate, Op::alias}},
      {Fault::wrong_words, "error", "PROV-01",
       {Op::allocate, Op::exporting, Op::importing, Op::exporting}},
      {Fault::wrong_kind, "error", "PROV-01",
       {Op::allocate, Op::exporting, Op::importing, Op::exporting}},
  };
  for (const Planted& planted : all) {
    for (const int processes : {2, 4}) {
      const Found found = find(planted.fault, processes);
      INFO(to_string(found.shortest.steps) << ": " << found.difference.text);
      CHECK(found.difference.witness == planted.witness);
      // Wrong bytes count against the buffer that shows them, whichever it is.
      if (planted.witness != "bytes") CHECK(found.difference.clauses == planted.clauses);
      CHECK(found.shortest.steps.size() == planted.shortest.size());
      std::vector<Op> shortest = ops(found.shortest);
      for (std::size_t i = 0; i < shortest.size() && i < planted.shortest.size(); ++i) {
        // Some kinds of steps do as well as others.
        if (planted.shortest[i] == Op::alias && shortest[i] == Op::grow) continue;
        if (planted.shortest[i] == Op::drop && shortest[i] == Op::close) continue;
        CHECK(std::string(name_of(shortest[i])) == name_of(planted.shortest[i]));
      }
      CHECK(processes_of(found.shortest) == 1);
    }
  }
}

TEST_CASE("a shrink ends when it is told, with a walk that fails") {
  int tries = 0;
  const Walk walk = generate(1, 2, 40);
  const Walk same = shrink(
      walk, [](const Walk&) { return true; }, [&] { return ++tries > 5; });
  CHECK(tries > 5);
  CHECK(same.steps.size() < walk.steps.size());
  const Walk untouched = shrink(
      walk, [](const Walk&) { return true; }, [] { return true; });
  CHECK(untouched.steps == walk.steps);
}

TEST_CASE("a plan says how to walk, and the environment does where it does not") {
  const std::string path = "walk_plan_test.json";
  const auto load_with = [&](const nlohmann::json& options) {
    nlohmann::json plan = {{"version", 1}, {"implementation", "i"}, {"worker", "c"},
                           {"kind", "c"},  {"driver", "d"},         {"work_dir", "w"},
                           {"events", "e"}};
    for (const char* list : {"command", "profiles", "observer"}) {
      plan[list] = std::vector<std::string>{"x"};
    }
    plan.update(options);
    std::ofstream(path) << plan;
    return cts::Plan::load(path);
  };
  const cts::Plan plain = load_with(nlohmann::json::object());
  CHECK(!plain.walk_seeds);
  CHECK(plain.walk_first_seed == 1);
  CHECK(plain.walk_replay.empty());
  CHECK(plain.walk_failures == "w");
  CHECK(plain.walk_shrink == std::chrono::seconds(10));
  ::setenv("VMMCTS_WALK_SEEDS", "12", 1);
  ::setenv("VMMCTS_WALK_FAILURES", "kept", 1);
  CHECK(load_with(nlohmann::json::object()).walk_seeds == std::uint64_t{12});
  const cts::Plan told = load_with({{"walk_seeds", 5}, {"walk_replay", "walk.json"}});
  CHECK(told.walk_seeds == std::uint64_t{5});
  CHECK(told.walk_replay == "walk.json");
  CHECK(told.walk_failures == "kept");
  ::unsetenv("VMMCTS_WALK_FAILURES");
  ::setenv("VMMCTS_WALK_SEEDS", "many", 1);
  CHECK_THROWS_WITH(load_with(nlohmann::json::object()), "walk_seeds is a number, not many");
  ::unsetenv("VMMCTS_WALK_SEEDS");
  std::remove(path.c_str());
}
