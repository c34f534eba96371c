// What the command line asks of one run of the coordinator (PROTOCOL.md, Plan).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cts {

struct Plan {
  // Reads the file. Throws std::runtime_error with one line that says what is wrong with it.
  static Plan load(const std::string& path);

  bool declares(const std::string& profile) const;

  std::string implementation;
  std::string worker;
  std::string kind;
  std::vector<std::string> command;
  std::vector<std::string> profiles;
  std::map<std::string, std::string> environment;
  std::vector<std::string> observer;
  std::string driver;
  std::optional<std::string> tap;
  std::optional<std::string> fdcalls;  // the library to preload, for failures of system calls
  std::chrono::milliseconds deadline{20000};
  int devices = 1;
  std::string work_dir;
  std::string events;
  std::vector<std::string> scenarios;  // names; empty means all
  int rounds = 1;                      // how often all of them are run

  // Random walks (scenarios/WALKS.md).
  std::optional<std::uint64_t> walk_seeds;    // how many; none: the scenario's own number
  std::uint64_t walk_first_seed = 1;
  std::string walk_replay;                    // a file with a walk to play instead, or empty
  std::string walk_failures;                  // directory of such files; work_dir by default
  std::chrono::milliseconds walk_shrink{10000};  // time to look for a shorter walk
};

}  // namespace cts
