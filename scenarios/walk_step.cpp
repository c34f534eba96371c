#include "walk_step.hpp"

#include <array>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace cts::walk {
namespace {

using nlohmann::json;

constexpr std::array kOps{
    std::pair{Op::allocate, "allocate"},   std::pair{Op::alias, "alias"},
    std::pair{Op::grow, "grow"},           std::pair{Op::fill, "fill"},
    std::pair{Op::verify, "verify"},       std::pair{Op::exporting, "export"},
    std::pair{Op::send, "send"},           std::pair{Op::lose, "lose"},
    std::pair{Op::receive, "receive"},     std::pair{Op::from_fds, "from_fds"},
    std::pair{Op::importing, "import"},    std::pair{Op::close, "close"},
    std::pair{Op::drop, "drop"},           std::pair{Op::kill, "kill"}};
constexpr std::array kFlaws{
    std::pair{Flaw::none, "none"}, std::pair{Flaw::larger, "larger"},
    std::pair{Flaw::smaller, "smaller"}, std::pair{Flaw::swapped, "swapped"}};

template <class Table, class Value>
const char* name_in(const Table& table, Value value) {
  for (const auto& [known, name] : table) {
    if (known == value) return name;
  }
  return "?";
}

template <class Table>
auto value_in(const Table& table, const std::string& wanted) {
  for (const auto& [value, name] : table) {
    if (name == wanted) return value;
  }
  throw std::runtime_error("no step of a walk knows \"" + wanted + "\"");
}

std::string granules(const Step& step) {
  std::string text = std::to_string(step.granules) + (step.granules == 1 ? " granule" : " granules");
  if (step.less != 0) text += " less " + std::to_string(step.less) + " bytes";
  return text;
}

std::string with_order(const Step& step) {
  std::string text;
  for (const int index : step.order) text += (text.empty() ? "" : ",") + std::to_string(index);
  text = " (fds " + (text.empty() ? "none" : text);
  if (step.less != 0) text += ", size less " + std::to_string(step.less) + " bytes";
  if (step.flaw != Flaw::none) text += std::string(", sizes ") + name_of(step.flaw);
  return text + ")";
}

}  // namespace

const char* name_of(Op op) { return name_in(kOps, op); }
const char* name_of(Flaw flaw) { return name_in(kFlaws, flaw); }

std::string to_string(const Step& step) {
  const std::string who(1, static_cast<char>('A' + step.process));
  const std::string object = std::to_string(step.object);
  const std::string out = std::to_string(step.out);
  switch (step.op) {
    case Op::allocate: return who + " allocates " + out + " of " + granules(step);
    case Op::alias: return who + " aliases " + object + " as " + out;
    case Op::grow: return who + " grows " + object + " by " + granules(step) + " as " + out;
    case Op::fill: return who + " fills " + object + " with " + std::to_string(step.seed);
    case Op::verify: return who + " verifies " + object;
    case Op::exporting: return who + " exports " + object + " as " + out;
    case Op::send: return who + " sends " + object + " in parcel " + out;
    case Op::lose: return "parcel " + object + " is lost";
    case Op::receive: return who + " receives parcel " + object + " as fds " + out;
    case Op::from_fds: return who + " rebuilds " + out + " from fds " + object + with_order(step);
    case Op::importing: return who + " imports " + object + " as " + out;
    case Op::close: return who + " closes " + object;
    case Op::drop: return who + " drops " + object;
    case Op::kill: return who + " is killed";
  }
  return "?";
}

std::string to_string(const std::vector<Step>& steps) {
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    text += (i == 0 ? "" : "; ") + std::to_string(i + 1) + ". " + to_string(steps[i]);
  }
  return text;
}

json to_json(const Step& step) {
  json result = {{"op", name_of(step.op)}, {"process", step.process}};
  const auto add = [&](const char* name, int value) {
    if (value != 0) result[name] = value;
  };
  add("object", step.object);
  add("out", step.out);
  add("granules", step.granules);
  add("less", step.less);
  add("seed", step.seed);
  if (!step.order.empty()) result["order"] = step.order;
  if (step.flaw != Flaw::none) result["flaw"] = name_of(step.flaw);
  return result;
}

Step step_from_json(const json& from) {
  try {
    Step step;
    step.op = value_in(kOps, from.at("op"));
    step.process = from.at("process");
    step.object = from.value("object", 0);
    step.out = from.value("out", 0);
    step.granules = from.value("granules", 0);
    step.less = from.value("less", 0);
    step.seed = from.value("seed", 0);
    step.order = from.value("order", std::vector<int>{});
    step.flaw = value_in(kFlaws, from.value("flaw", "none"));
    return step;
  } catch (const json::exception& error) {
    throw std::runtime_error("not a step of a walk: " + from.dump() + ": " + error.what());
  }
}

void save(const Walk& walk, const std::string& why, const std::string& path) {
  json steps = json::array();
  json readable = json::array();
  for (const Step& step : walk.steps) {
    steps.push_back(to_json(step));
    readable.push_back(to_string(step));
  }
  std::ofstream file(path);
  file << json{{"version", 1},     {"seed", walk.seed},    {"processes", walk.processes},
               {"failure", why},   {"readable", readable}, {"steps", steps}}
              .dump(1)
       << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

Walk load(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read the walk " + path);
  try {
    const json from = json::parse(file);
    if (from.at("version") != 1) throw std::runtime_error(path + ": a walk has version 1");
    Walk walk{from.value("seed", std::uint64_t{0}), from.at("processes"), {}};
    if (walk.processes < 1 || walk.processes > 26) {
      throw std::runtime_error(path + ": a walk has 1 to 26 processes");
    }
    for (const json& step : from.at("steps")) {
      walk.steps.push_back(step_from_json(step));
      if (walk.steps.back().process < 0 || walk.steps.back().process >= walk.processes) {
        throw std::runtime_error(path + ": a step of a process that the walk has not");
      }
    }
    return walk;
  } catch (const json::exception& error) {
    throw std::runtime_error(path + " is not a walk: " + error.what());
  }
}

}  // namespace cts::walk
