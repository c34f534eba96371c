#include "coordinator/session.hpp"

#include <filesystem>
#include <utility>

namespace cts {
namespace {

constexpr std::size_t kCallLogCapacity = std::size_t{1} << 17;  // records; the file is sparse

}  // namespace

Session::Session(Plan plan)
    : plan_(std::move(plan)), events_(plan_.events), observer_(plan_) {
  idle_free_ = free_everywhere();
}

std::vector<std::uint64_t> Session::free_everywhere() {
  std::vector<std::uint64_t> free;
  for (int device = 0; device < plan_.devices; ++device) free.push_back(free_memory(device));
  return free;
}

std::string Session::private_path(const std::string& suffix) {
  return plan_.work_dir + "/" + std::to_string(++paths_) + suffix;
}

PooledWorker Session::acquire() {
  if (idle_.empty()) return start_worker();
  PooledWorker worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

PooledWorker Session::start_worker(const std::vector<int>& inherited) {
  const std::string name = "worker-" + std::to_string(++started_);
  const std::string base = plan_.work_dir + "/" + name;
  ProcessOptions options{plan_.command, plan_.environment, base + ".log", inherited};
  auto& environment = options.environment;
  const std::string library = plan_.tap.value_or(plan_.driver);
  const std::string directory = std::filesystem::path(library).parent_path();
  const auto own_path = environment.find("LD_LIBRARY_PATH");
  environment["LD_LIBRARY_PATH"] =
      directory + (own_path == environment.end() ? "" : ":" + own_path->second);
  std::unique_ptr<tap::CallLog> calls;
  if (plan_.tap) {
    environment["VMMCTS_TAP_NEXT"] = plan_.driver;
    environment["VMMCTS_TAP_LOG"] = base + ".calls";
    calls = std::make_unique<tap::CallLog>(tap::CallLog::create(base + ".calls", kCallLogCapacity));
  }

  PooledWorker started;
  if (plan_.fdcalls) {
    const auto own = environment.find("LD_PRELOAD");
    environment["LD_PRELOAD"] = *plan_.fdcalls + (own == environment.end() ? "" : ":" + own->second);
    environment["VMMCTS_FDCALLS"] = base + ".fdcalls";
    started.fd_calls = std::make_unique<tap::FdCalls>(base + ".fdcalls");
  }
  const std::vector<std::uint64_t> before = free_everywhere();
  started.inherited = !inherited.empty();
  started.worker = std::make_unique<Worker>(name, Process::start(options), std::move(calls),
                                            plan_.deadline);
  if (!run_event_written_) {
    const Json& hello = started.worker->hello();
    events_.write("run", {{"implementation", plan_.implementation},
                          {"worker", plan_.worker},
                          {"worker_version", hello.value("version", "")},
                          {"driver_version", hello.value("driver_version", 0)},
                          {"time", utc_now()}});
    run_event_written_ = true;
  }
  warm_up(*started.worker);
  started.clean_fds = started.worker->fds();
  if (plan_.kind != "driver") started.clean_held = started.held();
  const std::vector<std::uint64_t> after = free_everywhere();
  for (std::size_t d = 0; d < before.size(); ++d) {
    started.context_bytes.push_back(before[d] - after[d]);
  }
  account(started, true);
  return started;
}

void Session::warm_up(Worker& worker) {
  if (plan_.kind == "driver") {
    granule_ = worker.call("warm_up", {{"devices", plan_.devices}}).value().at("granularity");
    return;
  }
  const Resource resource = worker.resource().value();
  const Buffer buffer = worker.allocate(resource, 1).value();
  granule_ = buffer.size;
  worker.fill(buffer, 1, 0, 1);
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  worker.import(resource, descriptor).value();
  worker.reset();
}

// Memory that a living worker holds in its clean state is not there for anybody else.
void Session::account(const PooledWorker& worker, bool born) {
  for (std::size_t d = 0; d < worker.context_bytes.size(); ++d) {
    idle_free_[d] += born ? -worker.context_bytes[d] : worker.context_bytes[d];
  }
}

tap::Held PooledWorker::held() {
  oracle.enter(worker->calls_since(calls_seen));
  calls_seen = worker->call_position();
  return oracle.held(worker->pid());
}

Leftovers Session::give_back(PooledWorker worker) {
  if (worker.worker->call_log() != nullptr) worker.worker->call_log()->clear_injections();
  if (worker.fd_calls) worker.fd_calls->clear();
  const auto reset = worker.worker->call("reset");
  Leftovers left;
  left.fds = reset.ok() ? worker.worker->fds().changes_since(worker.clean_fds)
                        : reset.error().to_string();
  // Driver scenarios misuse the driver on purpose.
  const bool balanced = plan_.kind == "driver" || worker.held() == worker.clean_held;
  if (plan_.kind != "driver") left.calls = worker.oracle.take_findings();
  if (!balanced) {
    for (tap::Finding& leak : worker.oracle.leaks()) left.calls.push_back(std::move(leak));
  }
  const bool room = worker.worker->call_log() == nullptr ||
                    worker.worker->call_position() < kCallLogCapacity / 2;
  if (left.fds.empty() && balanced && room && !worker.inherited) {
    idle_.push_back(std::move(worker));
  } else {
    end(std::move(worker));
  }
  return left;
}

std::int64_t Session::granules_missing(std::uint64_t expected, std::uint64_t free) const {
  const auto missing = static_cast<std::int64_t>(expected - free);
  const auto granule = static_cast<std::int64_t>(granule_);
  return (missing + (missing < 0 ? -granule : granule) / 2) / granule;
}

void Session::start_over() {
  for (PooledWorker& worker : idle_) worker.worker->kill_group();
  idle_.clear();
  settle();
}

void Session::end(PooledWorker worker) {
  worker.worker->kill_group();
  account(worker, false);
}

}  // namespace cts
