// Many threads on one implementation, for the CONC clauses.
#pragma once

#include "protocol/channel.hpp"
#include "vmmcts/implementation.h"

namespace cts {

// Each of `threads` threads does `rounds` rounds of allocate, fill, grow, export, import, verify
// through the import, close. Result: `wrong_bytes`, `errors` (a list of distinct messages).
Json run_concurrently(const vmmcts_implementation& table, vmmcts_resource* resource, int threads,
                      int rounds);

}  // namespace cts
