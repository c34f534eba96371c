// Random walks of two to four processes beside a model (WALKS.md).
#include <chrono>
#include <filesystem>
#include <optional>

#include "shares.hpp"
#include "walk_generator.hpp"
#include "walk_shrink.hpp"
#include "walk_system.hpp"

using namespace cts;

namespace {

using Clock = std::chrono::steady_clock;
using walk::Difference;
using walk::Walk;

constexpr int kSeeds = 8;    // of each scenario, when the plan does not say how many
constexpr int kLength = 100;  // steps of a walk, before the look at the end
constexpr auto kNoteEvery = std::chrono::seconds(30);  // so that a long run is not taken for stuck

std::optional<Difference> played(Session& session, const Walk& walk, walk::Seen* seen = nullptr) {
  walk::WorkerSystem system(session, walk.processes);
  return walk::play(walk, system, seen);
}

// Looks for a shorter walk with the fault, keeps it in a file, and records it all.
void report(Scenario& s, Walk walk, Difference difference) {
  const std::string length = std::to_string(walk.steps.size());
  const std::string where = difference.step < walk.steps.size()
                                ? "step " + std::to_string(difference.step + 1) + " of " + length
                                : "the end of " + length + " steps";
  if (difference.step < walk.steps.size()) walk.steps.resize(difference.step + 1);
  const auto stop = Clock::now() + s.plan().walk_shrink;
  const Walk shortest = walk::shrink(
      walk,
      [&](const Walk& candidate) {
        const auto again = played(s.session(), candidate);
        if (!again || !again->same_fault(difference)) return false;
        difference = *again;
        return true;
      },
      [&] { return Clock::now() >= stop; });
  std::filesystem::create_directories(s.plan().walk_failures);
  const std::string path = s.plan().walk_failures + "/walk-" + std::to_string(walk.seed) + "-of-" +
                           std::to_string(walk.processes) + ".json";
  walk::save(shortest, difference.text, path);
  s.evidence(difference.clauses, difference.witness,
             difference.text + " [seed " + std::to_string(walk.seed) + ", " + where +
                 "; shortest walk found: " + to_string(shortest.steps) +
                 "; to replay it: walk_replay " + path + "]");
  if (difference.lost) std::rethrow_exception(difference.lost);
}

// True when the walk shows nothing wrong.
bool walked(Scenario& s, const Walk& walk, walk::Seen& seen) {
  const auto difference = played(s.session(), walk, &seen);
  if (difference) report(s, walk, *difference);
  return !difference;
}

void run_walks(Scenario& s, int processes) {
  walk::Seen seen;
  if (!s.plan().walk_replay.empty()) {
    const Walk walk = walk::load(s.plan().walk_replay);
    if (walk.processes != processes) {
      throw NotExercised("the walk to replay is of " + std::to_string(walk.processes) +
                         " processes");
    }
    if (walked(s, walk, seen)) s.note("the replayed walk shows nothing wrong");
    return;
  }
  {
    walk::WorkerSystem system(s.session(), 1);
    const std::uint64_t unit = system.granule();
    s.check("ALLOC-01", unit >= 4096 && (unit & (unit - 1)) == 0,
            "the smallest buffer is a granule: " + std::to_string(unit) + " bytes");
    if (s.failed()) return;
    if (s.free_memory() < unit * walk::Limits{}.granules) {
      throw NotExercised("the device has no room for the walks");
    }
    system.finish();
  }
  const std::uint64_t first = s.plan().walk_first_seed;
  const std::uint64_t count = s.plan().walk_seeds.value_or(kSeeds);
  auto noted = Clock::now();
  for (std::uint64_t seed = first; seed - first < count; ++seed) {
    if (!walked(s, walk::generate(seed, processes, kLength), seen)) return;
    if (Clock::now() - noted < kNoteEvery) continue;
    noted = Clock::now();
    s.note("walked the seeds up to " + std::to_string(seed));
  }
  s.note(std::to_string(count) + " walks from seed " + std::to_string(first) + ": " +
         std::to_string(seen.steps) + " steps, " + std::to_string(seen.refused) + " refusals, " +
         std::to_string(seen.grown_in_place) + " grows in place, " + std::to_string(seen.moved) +
         " moves, " + std::to_string(seen.imported_and_moved) + " of them of imported memory, " +
         std::to_string(seen.killed) + " processes killed");
}

}  // namespace

VMMCTS_SCENARIO("core", "walk: two processes share at random",
                "[ALLOC-01][ALLOC-04][ALLOC-06][ALLOC-08][GROW-01][GROW-02][GROW-03][GROW-08]\
[GROW-09][GROW-10][GROW-12][GROW-14][DESC-02][DESC-03][DESC-04][DESC-05][DESC-08][DESC-09][DESC-10]\
[PIN-01][PIN-02][PIN-03][PIN-04][PIN-05][PIN-07][PIN-08][PIN-09][PIN-10][IMP-01][IMP-04][IMP-06]\
[IMP-11][PROV-01][PROV-07][PROV-08][PROV-10]") {
  run_walks(s, 2);
}

VMMCTS_SCENARIO("core", "walk: three processes share at random",
                "[ALLOC-01][ALLOC-04][ALLOC-06][ALLOC-08][GROW-01][GROW-02][GROW-03][GROW-08]\
[GROW-09][GROW-10][GROW-12][GROW-14][DESC-02][DESC-03][DESC-04][DESC-05][DESC-08][DESC-09][DESC-10]\
[PIN-01][PIN-02][PIN-03][PIN-04][PIN-05][PIN-07][PIN-08][PIN-09][PIN-10][IMP-01][IMP-04][IMP-06]\
[IMP-11][PROV-01][PROV-07][PROV-08][PROV-10]") {
  run_walks(s, 3);
}

VMMCTS_SCENARIO("core", "walk: four processes share at random",
                "[ALLOC-01][ALLOC-04][ALLOC-06][ALLOC-08][GROW-01][GROW-02][GROW-03][GROW-08]\
[GROW-09][GROW-10][GROW-12][GROW-14][DESC-02][DESC-03][DESC-04][DESC-05][DESC-08][DESC-09][DESC-10]\
[PIN-01][PIN-02][PIN-03][PIN-04][PIN-05][PIN-07][PIN-08][PIN-09][PIN-10][IMP-01][IMP-04][IMP-06]\
[IMP-11][PROV-01][PROV-07][PROV-08][PROV-10]") {
  run_walks(s, 4);
}
