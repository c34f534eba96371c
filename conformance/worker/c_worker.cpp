// vmmcts-worker LIBRARY: the worker for an implementation that exports the C table.
// vmmcts-worker --check LIBRARY: says in one line what is wrong with the library, exit status 2.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <sstream>

#include "worker/fd_operations.hpp"
#include "worker/implementation_operations.hpp"
#include "worker/library.hpp"

namespace {

int usage(const std::string& problem) {
  std::fprintf(stderr, "vmmcts-worker: %s\n", problem.c_str());
  return 2;
}

// What the driver in this process says of its version, 0 without a driver.
int driver_version() {
  using VersionFn = int (*)(int*);
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 0;
  const auto get = reinterpret_cast<VersionFn>(::dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  return get != nullptr && get(&version) == 0 ? version : 0;
}

cts::Json hello(const vmmcts_implementation& table) {
  std::istringstream words(table.profiles);
  cts::Json profiles = cts::Json::array();
  for (std::string word; words >> word;) profiles.push_back(word);
  return {{"protocol", cts::kProtocolVersion}, {"implementation", table.name},
          {"version", table.version},          {"profiles", profiles},
          {"pid", ::getpid()},                 {"driver_version", driver_version()}};
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc == 3 && std::strcmp(argv[1], "--check") == 0;
  if (argc != 2 && !check) return usage("usage: vmmcts-worker [--check] LIBRARY");
  const cts::LoadedLibrary library = cts::load_library(argv[argc - 1]);
  if (library.table == nullptr) return usage(library.problem);
  if (check) return 0;
  if (const auto problem = cts::Server::environment_problem(); !problem.empty()) {
    return usage(problem);
  }

  cts::FdOperations fds;
  cts::ImplementationOperations implementation(*library.table);
  cts::Server server;
  server.add("hello", [&](cts::Message&) { return cts::Reply{hello(*library.table)}; });
  server.add("reset", [&](cts::Message&) {
    implementation.reset();
    fds.reset();
    return cts::Reply{};
  });
  fds.add_to(server);
  implementation.add_to(server);
  return server.run();
}
