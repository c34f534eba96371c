// vmmcts-scenarios: the coordinator with every scenario. `--plan FILE` runs the plan's scenarios,
// `--catalog` lists them all; anything else is Catch2's own.
#include <catch2_compat.hpp>
#include <cstdio>
#include <cstring>
#include <optional>

#include "coordinator/process.hpp"
#include "coordinator/scenario.hpp"

namespace {

// The session of this program; Catch2's test cases take no argument, so it stands here.
std::optional<cts::Session>& session() {
  static std::optional<cts::Session> the_session;
  return the_session;
}

void print_catalog() {
  for (const cts::ScenarioInfo& info : cts::registered_scenarios()) {
    const cts::Json line = {{"name", info.name},
                            {"profile", info.profile},
                            {"clauses", info.clause_ids()},
                            {"file", info.file},
                            {"line", info.line}};
    std::puts(line.dump().c_str());
  }
}

// The plan's scenarios as a Catch2 test specification.
std::string specification(const cts::Plan& plan) {
  std::string text;
  for (const std::string& name : plan.scenarios) {
    text += (text.empty() ? "\"" : ",\"") + name + "\"";
  }
  return text;
}

}  // namespace

namespace cts {

void run_as_test_case(int registered, void (*body)(Scenario&)) {
  const ScenarioInfo& info = registered_scenarios().at(registered);
  std::string reason;
  const std::string outcome = run_scenario(*session(), info, body, reason);
  INFO(info.file << ":" << info.line << ": " << outcome << ": " << reason);
  CHECK((outcome == "pass" || outcome.starts_with("not_")));
}

}  // namespace cts

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--catalog") == 0) {
    print_catalog();
    return 0;
  }
  if (argc < 3 || std::strcmp(argv[1], "--plan") != 0) {
    std::fputs("vmmcts-scenarios: start with --plan FILE or --catalog; people use ci/vmmcts run\n",
               stderr);
    return 2;
  }
  int failed = 0;
  try {
    cts::become_subreaper();
    session().emplace(cts::Plan::load(argv[2]));
    std::vector<std::string> words{argv[0]};
    const std::string names = specification(session()->plan());
    if (!names.empty()) words.push_back(names);
    words.insert(words.end(), argv + 3, argv + argc);
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    for (int round = 0; round < session()->plan().rounds; ++round) {
      failed += run_catch2(static_cast<int>(arguments.size()), arguments.data());
    }
    session()->events().write("run.end", {{"failed", failed}});
    session().reset();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vmmcts-scenarios: %s\n", error.what());
    return 3;
  }
  return failed == 0 ? 0 : 1;
}
