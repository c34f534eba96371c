// What a scenario is written with: workers, witnesses and checks that name the clause they judge.
//
//   VMMCTS_SCENARIO("core", "an export adds one descriptor per allocation", "[DESC-02][DESC-03]") {
//     Worker& exporter = s.worker("exporter");
//     ...
//     s.check_fds("DESC-03", exporter, before, "after the descriptor was released");
//   }
//
// A check that does not hold is recorded with its witness and its clause, and the scenario goes on.
// An answer that the scenario cannot go on without (Answer::value, Answer::error) ends it as failed.
// Names hold no comma, bracket or quotation mark: they are Catch2 test names too.
#pragma once

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/fd_set.hpp"
#include "coordinator/session.hpp"
#include "coordinator/worker.hpp"

namespace cts {

struct ScenarioInfo {
  std::string profile;
  std::string name;
  std::string clauses;  // "[DESC-02][DESC-03]"
  std::string file;
  int line = 0;

  std::vector<std::string> clause_ids() const;
};

// Thrown by a scenario that could not get to what it is about.
struct NotExercised : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Scenario {
 public:
  Scenario(Session& session, const ScenarioInfo& info);

  // The worker with this role, in its clean state when first asked for; the same one afterwards.
  Worker& worker(const std::string& role);
  // A worker of its own that is started with descriptors, numbered from kFirstInherited.
  Worker& worker_inheriting(const std::string& role, const std::vector<UniqueFd>& fds);
  // Which of the implementation's workers is under test: "c", "python".
  const std::string& kind() const { return session_.plan().kind; }
  const Plan& plan() const { return session_.plan(); }
  Session& session() { return session_; }

  // Starts a multiprocessing child of `parent` by the given start method; it holds the parent's
  // objects under new numbers ({number in the child, number in the parent}) and serves the protocol.
  // Throws UnexpectedAnswer when start() raises, WorkerLost when the child does not connect in time.
  Worker& start_child(const std::string& role, Worker& parent, const std::string& method,
                      const std::map<int, int>& objects);
  // Ends a child and joins it in its parent, which keeps the Process object until `drop` is asked
  // for. A child that does not exit with status 0 is evidence.
  enum class ProcessObject { keep, drop };
  void stop_child(const std::string& role, ProcessObject object = ProcessObject::drop);

  // Kills a child and joins it in its parent.
  void kill_child(const std::string& role);
  // Processes whose parent is the worker, seen in /proc.
  std::size_t children_of(const Worker& worker) const;

  std::uint64_t free_memory(int device = 0) { return session_.free_memory(device); }

  // Failures of a worker's system calls. Throws NotExercised where they cannot be had.
  tap::FdCalls& fd_calls(const Worker& worker);

  // Names a case of a table while the returned object lives: it stands before each text recorded.
  class Case {
   public:
    Case(Scenario& scenario, std::string text) : scenario_(scenario) {
      scenario_.cases_.push_back(std::move(text));
    }
    Case(const Case&) = delete;
    ~Case() { scenario_.cases_.pop_back(); }

   private:
    Scenario& scenario_;
  };
  [[nodiscard]] Case in_case(std::string text) { return Case(*this, std::move(text)); }

