// Makes a walk that fails shorter while it goes on failing.
#pragma once

#include <functional>

#include "walk_step.hpp"

namespace cts::walk {

// Whether a walk still shows the fault.
using Fails = std::function<bool(const Walk&)>;
// Whether to stop looking, asked before each try.
using Enough = std::function<bool()>;

// Delta debugging: takes runs of steps out, halves first, single steps at last, until no single
// step can go; then tries fewer processes, plainer arguments and fewer detours, and begins again. Returns the
// shortest walk that was seen to fail, `walk` itself at worst.
Walk shrink(Walk walk, const Fails& fails, const Enough& enough);

}  // namespace cts::walk
