// The tap as programs meet it: LD_LIBRARY_PATH and environment variables.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2_compat.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tap/call_log.hpp"
#include "tap/oracle.hpp"

using tap::Rule;

namespace {

struct Outcome {
  int status = 0;  // of exit, or -SIGNAL
  std::string errors;
  std::vector<tap::Call> calls;
  std::vector<Rule> rules;
  std::vector<std::string> first_calls;  // of the findings
};

// Runs tap_faulty under the tap over the software driver.
class Program {
 public:
  Program() {
    std::string path = (std::filesystem::temp_directory_path() / "tap-test-XXXXXX").string();
    directory_ = ::mkdtemp(path.data());
    environment_ = {{"LD_LIBRARY_PATH", TAP_DIRECTORY},
                    {"VMMCTS_TAP_NEXT", SOFTCUDA},
                    {"VMMCTS_TAP_LOG", log()},
                    {"SOFTCUDA_DIR", directory_ + "/softcuda"}};
  }
  ~Program() { std::filesystem::remove_all(directory_); }
  Program(const Program&) = delete;

  std::string log() const { return directory_ + "/calls"; }
  Program& with(const std::string& name, const std::string& value) {
    environment_[name] = value;
    return *this;
  }

  Outcome run(const char* kind) {
    const std::string errors = directory_ + "/errors";
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const auto& [name, value] : environment_) ::setenv(name.c_str(), value.c_str(), 1);
      if (std::freopen(errors.c_str(), "w", stderr) == nullptr) ::_exit(120);
      ::execl(TAP_FAULTY, "tap_faulty", kind, nullptr);
      ::_exit(121);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    Outcome outcome;
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    std::ifstream file(errors);
    outcome.errors.assign(std::istreambuf_iterator<char>(file), {});
    if (!std::filesystem::exists(log())) return outcome;
    outcome.calls = tap::CallLog::open(log()).calls_since(0);
    tap::Oracle oracle;
    oracle.enter(outcome.calls);
    auto findings = oracle.take_findings();
    for (tap::Finding& leak : oracle.leaks()) findings.push_back(std::move(leak));
    for (const tap::Finding& finding : findings) {
      outcome.rules.push_back(finding.rule);
      outcome.first_calls.emplace_back(finding.call.name);
    }
    return outcome;
  }

 private:
  std::string directory_;
  std::map<std::string, std::string> environment_;
};

// Runs vmmcts-trace; its exit status and what it printed to stdout.
std::pair<int, std::string> trace(const std::string& file, const std::string& how) {
  const std::string command = std::string(VMMCTS_TRACE) + " '" + file + "' " + how + " 2>/dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return {WEXITSTATUS(::pclose(pipe)), text};
}

bool is_one_line(const std::string& text) {
  return !text.empty() && text.find('\n') == text.size() - 1;
}

}  // namespace

TEST_CASE("each kind of fault is told by its rule and its first call") {
  using Rules = std::vector<Rule>;
  struct Row {
    const char* kind;
    Rules rules;
    std::vector<std::string> calls;
  };
  for (const Row& row : std::vector<Row>{
           {"nothing", {}, {}},
           {"released-while-mapped", {Rule::order}, {"cuMemRelease"}},
           {"double-release", {Rule::undone_twice}, {"cuMemRelease"}},
           {"dead-handle", {Rule::dead_handle}, {"cuMemExportToShareableHandle"}},
           {"double-unmap", {Rule::undone_twice}, {"cuMemUnmap"}},
           {"unmap-half", {Rule::wrong_range}, {"cuMemUnmap"}},
           {"double-free", {Rule::undone_twice}, {"cuMemAddressFree"}},
           {"free-half", {Rule::wrong_range}, {"cuMemAddressFree"}},
           {"free-mapped", {Rule::mapped_when_freed}, {"cuMemAddressFree"}},
           {"leak-handle", {Rule::leak}, {"cuMemCreate"}},
           {"leak-mapping", {Rule::order, Rule::leak, Rule::leak},
            {"cuMemRelease", "cuMemAddressReserve", "cuMemMap"}},
           {"leak-reservation", {Rule::leak}, {"cuMemAddressReserve"}},
           {"leak-pool", {Rule::leak}, {"cuMemPoolCreate"}},
           {"open-fd", {Rule::fd_open}, {std::string(tap::kDescriptorOpenAtExit)}}}) {
    INFO(row.kind);
    Program program;
    const Outcome outcome = program.run(row.kind);
    CHECK(outcome.status == 0);
    CHECK(outcome.rules == row.rules);
    CHECK(outcome.first_calls == row.calls);
  }
}

