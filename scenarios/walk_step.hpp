// One step of a random walk, as a small value: what a file that replays a walk is made of.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cts::walk {

enum class Op {
  allocate,  // process, out, granules, less
  alias,     // process, object (buffer), out, less: a request that the range covers
  grow,      // process, object (buffer), out, granules, less: a request beyond the range
  fill,      // process, object (buffer), seed
  verify,    // process, object (buffer)
  exporting, // process, object (buffer), out (descriptor)
  send,      // process, object (descriptor), out (parcel): its fds are in flight, with its sizes
  lose,      // object (parcel): closed on the way
  receive,   // process, object (parcel), out (raw fds)
  from_fds,  // process, object (raw fds), out (descriptor), order, less, flaw
  importing, // process, object (descriptor), out (buffer)
  close,     // process, object (buffer or descriptor): its own close; it can be named on
  drop,      // process, object (buffer, descriptor or raw fds): given up
  kill,      // process: SIGKILL; its next step starts another one
};

// What from_fds is told wrong, so that an import must be refused.
enum class Flaw { none, larger, smaller, swapped };

// Objects have numbers of their own that no step gives out twice, so that a walk stays meaningful
// when steps are taken out of it: a step whose object was never made is skipped.
struct Step {
  Op op = Op::allocate;
  int process = 0;
  int object = 0;              // 0: none
  int out = 0;                 // 0: makes none
  int granules = 0;            // how many more
  int less = 0;                // bytes asked for less than whole granules
  int seed = 0;                // of the pattern
  std::vector<int> order = {}; // which of the fds, in which order
  Flaw flaw = Flaw::none;

  bool operator==(const Step&) const = default;
};

const char* name_of(Op op);
const char* name_of(Flaw flaw);

// "B imports descriptor 4 as buffer 5".
std::string to_string(const Step& step);
// "1. A allocates buffer 1 of 2 granules; 2. ...".
std::string to_string(const std::vector<Step>& steps);

nlohmann::json to_json(const Step& step);
// Throws std::runtime_error with what is wrong.
Step step_from_json(const nlohmann::json& json);

// A walk: its steps and how many processes take part.
struct Walk {
  std::uint64_t seed = 0;  // where it came from; it does not matter to a replay
  int processes = 2;
  std::vector<Step> steps = {};
};

// A walk as a file. `why` stands in it for the reader.
void save(const Walk& walk, const std::string& why, const std::string& path);
// Throws std::runtime_error with what is wrong.
Walk load(const std::string& path);

}  // namespace cts::walk
