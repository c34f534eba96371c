#include "coordinator/scenario.hpp"

#include <poll.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "coordinator/listener.hpp"
#include "tap/call_log.hpp"

namespace cts {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<std::string> words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<std::string> ScenarioInfo::clause_ids() const {
  std::string spaced = clauses;
  std::replace_if(
      spaced.begin(), spaced.end(), [](char c) { return c == '[' || c == ']'; }, ' ');
  return words(spaced);
}

Scenario::Scenario(Session& session, const ScenarioInfo& info) : session_(session), info_(info) {}

Worker& Scenario::worker(const std::string& role) {
  auto found = workers_.find(role);
  if (found == workers_.end()) found = workers_.emplace(role, session_.acquire()).first;
  return *found->second.worker;
}

Worker& Scenario::worker_inheriting(const std::string& role, const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  return *workers_.insert_or_assign(role, session_.start_worker(numbers)).first->second.worker;
}

Worker& Scenario::start_child(const std::string& role, Worker& parent, const std::string& method,
                              const std::map<int, int>& objects) {
  const std::string path = session_.private_path(".sock");
  const Listener listener(path);
  Json given = Json::object();
  for (const auto& [in_child, in_parent] : objects) given[std::to_string(in_child)] = in_parent;
  const int process = parent.new_object();
  const pid_t pid = parent
                        .call("child", {{"out", process},
                                        {"method", method},
                                        {"connect", path},
                                        {"objects", given}})
                        .value()
                        .at("pid");
  UniqueFd socket = listener.accept(Deadline::in(plan().deadline));
  if (!socket) {
    throw WorkerLost(WorkerLost::Outcome::hang, "the child " + role + " did not connect in time");
  }
  Child child{std::make_unique<Worker>(role, std::move(socket), pid, parent.call_log(),
                                       plan().deadline),
              &parent, process};
  return *children_.insert_or_assign(role, std::move(child)).first->second.worker;
}

void Scenario::stop_child(const std::string& role, ProcessObject object) {
  Child child = std::move(children_.at(role));
  children_.erase(role);
  child.worker->disconnect();
  const Json joined = child.parent->call("child_join", {{"child", child.process}}).value();
  if (joined.at("exitcode") != 0) {
    evidence("", "process", "the child " + role + " ended with " + joined.at("exitcode").dump());
  }
  if (object == ProcessObject::drop) child.parent->drop(child.process).value();
}

void Scenario::kill_child(const std::string& role) {
  Child child = std::move(children_.at(role));
  children_.erase(role);
  child.worker->kill_group();
  child.parent->call("child_join", {{"child", child.process}}).value();
  child.parent->drop(child.process).value();
}

std::size_t Scenario::children_of(const Worker& worker) const {
  std::size_t count = 0;
  const std::string tasks = "/proc/" + std::to_string(worker.pid()) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) ++count;
  }
  return count;
}

void Scenario::evidence(std::string_view clauses, const std::string& witness,
                        const std::string& text) {
  if (noticing_) {
    ++noticed_;
    return;
  }
  std::string whole;
  for (const std::string& part : cases_) whole += part + ": ";
  whole += text;
  failed_ = true;
  if (first_failure_.empty()) first_failure_ = whole;
  Json event = {{"scenario", info_.name}, {"witness", witness}, {"text", whole}};
  const auto broken = words(clauses);
  if (broken.empty()) session_.events().write("evidence", event);
  const auto carried = info_.clause_ids();
  for (const std::string& clause : broken) {
    if (std::find(carried.begin(), carried.end(), clause) == carried.end()) {
      throw std::logic_error("the scenario judges " + clause + " and does not carry it");
    }
    event["clause"] = clause;
    session_.events().write("evidence", event);
  }
}

void Scenario::note(const std::string& text) {
  session_.events().write("note", {{"scenario", info_.name}, {"text", text}});
}

void Scenario::check(std::string_view clauses, bool holds, const std::string& text) {
  if (!holds) evidence(clauses, "assertion", "does not hold: " + text);
}

void Scenario::check_fds(std::string_view clauses, Worker& worker, const FdSet& before,
                         const std::string& when) {
  const std::string changes = worker.fds().changes_since(before);
  if (changes.empty()) return;
  evidence(clauses, "fd_set", "descriptors of " + worker.name() + " " + when + ": " + changes);
}