  // Checks. `clauses` is one id or several with spaces between; `text` says what is due.
  void check(std::string_view clauses, bool holds, const std::string& text);
  template <class A, class B>
  void check_equal(std::string_view clauses, const std::string& what, const A& actual,
                   const B& expected) {
    if (actual == expected) return;
    std::ostringstream text;
    text << what << ": " << shown(actual) << ", expected " << shown(expected);
    evidence(clauses, "assertion", text.str());
  }
  // The worker's descriptors are the ones of `before`.
  void check_fds(std::string_view clauses, Worker& worker, const FdSet& before,
                 const std::string& when);
  // The same, for what another thread of the worker is about to close: waits for it until the
  // request deadline before it judges.
  void check_fds_soon(std::string_view clauses, Worker& worker, const FdSet& before,
                      const std::string& when);
  // The worker has exactly `count` descriptors more than in `before`, and lost none. Returns them.
  std::vector<int> check_fds_added(std::string_view clauses, Worker& worker, const FdSet& before,
                                   std::size_t count, const std::string& when);
  // As many bytes are free as given, seen from the third process.
  void check_free_memory(std::string_view clauses, std::uint64_t expected, const std::string& when,
                         int device = 0);
  // What a worker holds of the driver (handles, mappings, reservations), by its calls.
  tap::Held held(const Worker& worker);
  // It holds as much as given: what free memory does not show, address space above all. Without a
  // tap nothing is checked.
  void check_held(std::string_view clauses, const Worker& worker, const tap::Held& before,
                  const std::string& when);
  // The buffer holds the pattern of `seed`.
  void check_bytes(std::string_view clauses, Worker& worker, const Buffer& buffer,
                   std::uint64_t seed, const std::string& when);
  // The answer is an error of this kind whose message holds every one of `parts`, case aside.
  template <class T>
  void check_error(std::string_view clauses, const Answer<T>& answer, const std::string& kind,
                   const std::vector<std::string>& parts = {}) {
    check_error_is(clauses, answer.operation(), answer.ok() ? nullptr : &answer.error(), kind,
                   parts);
  }
  // No driver call, queries aside, was made for the answer. Not exercised without a tap.
  template <class T>
  void check_no_driver_calls(std::string_view clauses, const Answer<T>& answer) {
    check_calls(clauses, answer.operation(), answer.calls, {});
  }
  // The driver calls made, queries aside, are exactly these, in order.
  void check_calls(std::string_view clauses, const std::string& operation,
                   const std::vector<tap::Call>& calls, const std::vector<std::string>& expected);

  // Something measured that a report shows.
  void note(const std::string& text);

  // Records that a clause (or, with none named, every clause of the scenario) is broken.
  void evidence(std::string_view clauses, const std::string& witness, const std::string& text);

  // Runs checks that have to find something wrong, and records nothing of what they find: the
  // canary of a witness. The scenario fails when they stay silent.
  void must_notice(const std::string& what, const std::function<void()>& checks);

  // Gives every worker back and judges what they left. Called once, after the body.
  void finish();
  // Ends every worker, after one of them was lost.
  void abandon();

  bool failed() const { return failed_; }
  const std::string& first_failure() const { return first_failure_; }

 private:
  PooledWorker& pooled(const Worker& worker);
  void check_error_is(std::string_view clauses, const std::string& operation, const Error* error,
                      const std::string& kind, const std::vector<std::string>& parts);

  template <class T>
  static std::string shown(const T& value) {
    if constexpr (requires { Json(value); }) {
      return Json(value).dump();
    } else {
      std::ostringstream text;
      text << value;
      return text.str();
    }
  }

  // A child of a worker, and its Process object there.
  struct Child {
    std::unique_ptr<Worker> worker;
    Worker* parent = nullptr;
    int process = 0;
  };

  Session& session_;
  const ScenarioInfo& info_;
  std::map<std::string, PooledWorker> workers_;
  std::map<std::string, Child> children_;
  std::vector<std::string> cases_;
  bool noticing_ = false;
  int noticed_ = 0;
  bool failed_ = false;
  std::string first_failure_;
};

// Runs one scenario from start to end, with its events. Returns the outcome of the event log.
std::string run_scenario(Session& session, const ScenarioInfo& info,
                         const std::function<void(Scenario&)>& body, std::string& reason);

// Every scenario of the program, in the order of the files.
std::vector<ScenarioInfo>& registered_scenarios();
// Adds one; used by VMMCTS_SCENARIO. Returns where it is kept.
int register_scenario(ScenarioInfo info);
// The body of a scenario's Catch2 test case: runs it in the session of the program.
void run_as_test_case(int registered, void (*body)(Scenario&));

}  // namespace cts

#define VMMCTS_JOIN_(a, b) a##b
#define VMMCTS_JOIN(a, b) VMMCTS_JOIN_(a, b)
#define VMMCTS_SCENARIO_AS(id, profile, name, clauses)                                          \
  static void VMMCTS_JOIN(scenario_, id)(cts::Scenario & s);                                    \
  static const int VMMCTS_JOIN(registered_, id) =                                               \
      cts::register_scenario({profile, name, clauses, __FILE__, __LINE__});                     \
  TEST_CASE(name, "[" profile "]" clauses) {                                                    \
    cts::run_as_test_case(VMMCTS_JOIN(registered_, id), VMMCTS_JOIN(scenario_, id));            \
  }                                                                                             \
  static void VMMCTS_JOIN(scenario_, id)([[maybe_unused]] cts::Scenario & s)
#define VMMCTS_SCENARIO(profile, name, clauses) \
  VMMCTS_SCENARIO_AS(__COUNTER__, profile, name, clauses)
