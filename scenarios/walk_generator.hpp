// Makes walks from seeds: the same seed gives the same walk everywhere.
#pragma once

#include <cstdint>

#include "walk_step.hpp"

namespace cts::walk {

// What a walk may hold at once.
struct Limits {
  int granules = 24;
  int buffers_each = 7;   // of one process, closed ones included
  int fd_holders_each = 6;
  int parcels = 5;
};

// A walk of `length` steps that the model understands; then a look at every buffer: its bytes, whether
// it exports, and what comes back from there; then everything closes in some order. Among the steps
// are some that must be refused: the use of what is closed, the export of imported memory, the
// import of wrong sizes.
Walk generate(std::uint64_t seed, int processes, int length, const Limits& limits = {});

}  // namespace cts::walk
