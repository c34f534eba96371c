// Everything that the scenarios of one run share: the plan, the workers, the observer, the log.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/event_log.hpp"
#include "coordinator/observer.hpp"
#include "coordinator/plan.hpp"
#include "coordinator/worker.hpp"
#include "tap/fd_calls.hpp"
#include "tap/oracle.hpp"

namespace cts {

// A worker with what is known of its clean state.
struct PooledWorker {
  std::unique_ptr<Worker> worker;
  FdSet clean_fds;                          // right after its warm-up
  bool inherited = false;                   // started with descriptors: not for reuse
  std::vector<std::uint64_t> context_bytes; // device memory that its start took, per device
  std::unique_ptr<tap::FdCalls> fd_calls;  // failures of its system calls; none without the library
  tap::Oracle oracle;                      // of all its driver calls
  std::uint64_t calls_seen = 0;            // by the oracle
  tap::Held clean_held;                    // what it holds of the driver in its clean state

  // What the process holds of the driver now, by its calls.
  tap::Held held();
};

// What a worker did wrong, or left behind, by the time it was given back.
struct Leftovers {
  std::string fds;  // how its descriptors differ from its clean state, empty if they do not
  std::vector<tap::Finding> calls;
};

class Session {
 public:
  explicit Session(Plan plan);

  const Plan& plan() const { return plan_; }
  EventLog& events() { return events_; }

  // A worker in its clean state: an idle one, or a new one that has been warmed up with one whole
  // share, so that what drivers and runtimes open lazily is open. Throws WorkerLost.
  PooledWorker acquire();

  // A new worker that inherits descriptors, numbered from kFirstInherited.
  PooledWorker start_worker(const std::vector<int>& inherited = {});

  // Takes a worker back: drops its objects and compares its descriptors with its clean state. A
  // clean one is kept for reuse, any other is ended.
  Leftovers give_back(PooledWorker worker);

  // Ends a worker and its group.
  void end(PooledWorker worker);

  // Bytes free on a device, as the observer sees them.
  std::uint64_t free_memory(int device) { return observer_.free_memory(device); }
  // Bytes that must be free when every worker is in its clean state.
  std::uint64_t idle_free_memory(int device) const { return idle_free_.at(device); }

  // Allocations lost (or found, below 0) between two counts of free bytes, in granules. A driver
  // keeps and gives back small amounts of its own, such as page tables (64 KiB at a time on an
  // H200); what an implementation loses are whole granules.
  std::int64_t granules_missing(std::uint64_t expected, std::uint64_t free) const;
  // Bytes of the smallest allocation.
  std::uint64_t granule() const { return granule_; }
  // Takes what is free now, with every worker in its clean state, as what must be free then.
  void settle() { idle_free_ = free_everywhere(); }
  // Ends every idle worker, after memory was lost with one of them, and counts anew.
  void start_over();

  // A path in the work directory that nobody else uses.
  std::string private_path(const std::string& suffix);

 private:
  void warm_up(Worker& worker);
  void account(const PooledWorker& worker, bool born);
  std::vector<std::uint64_t> free_everywhere();

  Plan plan_;
  EventLog events_;
  Observer observer_;
  std::uint64_t granule_ = 1;  // bytes; known from the first warm-up on
  std::vector<std::uint64_t> idle_free_;
  std::vector<PooledWorker> idle_;
  int started_ = 0;
  int paths_ = 0;
  bool run_event_written_ = false;
};

}  // namespace cts