void Scenario::check_fds_soon(std::string_view clauses, Worker& worker, const FdSet& before,
                              const std::string& when) {
  const Deadline deadline = Deadline::in(plan().deadline);
  while (!deadline.passed()) {
    if (worker.fds() == before) return;  // once is enough: another thread may open more meanwhile
    ::poll(nullptr, 0, 1);
  }
  check_fds(clauses, worker, before, when);
}

std::vector<int> Scenario::check_fds_added(std::string_view clauses, Worker& worker,
                                           const FdSet& before, std::size_t count,
                                           const std::string& when) {
  const FdSet now = worker.fds();
  const std::vector<int> added = now.added_since(before);
  if (added.size() != count || !before.added_since(now).empty()) {
    evidence(clauses, "fd_set",
             "descriptors of " + worker.name() + " " + when + ": expected " +
                 std::to_string(count) + " more, got " + std::to_string(added.size()) + " (" +
                 now.changes_since(before) + ")");
  }
  return added;
}

void Scenario::check_free_memory(std::string_view clauses, std::uint64_t expected,
                                 const std::string& when, int device) {
  const std::uint64_t free = free_memory(device);
  const std::int64_t missing = session_.granules_missing(expected, free);
  if (missing == 0) return;
  evidence(clauses, "free_memory",
           "free memory of device " + std::to_string(device) + " " + when + ": " +
               std::to_string(free) + " bytes, expected " + std::to_string(expected) + " (" +
               std::to_string(missing) + " granules still held)");
}

void Scenario::check_bytes(std::string_view clauses, Worker& worker, const Buffer& buffer,
                           std::uint64_t seed, const std::string& when) {
  const std::int64_t wrong = worker.mismatch(buffer, seed);
  if (wrong < 0) return;
  evidence(clauses, "bytes",
           "bytes in " + worker.name() + " " + when + ": wrong from offset " +
               std::to_string(wrong) + " of " + std::to_string(buffer.size));
}

void Scenario::check_held(std::string_view clauses, const Worker& worker, const tap::Held& before,
                          const std::string& when) {
  if (!plan().tap) return;
  const tap::Held now = held(worker);
  if (now == before) return;
  evidence(clauses, "call_trace",
           worker.name() + " holds " + when + ": " + now.to_string() + ", expected " +
               before.to_string());
}

tap::Held Scenario::held(const Worker& worker) { return pooled(worker).held(); }

tap::FdCalls& Scenario::fd_calls(const Worker& worker) {
  PooledWorker& of = pooled(worker);
  if (!of.fd_calls) throw NotExercised("system calls cannot be failed (nothing is preloaded)");
  return *of.fd_calls;
}

PooledWorker& Scenario::pooled(const Worker& worker) {
  for (auto& [role, pooled] : workers_) {
    if (pooled.worker.get() == &worker) return pooled;
  }
  throw std::logic_error(worker.name() + " is not a worker of its own");
}

void Scenario::check_error_is(std::string_view clauses, const std::string& operation,
                              const Error* error, const std::string& kind,
                              const std::vector<std::string>& parts) {
  if (error == nullptr) {
    evidence(clauses, "error", operation + " succeeded where a " + kind + " is due");
    return;
  }
  if (error->kind != kind) {
    evidence(clauses, "error", operation + ": expected " + kind + ", got " + error->to_string());
    return;
  }
  for (const std::string& part : parts) {
    if (lower(error->message).find(lower(part)) != std::string::npos) continue;
    evidence(clauses, "error",
             operation + ": the message does not say \"" + part + "\": " + error->message);
  }
}

void Scenario::check_calls(std::string_view clauses, const std::string& operation,
                           const std::vector<tap::Call>& calls,
                           const std::vector<std::string>& expected) {
  if (!plan().tap) throw NotExercised("the driver calls are not traced (no tap)");
  std::vector<std::string> made;
  for (const tap::Call& call : calls) {
    if (!tap::is_query(call.name)) made.emplace_back(call.name);
  }
  if (made == expected) return;
  evidence(clauses, "call_trace",
           "driver calls of " + operation + ": " + joined(made) + "; expected " + joined(expected));
}

