#include "coordinator/plan.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace cts {
namespace {

// A member of the plan that the environment may give too, as VMMCTS_ and its name in capitals.
std::optional<std::string> option(const nlohmann::json& plan, const std::string& member) {
  if (const auto found = plan.find(member); found != plan.end() && !found->is_null()) {
    return found->is_string() ? found->get<std::string>() : found->dump();
  }
  std::string name = "VMMCTS_" + member;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<std::uint64_t> number(const nlohmann::json& plan, const std::string& member) {
  const auto text = option(plan, member);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text->data() + text->size()) {
    throw std::runtime_error(member + " is a number, not " + *text);
  }
  return value;
}

}  // namespace

Plan Plan::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read the plan " + path);
  try {
    const auto json = nlohmann::json::parse(file);
    if (json.at("version") != 1) throw std::runtime_error(path + ": a plan has version 1");
    Plan plan;
    plan.implementation = json.at("implementation");
    plan.worker = json.at("worker");
    plan.kind = json.at("kind");
    plan.command = json.at("command");
    plan.profiles = json.at("profiles");
    plan.environment = json.value("environment", std::map<std::string, std::string>{});
    plan.observer = json.at("observer");
    plan.driver = json.at("driver");
    if (const auto tap = json.find("tap"); tap != json.end() && tap->is_string()) plan.tap = *tap;
    if (const auto preload = json.find("fdcalls"); preload != json.end() && preload->is_string()) {
      plan.fdcalls = *preload;
    }
    plan.deadline = std::chrono::milliseconds(
        static_cast<long long>(json.value("deadline_seconds", 20.0) * 1000));
    plan.devices = json.value("devices", 1);
    plan.work_dir = json.at("work_dir");
    plan.events = json.at("events");
    plan.scenarios = json.value("scenarios", std::vector<std::string>{});
    plan.rounds = json.value("rounds", 1);
    plan.walk_seeds = number(json, "walk_seeds");
    plan.walk_first_seed = number(json, "walk_first_seed").value_or(1);
    plan.walk_replay = option(json, "walk_replay").value_or("");
    plan.walk_failures = option(json, "walk_failures").value_or(plan.work_dir);
    plan.walk_shrink =
        std::chrono::seconds(number(json, "walk_shrink_seconds").value_or(10));
    if (plan.command.empty()) throw std::runtime_error(path + ": command is empty");
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path + " is not a plan: " + error.what());
  }
}

bool Plan::declares(const std::string& profile) const {
  return std::find(profiles.begin(), profiles.end(), profile) != profiles.end();
}

}  // namespace cts
