// vmmcts-trace FILE [--json | --chrome | --oracle]: shows the driver calls of a call log, or what is
// wrong with them. Exit status: 0, 1 when the oracle found something, 2 for what cannot be read.
#include <cstdio>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tap/call_log.hpp"
#include "tap/oracle.hpp"

namespace {

using Json = nlohmann::json;
using tap::Call;

Json json_of(const Call& call) {
  Json arguments = Json::object();
  for (const auto& [name, value] : call.named_arguments()) arguments[std::string(name)] = value;
  return {{"sequence", call.sequence}, {"name", call.name},         {"arguments", arguments},
          {"result", call.result},     {"injected", call.injected}, {"fd_in", call.fd_in},
          {"fd_out", call.fd_out},     {"pid", call.pid},           {"tid", call.tid},
          {"start_ns", call.start_ns}, {"duration_ns", call.duration_ns}};
}

void print_text(const std::vector<Call>& calls) {
  const std::uint64_t origin = calls.empty() ? 0 : calls.front().start_ns;
  for (const Call& call : calls) {
    std::printf("%12.3f us  %d/%d  %s  (%.3f us)\n",
                static_cast<double>(call.start_ns - origin) / 1000, call.pid, call.tid,
                call.to_string().c_str(), static_cast<double>(call.duration_ns) / 1000);
  }
}

void print_json(const std::vector<Call>& calls) {
  for (const Call& call : calls) std::puts(json_of(call).dump().c_str());
}

// The trace event format that chrome://tracing and Perfetto read; times in microseconds.
void print_chrome(const std::vector<Call>& calls) {
  Json events = Json::array();
  for (const Call& call : calls) {
    events.push_back({{"name", call.name},
                      {"cat", tap::is_query(call.name) ? "query" : "call"},
                      {"ph", "X"},
                      {"ts", static_cast<double>(call.start_ns) / 1000},
                      {"dur", static_cast<double>(call.duration_ns) / 1000},
                      {"pid", call.pid},
                      {"tid", call.tid},
                      {"args", json_of(call)}});
  }
  std::puts(Json{{"traceEvents", events}, {"displayTimeUnit", "ns"}}.dump().c_str());
}

// An allocation that is released while it is mapped is no fault: the driver keeps it until then.
int print_findings(const std::vector<Call>& calls, bool complete) {
  tap::Oracle oracle;
  oracle.enter(calls);
  auto findings = oracle.take_findings();
  if (complete) {
    for (auto& leak : oracle.leaks()) findings.push_back(std::move(leak));
  }
  std::size_t shown = 0;
  std::set<pid_t> processes;
  for (const Call& call : calls) processes.insert(call.pid);
  for (const tap::Finding& finding : findings) {
    if (finding.rule == tap::Rule::order) continue;
    ++shown;
    std::printf("%s: process %d, call %llu: %s\n", std::string(name_of(finding.rule)).c_str(),
                finding.call.pid, static_cast<unsigned long long>(finding.call.sequence),
                finding.text.c_str());
  }
  std::printf("%zu calls of %zu processes: %zu problems\n", calls.size(), processes.size(), shown);
  return shown == 0 ? 0 : 1;
}

int fail(const std::string& problem) {
  std::fprintf(stderr, "vmmcts-trace: %s\n", problem.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc == 3 ? argv[2] : "--text";
  const std::set<std::string> known{"--text", "--json", "--chrome", "--oracle"};
  if (argc < 2 || argc > 3 || !known.contains(how)) {
    return fail("usage: vmmcts-trace FILE [--json | --chrome | --oracle]");
  }
  try {
    const tap::CallLog log = tap::CallLog::open(argv[1]);
    const std::vector<Call> calls = log.calls_since(0);
    if (log.overflowed()) {
      std::fprintf(stderr, "vmmcts-trace: %llu calls did not fit into the log and are missing%s\n",
                   static_cast<unsigned long long>(log.position() - log.capacity()),
                   how == "--oracle" ? "; what is left cannot be told" : "");
    }
    if (how == "--oracle") return print_findings(calls, !log.overflowed());
    if (how == "--json") print_json(calls);
    if (how == "--chrome") print_chrome(calls);
    if (how == "--text") print_text(calls);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  return 0;
}
