// Random walks over the VMM calls: the generator and the comparison that the walks share.
//
// The generator and the order in which a walk draws from it are part of the recorded data: another
// draw is another walk. A walk prints one line per seed, one token per step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace truth {

// xorshift64, high half.
class Generator {
 public:
  Generator(uint64_t seed, uint64_t salt) : state_(seed * 0x9E3779B97F4A7C15ull + salt) {
    for (int i = 0; i < 8; i++) next();
  }
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32);
  }
  uint32_t below(uint32_t n) { return next() % n; }

  // Index of the first entry that `wanted` picks, looking round from a random one; -1 if none.
  int pick(int count, const std::function<bool(int)>& wanted) {
    int start = static_cast<int>(below(static_cast<uint32_t>(count)));
    for (int i = 0; i < count; i++) {
      int index = (start + i) % count;
      if (wanted(index)) return index;
    }
    return -1;
  }

 private:
  uint64_t state_;
};

// Index of the first entry that `wanted` picks; -1 if none.
inline int first_of(int count, const std::function<bool(int)>& wanted) {
  for (int i = 0; i < count; i++) {
    if (wanted(i)) return i;
  }
  return -1;
}

// Command line of a walk: FIRST_SEED COUNT STEPS [--expect FILE].
struct WalkOptions {
  uint64_t first_seed = 1;
  uint64_t count = 0;
  int steps = 0;
  std::string expect;
};

// Reads the command line. False, with a line of usage on stderr, when it cannot be used.
bool parse_walk_options(int argc, char** argv, WalkOptions* options);

// Runs `walk` for every seed. Without --expect prints each line; with it compares those seeds that
// the file has, and prints the first differences. The exit status: 0, or 1 for a difference.
int run_walks(const WalkOptions& options, const std::function<std::string(uint64_t)>& walk);

}  // namespace truth
