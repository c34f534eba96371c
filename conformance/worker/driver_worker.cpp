// vmmcts-driver-worker: the worker for the driver itself. Its operations are the driver's entry
// points by name (driver_operations.hpp), called through the libcuda.so.1 of this process.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "worker/driver_operations.hpp"
#include "worker/driver_rounds.hpp"

namespace {

cts::Json hello(cts::DriverState& state) {
  int version = 0;
  state.table().cuDriverGetVersion(&version);
  return {{"protocol", cts::kProtocolVersion}, {"implementation", "driver"},
          {"version", std::to_string(version)}, {"profiles", {"driver"}},
          {"pid", ::getpid()},                  {"driver_version", version}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--before-init") == 0) {
    return cts::print_results_before_init();
  }
  const std::string problem =
      argc != 1 ? "it takes no argument" : cts::Server::environment_problem();
  if (!problem.empty()) {
    std::fprintf(stderr, "vmmcts-driver-worker: %s\n", problem.c_str());
    return 2;
  }
  cts::FdOperations fds;
  cts::DriverState state;
  cts::DriverOperations driver(state, fds);
  cts::Server server;
  server.add("hello", [&](cts::Message&) { return cts::Reply{hello(state)}; });
  server.add("warm_up", [&](cts::Message& m) {
    state.warm_up(m.body.at("devices"));
    return cts::Reply{};
  });
  server.add("reset", [&](cts::Message&) {
    fds.reset();
    state.reset();
    return cts::Reply{};
  });
  fds.add_to(server);
  driver.add_to(server);
  cts::add_driver_rounds(server, state);
  return server.run();
}
