// The operations on file descriptors that every worker has (PROTOCOL.md).
#pragma once

#include <sys/resource.h>

#include <map>
#include <optional>
#include <vector>

#include "worker/server.hpp"

namespace cts {

// Owns the descriptors that this worker was sent or made. A number that somebody else closed is
// forgotten by close_fd without being closed again.
class FdOperations {
 public:
  // Adds the operations to the server; *this must outlive it.
  void add_to(Server& server);

  // Closes every descriptor held here and puts RLIMIT_NOFILE back.
  void reset();

  // Holds a descriptor that an operation made until close_fd or reset. Returns its number.
  int keep(UniqueFd fd);

 private:
  Reply open_fd(const std::string& kind);
  void lower_limit(int free_slots);
  void restore_limit();

  std::map<int, UniqueFd> owned_;
  std::vector<UniqueFd> fillers_;
  std::optional<rlimit> original_limit_;
};

}  // namespace cts
