// Where multiprocessing children of a worker connect to.
#pragma once

#include <string>

#include "protocol/deadline.hpp"
#include "protocol/unique_fd.hpp"

namespace cts {

// A listening Unix socket at a path, which the destructor removes.
class Listener {
 public:
  // Throws std::runtime_error when the path cannot be bound.
  explicit Listener(std::string path);
  Listener(const Listener&) = delete;
  ~Listener();

  // The next connection, close-on-exec; nothing when none comes before the deadline.
  UniqueFd accept(const Deadline& deadline) const;

 private:
  std::string path_;
  UniqueFd socket_;
};

}  // namespace cts
