#include "coordinator/event_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>

namespace cts {

EventLog::EventLog(const std::string& path)
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!file_) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

void EventLog::write(const std::string& event, nlohmann::json members) {
  members["event"] = event;
  const std::string line =
      members.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (::write(file_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw std::runtime_error(std::string("cannot write the event log: ") + std::strerror(errno));
  }
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace cts