void Scenario::must_notice(const std::string& what, const std::function<void()>& checks) {
  noticing_ = true;
  noticed_ = 0;
  checks();
  noticing_ = false;
  if (noticed_ == 0) evidence("", "assertion", "the witness did not notice " + what);
}

void Scenario::finish() {
  for (auto& [role, child] : children_) child.worker->kill_group();
  children_.clear();
  for (auto& [role, pooled] : workers_) {
    if (!pooled.worker->alive()) {
      session_.end(std::move(pooled));
      continue;
    }
    const Leftovers left = session_.give_back(std::move(pooled));
    if (!left.fds.empty()) {
      evidence("", "fd_set",
               "descriptors of " + role + " after everything was dropped: " + left.fds);
    }
    const auto carried = info_.clause_ids();
    const bool judged = std::find(carried.begin(), carried.end(), "TEAR-01") != carried.end();
    for (const tap::Finding& finding : left.calls) {
      // That an allocation stays mapped at its last release is a matter of that clause alone.
      if (finding.rule == tap::Rule::order && !judged) continue;
      evidence(judged ? "TEAR-01" : "", "call_trace", "calls of " + role + ": " + finding.text);
    }
  }
  workers_.clear();
  bool lost = false;
  for (int device = 0; device < plan().devices; ++device) {
    const std::uint64_t due = session_.idle_free_memory(device);
    check_free_memory("", due, "after everything was dropped", device);
    lost = lost || session_.granules_missing(due, free_memory(device)) != 0;
  }
  // Memory lost with a worker must not be charged to the scenarios that would use it next.
  if (lost) {
    session_.start_over();
  } else {
    session_.settle();
  }
}

void Scenario::abandon() {
  for (auto& [role, child] : children_) child.worker->kill_group();
  children_.clear();
  for (auto& [role, pooled] : workers_) session_.end(std::move(pooled));
  workers_.clear();
}

std::string run_scenario(Session& session, const ScenarioInfo& info,
                         const std::function<void(Scenario&)>& body, std::string& reason) {
  session.events().write("scenario.start", {{"name", info.name},
                                            {"profile", info.profile},
                                            {"clauses", info.clause_ids()},
                                            {"file", info.file},
                                            {"line", info.line}});
  const auto started = std::chrono::steady_clock::now();
  std::string outcome = "pass";
  Scenario scenario(session, info);
  const auto guarded = [&](const std::function<void()>& step) {
    try {
      step();
    } catch (const NotExercised& why) {
      outcome = "not_exercised";
      reason = why.what();
    } catch (const WorkerLost& lost) {
      static const std::map<WorkerLost::Outcome, std::string> kNames{
          {WorkerLost::Outcome::crash, "crash"},
          {WorkerLost::Outcome::hang, "hang"},
          {WorkerLost::Outcome::protocol, "protocol"}};
      outcome = kNames.at(lost.outcome);
      reason = lost.what();
      scenario.evidence("", "process", reason);
      scenario.abandon();
    } catch (const UnexpectedAnswer& answer) {
      scenario.evidence("", "error", answer.what());
    } catch (const std::exception& trouble) {
      outcome = "infrastructure";
      reason = trouble.what();
      scenario.abandon();
    }
  };
  if (!session.plan().declares(info.profile)) {
    outcome = "not_applicable";
  } else {
    guarded([&] { body(scenario); });
    guarded([&] { scenario.finish(); });
    if (scenario.failed() && (outcome == "pass" || outcome == "not_exercised")) {
      outcome = "fail";
      reason = scenario.first_failure();
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  session.events().write("scenario.end", {{"name", info.name},
                                          {"outcome", outcome},
                                          {"seconds", took.count()},
                                          {"reason", reason}});
  return outcome;
}

std::vector<ScenarioInfo>& registered_scenarios() {
  static std::vector<ScenarioInfo> scenarios;
  return scenarios;
}

int register_scenario(ScenarioInfo info) {
  registered_scenarios().push_back(std::move(info));
  return static_cast<int>(registered_scenarios().size()) - 1;
}

}  // namespace cts
