// The append-only record of a run (PROTOCOL.md, Event log).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "protocol/unique_fd.hpp"

namespace cts {

// One write() a line, so that a line is whole whatever dies.
class EventLog {
 public:
  // Appends to `path`, making the file. Throws std::runtime_error when it cannot.
  explicit EventLog(const std::string& path);

  void write(const std::string& event, nlohmann::json members);

 private:
  UniqueFd file_;
};

// The present time as ISO 8601 in UTC.
std::string utc_now();

}  // namespace cts
