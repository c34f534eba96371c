// Loops over the driver that one request at a time cannot reach: threads, a process that has not
// called cuInit, a forked child.
#pragma once

#include "worker/driver_state.hpp"
#include "worker/server.hpp"

namespace cts {

// Adds these operations; the state must outlive the server.
//   cycles  threads, rounds, device   each thread shares memory with itself: `failed` counts rounds
//                                     with a call that failed, `wrong_bytes` those with bytes that
//                                     did not arrive, `first` names the first call that failed
//   exports handle, threads, rounds   each round exports and closes: `failed`, `first`
//   imports fd, threads, rounds       each round imports and releases: `failed`, `first`
//   before_init                       `results`: what each entry point answers in a new process
//                                     that has not called cuInit, by name
//   after_fork                        `results`: the same in a child forked from this process
void add_driver_rounds(Server& server, DriverState& state);

// What the new process of before_init does: calls, and prints the results. Returns its exit status.
int print_results_before_init();

}  // namespace cts
