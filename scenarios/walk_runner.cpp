#include "walk_runner.hpp"

#include <algorithm>
#include <cctype>

namespace cts::walk {
namespace {

std::string listed(const std::vector<std::uint64_t>& sizes) {
  std::string text;
  for (const std::uint64_t size : sizes) text += (text.empty() ? "" : "+") + std::to_string(size);
  return text.empty() ? "none" : text;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// One walk under way.
class Player {
 public:
  Player(const Walk& walk, System& system)
      : system_(system), model_(walk.processes, system.granule()) {}

  // Does nothing when the step cannot be meant.
  void step(const Step& step) {
    const std::optional<Due> due = model_.apply(step);
    if (!due) return;
    const Reply reply = system_.apply(due->action);
    check_answer(*due, reply);
    if (!difference) check_state(*due);
    if (!difference) count(step, reply);
  }

  void finish() {
    if (const std::string left = system_.finish(); !left.empty()) {
      tell("fd_set", "DESC-04", "descriptors after everything was dropped: " + left);
    } else if (const std::uint64_t held = system_.held(); held != 0) {
      tell("free_memory", "PIN-02",
           std::to_string(held) + " bytes are still held after everything was dropped");
    }
  }

  std::optional<Difference> difference;
  Seen seen;

 private:
  void count(const Step& step, const Reply& reply) {
    ++seen.steps;
    seen.refused += !reply.ok;
    seen.killed += step.op == Op::kill;
    if (step.op != Op::grow || !reply.ok) return;
    const bool moved = reply.pointer != pointers_[step.object];
    ++(moved ? seen.moved : seen.grown_in_place);
    seen.imported_and_moved += moved && model_.buffers().at(step.out).is_marked(model_.memory());
  }

  void tell(const std::string& witness, const std::string& clauses, const std::string& text) {
    if (!difference) difference = Difference{0, witness, clauses, text, nullptr};
  }

  void check_answer(const Due& due, const Reply& reply) {
    const Expected& expected = due.expected;
    const std::string what = to_string(due.action.step);
    if (reply.ok != expected.ok) {
      tell("error", expected.clauses,
           what + (reply.ok ? ": succeeded where a refusal is due"
                            : ": refused with " + reply.kind + ": " + reply.message));
      return;
    }
    if (expected.no_driver_calls && !reply.calls.empty()) {
      tell("call_trace", expected.clauses,
           what + ": calls the driver where nothing is to be done: " + reply.calls.front());
    }
    if (!reply.ok) {
      for (const std::string& part : expected.says) {
        if (lower(reply.message).find(part) != std::string::npos) continue;
        tell("error", expected.clauses,
             what + ": the message does not say \"" + part + "\": " + reply.message);
      }
      if (!expected.kind.empty() && reply.kind != expected.kind) {
        tell("error", expected.clauses,
             what + ": refused with " + reply.kind + " where a " + expected.kind + " is due: " +
                 reply.message);
      }
      return;
    }
    if (reply.mismatch >= 0) {
      tell("bytes", expected.clauses, what + ": wrong from offset " + std::to_string(reply.mismatch));
    }
    if (expected.size && reply.size != *expected.size) {
      tell("assertion", expected.size_clauses,
           what + ": size " + std::to_string(reply.size) + ", expected " +
               std::to_string(*expected.size));
    }
    if (expected.sizes && reply.sizes != *expected.sizes) {
      tell("assertion", "GROW-12",
           what + ": sizes " + listed(reply.sizes) + ", expected " + listed(*expected.sizes));
    }
    if (expected.is_mapped && reply.is_mapped != *expected.is_mapped) {
      tell("assertion", "IMP-01", what + (reply.is_mapped ? ": is mapped" : ": is not mapped"));
    }
    if (expected.same_pointer_as != 0 && reply.pointer != pointers_[expected.same_pointer_as]) {
      tell("assertion", expected.clauses, what + ": another address than its input's");
    }
    if (due.action.step.out != 0) pointers_[due.action.step.out] = reply.pointer;
  }

  void check_state(const Due& due) {
    const Step& step = due.action.step;
    const OpenFds open = system_.fds(step.process);
    if (const std::size_t expected = model_.fds(step.process);
        open.added != expected || !open.wrong.empty()) {
      tell("fd_set", due.expected.fd_clauses,
           to_string(step) + ": " + std::to_string(open.added) + " descriptors are open, expected " +
               std::to_string(expected) + (open.wrong.empty() ? "" : ", " + open.wrong) + " (" +
               open.text + ")");
      return;
    }
    const std::uint64_t held = system_.held();
    const std::uint64_t expected = model_.held();
    if (held == expected) return;
    tell("free_memory", held > expected ? due.expected.leak_clauses : due.expected.early_clauses,
         to_string(step) + ": " + std::to_string(held) + " bytes are held, expected " +
             std::to_string(expected));
  }

  System& system_;
  Model model_;
  std::map<int, std::uint64_t> pointers_;
};

}  // namespace

std::optional<Difference> play(const Walk& walk, System& system, Seen* seen) {
  std::size_t at = 0;
  std::optional<Difference> found;
  try {
    Player player(walk, system);
    for (; at < walk.steps.size() && !player.difference; ++at) {
      player.step(walk.steps[at]);
      if (player.difference) break;
    }
    if (!player.difference) player.finish();
    found = player.difference;
    if (seen != nullptr) {
      seen->steps += player.seen.steps;
      seen->refused += player.seen.refused;
      seen->grown_in_place += player.seen.grown_in_place;
      seen->moved += player.seen.moved;
      seen->imported_and_moved += player.seen.imported_and_moved;
      seen->killed += player.seen.killed;
    }
  } catch (const Lost& lost) {
    found = Difference{at, "process", "", lost.what(), lost.cause};
  }
  if (found) found->step = at;
  return found;
}

}  // namespace cts::walk
