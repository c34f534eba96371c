#include "coordinator/plan.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace cts {

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
    plan.deadline = std::chrono::milliseconds(
        static_cast<long long>(json.value("deadline_seconds", 20.0) * 1000));
    plan.devices = json.value("devices", 1);
    plan.work_dir = json.at("work_dir");
    plan.events = json.at("events");
    plan.scenarios = json.value("scenarios", std::vector<std::string>{});
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
