// A worker that misbehaves as its argument says, for the tests of the coordinator.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "worker/fd_operations.hpp"
#include "worker/server.hpp"

namespace {

// A child that outlives everything but a SIGKILL to the group.
void leave_a_child() {
  if (::fork() == 0) {
    ::signal(SIGTERM, SIG_IGN);
    for (;;) ::pause();
  }
}

void say(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(3, text.data(), text.size());
}

}  // namespace

int main(int, char** argv) {
  const std::string behaviour = argv[1];
  if (behaviour == "exit at once") return 7;
  cts::FdOperations fds;
  cts::Server server;
  server.add("hello", [&](cts::Message&) {
    return cts::Reply{{{"protocol", behaviour == "other protocol" ? 99 : cts::kProtocolVersion},
                       {"pid", ::getpid()}}};
  });
  server.add("reset", [&](cts::Message&) {
    fds.reset();
    return cts::Reply{};
  });
  server.add("misbehave", [&](cts::Message& request) -> cts::Reply {
    if (behaviour == "crash") {
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would answer it
      ::raise(SIGSEGV);
    }
    if (behaviour == "exit") ::_exit(5);
    if (behaviour == "hang") {
      leave_a_child();
      for (;;) ::pause();
    }
    if (behaviour == "crash with a child") {
      leave_a_child();
      ::raise(SIGKILL);
    }
    if (behaviour == "nonsense") say("this is not JSON\n");
    if (behaviour == "half a line") {
      say("{\"id\": ");
      ::_exit(0);
    }
    if (behaviour == "other reply") say("{\"id\": 4711, \"ok\": true, \"result\": {}}\n");
    if (behaviour == "unasked descriptor") {
      return {cts::Json::object(), {request.body.at("fd").get<int>()}};
    }
    if (behaviour == "error") throw cts::OperationError("ValueError", "as asked", 1, 2);
    return {};
  });
  fds.add_to(server);
  return server.run();
}
