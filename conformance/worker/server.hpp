// The serving side of the protocol: reads requests, runs operations, answers.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "protocol/channel.hpp"

namespace cts {

// An operation that failed, as the reply tells it.
struct OperationError : std::runtime_error {
  OperationError(std::string error_kind, const std::string& message, int cuda_result = 0,
                 int system_errno = 0)
      : std::runtime_error(message), kind(std::move(error_kind)), cuda(cuda_result),
        error_number(system_errno) {}
  std::string kind;
  int cuda;
  int error_number;
};

// OSError of the system call `call` with the present errno.
OperationError system_error(const std::string& call);

// What goes back: a result, and descriptors beside it (still owned by whoever holds them).
struct Reply {
  Json result = Json::object();
  std::vector<int> fds = {};
};

class Server {
 public:
  using Operation = std::function<Reply(Message&)>;

  void add(const std::string& name, Operation operation);

  // Serves the socket named by VMMCTS_FD until the connection ends. Returns the exit status.
  int run();

  // What is wrong with the way this process was started, empty if nothing: VMMCTS_FD must name an
  // open socket.
  static std::string environment_problem();

 private:
  Json answer(Message& request, std::vector<int>& fds);
  std::map<std::string, Operation> operations_;
};

}  // namespace cts
