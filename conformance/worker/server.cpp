#include "worker/server.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace cts {
namespace {

std::optional<int> socket_from_environment() {
  const char* text = std::getenv("VMMCTS_FD");
  if (text == nullptr) return std::nullopt;
  int fd = -1;
  const auto parsed = std::from_chars(text, text + std::strlen(text), fd);
  struct stat status{};
  if (parsed.ec != std::errc{} || ::fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    return std::nullopt;
  }
  return fd;
}

}  // namespace

OperationError system_error(const std::string& call) {
  const int error = errno;
  return OperationError("OSError", call + ": " + std::strerror(error), 0, error);
}

void Server::add(const std::string& name, Operation operation) {
  operations_.emplace(name, std::move(operation));
}

std::string Server::environment_problem() {
  if (socket_from_environment()) return {};
  return "VMMCTS_FD does not name an open socket: workers are started by the coordinator "
         "(see conformance/PROTOCOL.md)";
}

int Server::run() {
  const auto socket = socket_from_environment();
  if (!socket) return 2;
  ::fcntl(*socket, F_SETFD, FD_CLOEXEC);
  Channel channel{UniqueFd(*socket)};
  try {
    for (;;) {
      Message request = channel.receive(Deadline::never());
      std::vector<int> fds;
      const Json reply = answer(request, fds);
      channel.send(reply, fds, Deadline::never());
    }
  } catch (const ChannelError& error) {
    return error.reason == ChannelError::Reason::closed ? 0 : 3;
  }
}

Json Server::answer(Message& request, std::vector<int>& fds) {
  Json reply = {{"id", request.body.value("id", 0)}};
  const auto refuse = [&](const std::string& kind, const std::string& text, int cuda, int error) {
    reply["ok"] = false;
    reply["error"] = {{"kind", kind}, {"message", text}, {"cuda", cuda}, {"errno", error}};
  };
  try {
    const std::string name = request.body.at("op");
    const auto operation = operations_.find(name);
    if (operation == operations_.end()) {
      refuse("Protocol", "this worker has no operation " + name, 0, 0);
      return reply;
    }
    Reply done = operation->second(request);
    reply["ok"] = true;
    reply["result"] = std::move(done.result);
    fds = std::move(done.fds);
  } catch (const OperationError& error) {
    refuse(error.kind, error.what(), error.cuda, error.error_number);
  } catch (const ChannelError& error) {
    refuse("OSError", error.what(), 0, 0);
  } catch (const Json::exception& error) {
    refuse("Protocol", error.what(), 0, 0);
  }
  return reply;
}

}  // namespace cts