TEST_CASE("a plan fails, delays or kills at the call that it names") {
  Program program;
  const Outcome failed = program.with("VMMCTS_TAP_PLAN", "cuMemAddressReserve:1=2").run("nothing");
  REQUIRE(failed.calls.size() > 2);
  CHECK(failed.calls[1].name == "cuMemAddressReserve");
  CHECK(failed.calls[1].injected);
  CHECK(failed.calls[1].result == 2);

  Program slow;
  const Outcome delayed = slow.with("VMMCTS_TAP_PLAN", "cuMemCreate:1=delay 2000000").run("nothing");
  CHECK(delayed.status == 0);
  CHECK(delayed.calls.at(0).duration_ns >= 2'000'000);
  CHECK_FALSE(delayed.calls.at(0).injected);

  Program dying;
  const Outcome killed = dying.with("VMMCTS_TAP_PLAN", "cuMemMap:1=kill").run("nothing");
  CHECK(killed.status == -SIGKILL);
  CHECK(killed.calls.back().name == "cuMemMap");
  CHECK(killed.calls.back().result == tap::Call::kUnfinished);
}

TEST_CASE("what cannot be done is one line and exit status 2") {
  for (const char* plan : {"", "cuMemCreate", "cuMemCreate:0=1", "cuMemCreate:x=1", "cuMemCreate:1=",
                           "cuNoSuchCall:1=2", "cuMemCreate:1=delay soon"}) {
    INFO(plan);
    Program program;
    const Outcome outcome = program.with("VMMCTS_TAP_PLAN", plan).run("nothing");
    CHECK(outcome.status == 2);
    CHECK(is_one_line(outcome.errors));
  }
  Program foreign;
  std::ofstream(foreign.log()) << "no call log";
  CHECK_THROWS(tap::CallLog::open(foreign.log()));
}

TEST_CASE("a next driver that is not there is one line and exit status 2") {
  for (const char* next : {"/no/such/libcuda.so.1", TAP_DIRECTORY "/libcuda.so.1"}) {
    INFO(next);
    Program program;
    const Outcome outcome = program.with("VMMCTS_TAP_NEXT", next).run("nothing");
    CHECK(outcome.status == 2);
    CHECK(is_one_line(outcome.errors));
  }
}

TEST_CASE("a log is shown as text, JSON lines, a Chrome trace and findings") {
  Program program;
  const std::size_t calls = program.run("double-release").calls.size();
  const auto [text_status, text] = trace(program.log(), "");
  CHECK(text_status == 0);
  CHECK(text.find("cuMemCreate(handle=0x") != std::string::npos);
  CHECK(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) == calls);
  const auto [json_status, json] = trace(program.log(), "--json");
  CHECK(json_status == 0);
  CHECK(static_cast<std::size_t>(std::count(json.begin(), json.end(), '\n')) == calls);
  CHECK(nlohmann::json::parse(json.substr(0, json.find('\n'))).at("name") == "cuMemCreate");
  const auto [chrome_status, chrome] = trace(program.log(), "--chrome");
  CHECK(chrome_status == 0);
  CHECK(nlohmann::json::parse(chrome).at("traceEvents").size() == calls);
  const auto [oracle_status, oracle] = trace(program.log(), "--oracle");
  CHECK(oracle_status == 1);
  CHECK(oracle.find("undone twice: process") == 0);
  CHECK(trace(program.log() + ".none", "--json").first == 2);
  CHECK(trace(program.log(), "--none").first == 2);
}

TEST_CASE("processes share a log, and a full one says so") {
  Program program;
  tap::CallLog log = tap::CallLog::create(program.log(), 16);
  CHECK(program.run("nothing").calls.size() == 9);
  CHECK_FALSE(log.overflowed());
  const Outcome second = program.run("nothing");
  CHECK(second.status == 0);
  CHECK(second.calls.size() == 16);
  CHECK(log.overflowed());
  CHECK(second.calls.front().pid != second.calls.back().pid);
}

TEST_CASE("injections are counted apart, and taken back together") {
  Program program;
  tap::CallLog log = tap::CallLog::create(program.log(), 64);
  log.inject({.call = "cuMemAddressFree", .code = 2});
  log.inject({.call = "*", .nth = 2, .code = 3});
  const Outcome outcome = program.run("nothing");
  CHECK(log.injections_fired() == 2);
  CHECK(outcome.calls.at(1).result == 3);
  CHECK(outcome.calls.at(1).injected);
  log.clear_injections();
  CHECK(log.injections_fired() == 0);
  CHECK_THROWS_AS(log.inject({.call = "cuNoSuchCall"}), std::invalid_argument);
  for (std::size_t i = 0; i < tap::kInjections; ++i) log.inject({});
  CHECK_THROWS_AS(log.inject({}), std::length_error);
}
