#include "worker/driver_rounds.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include "protocol/deadline.hpp"

extern char** environ;

namespace cts {
namespace {

void* os_handle(int fd) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)); }

// What went wrong in the rounds of several threads.
class Tally {
 public:
  void add(CUresult result, const char* call) {
    const std::lock_guard lock(mutex_);
    ++failed_;
    if (first_.empty()) first_ = std::string(call) + " answered " + std::to_string(result);
  }
  void wrong_bytes() {
    const std::lock_guard lock(mutex_);
    ++wrong_bytes_;
  }
  Json shown() const {
    return {{"failed", failed_}, {"wrong_bytes", wrong_bytes_}, {"first", first_}};
  }

 private:
  std::mutex mutex_;
  int failed_ = 0;
  int wrong_bytes_ = 0;
  std::string first_;
};

// One round of a thread: calls until one fails, and undoes what it made.
class Round {
 public:
  Round(const DriverTable& cu, Tally& tally, int device)
      : cu_(cu), tally_(tally), prop_(shareable_memory(device)) {}

  ~Round() {
    if (fd_ >= 0) ::close(fd_);
    for (const Place& place : places_) {
      if (place.mapped) ok(cu_.cuMemUnmap(place.pointer, size_), "cuMemUnmap");
      ok(cu_.cuMemAddressFree(place.pointer, size_), "cuMemAddressFree");
    }
    for (const auto handle : handles_) ok(cu_.cuMemRelease(handle), "cuMemRelease");
  }

  void run(unsigned char byte) {
    if (!ok(cu_.cuMemGetAllocationGranularity(&size_, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "cuMemGetAllocationGranularity")) {
      return;
    }
    CUmemGenericAllocationHandle handle = 0;
    if (!ok(cu_.cuMemCreate(&handle, size_, &prop_, 0), "cuMemCreate")) return;
    handles_.push_back(handle);
    const CUdeviceptr first = place(handle);
    if (first == 0 || !ok(cu_.cuMemsetD8(first, byte, size_), "cuMemsetD8")) return;
    if (!ok(cu_.cuMemExportToShareableHandle(&fd_, handle,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            "cuMemExportToShareableHandle")) {
      fd_ = -1;
      return;
    }
    CUmemGenericAllocationHandle imported = 0;
    if (!ok(cu_.cuMemImportFromShareableHandle(&imported, os_handle(fd_),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "cuMemImportFromShareableHandle")) {
      return;
    }
    handles_.push_back(imported);
    const CUdeviceptr second = place(imported);
    if (second == 0) return;
    for (const std::size_t offset : {std::size_t{0}, size_ - 1}) {
      unsigned char seen = 0;
      if (!ok(cu_.cuMemcpyDtoH(&seen, second + offset, 1), "cuMemcpyDtoH")) return;
      if (seen != byte) tally_.wrong_bytes();
    }
  }

 private:
  struct Place {
    CUdeviceptr pointer;
    bool mapped;
  };

  // Maps the handle at an address of its own with read and write access; 0 after a failure.
  CUdeviceptr place(CUmemGenericAllocationHandle handle) {
    CUdeviceptr pointer = 0;
    if (!ok(cu_.cuMemAddressReserve(&pointer, size_, 0, 0, 0), "cuMemAddressReserve")) return 0;
    places_.push_back({pointer, false});
    if (!ok(cu_.cuMemMap(pointer, size_, 0, handle, 0), "cuMemMap")) return 0;
    places_.back().mapped = true;
    CUmemAccessDesc access{};
    access.location = prop_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return ok(cu_.cuMemSetAccess(pointer, size_, &access, 1), "cuMemSetAccess") ? pointer : 0;
  }

  bool ok(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) tally_.add(result, call);
    return result == CUDA_SUCCESS;
  }

  const DriverTable& cu_;
  Tally& tally_;
  CUmemAllocationProp prop_;
  std::size_t size_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
  std::vector<Place> places_;
  int fd_ = -1;
};

// Runs `rounds` calls of `body(thread, round)` in each of `threads` threads at once.
template <class Body>
void in_threads(int threads, int rounds, Body body) {
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([=] {
      for (int round = 0; round < rounds; ++round) body(thread, round);
    });
  }
  for (std::thread& thread : running) thread.join();
}

Reply cycles(DriverState& state, const Json& arguments) {
  const DriverTable& cu = state.table();
  const int device = arguments.value("device", 0);
  CUcontext context = state.context(device);
  Tally tally;
  in_threads(arguments.at("threads"), arguments.at("rounds"), [&, context](int thread, int round) {
    cu.cuCtxSetCurrent(context);
    Round(cu, tally, device).run(static_cast<unsigned char>(thread * 16 + round + 1));
  });
  return {tally.shown()};
}

Reply exports(DriverState& state, const Json& arguments) {
  const DriverTable& cu = state.table();
  const CUmemGenericAllocationHandle handle = state.value_of(arguments.at("handle"));
  Tally tally;
  in_threads(arguments.at("threads"), arguments.at("rounds"), [&](int, int) {
    int fd = -1;
    const CUresult result = cu.cuMemExportToShareableHandle(
        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS || ::close(fd) != 0) {
      tally.add(result, "cuMemExportToShareableHandle");
    }
  });
  return {tally.shown()};
}

Reply imports(DriverState& state, const Json& arguments) {
  const DriverTable& cu = state.table();
  const int fd = arguments.at("fd");
  Tally tally;
  in_threads(arguments.at("threads"), arguments.at("rounds"), [&](int, int) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = cu.cuMemImportFromShareableHandle(&handle, os_handle(fd),
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return tally.add(result, "cuMemImportFromShareableHandle");
    result = cu.cuMemRelease(handle);
    if (result != CUDA_SUCCESS) tally.add(result, "cuMemRelease");
  });
  return {tally.shown()};
}

// Calls every entry point of the group once, with arguments that would be fine otherwise.
Json results_of_all(const DriverTable& cu) {
  constexpr std::size_t kSize = std::size_t{2} << 20;
  const CUmemAllocationProp prop = shareable_memory(0);
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp found{};
  CUdeviceptr pointer = 0;
  CUdeviceptr base = 0;
  std::size_t size = 0;
  std::size_t total = 0;
  unsigned long long flags = 0;
  int number = 0;
  int fd = -1;
  Json results = Json::object();
  const auto add = [&](const char* name, CUresult result) { results[name] = int{result}; };
  add("cuDeviceGetCount", cu.cuDeviceGetCount(&number));
  add("cuMemGetInfo", cu.cuMemGetInfo(&size, &total));
  add("cuMemGetAllocationGranularity",
      cu.cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  add("cuMemCreate", cu.cuMemCreate(&handle, kSize, &prop, 0));
  add("cuMemAddressReserve", cu.cuMemAddressReserve(&pointer, kSize, 0, 0, 0));
  add("cuMemMap", cu.cuMemMap(kSize, kSize, 0, 1, 0));
  add("cuMemSetAccess", cu.cuMemSetAccess(kSize, kSize, &access, 1));
  add("cuMemGetAccess", cu.cuMemGetAccess(&flags, &access.location, kSize));
  add("cuMemExportToShareableHandle",
      cu.cuMemExportToShareableHandle(&fd, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  add("cuMemImportFromShareableHandle",
      cu.cuMemImportFromShareableHandle(&handle, os_handle(0),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  add("cuMemGetAllocationPropertiesFromHandle",
      cu.cuMemGetAllocationPropertiesFromHandle(&found, 1));
  add("cuMemRetainAllocationHandle",
      cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(kSize)));
  add("cuMemGetAddressRange", cu.cuMemGetAddressRange(&base, &size, kSize));
  add("cuMemcpyDtoH", cu.cuMemcpyDtoH(&number, kSize, sizeof number));
  add("cuMemUnmap", cu.cuMemUnmap(kSize, kSize));
  add("cuMemAddressFree", cu.cuMemAddressFree(kSize, kSize));
  add("cuMemRelease", cu.cuMemRelease(1));
  return results;
}

// Reads from the pipe what a child prints, and reaps it. A child that does not end is killed.
Reply results_of_child(pid_t child, UniqueFd pipe) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(10));
  std::string text;
  for (;;) {
    pollfd readable{pipe.get(), POLLIN, 0};
    if (::poll(&readable, 1, 10000) <= 0 || deadline.passed()) {
      ::kill(child, SIGKILL);
      break;
    }
    std::array<char, 4096> bytes{};
    const ssize_t got = ::read(pipe.get(), bytes.data(), bytes.size());
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) {
    throw OperationError("RuntimeError", "the process ended with wait status " +
                                             std::to_string(status));
  }
  return {{{"results", Json::parse(text)}}};
}

std::array<UniqueFd, 2> new_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw system_error("pipe2");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Reply before_init() {
  auto [read_end, write_end] = new_pipe();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  std::string self = "/proc/self/exe";
  std::string option = "--before-init";
  char* arguments[] = {self.data(), option.data(), nullptr};
  pid_t child = -1;
  const int error = ::posix_spawn(&child, self.c_str(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw OperationError("OSError", "posix_spawn", 0, error);
  write_end.reset();
  return results_of_child(child, std::move(read_end));
}

Reply after_fork(DriverState& state) {
  const DriverTable& cu = state.table();
  auto [read_end, write_end] = new_pipe();
  const pid_t child = ::fork();
  if (child < 0) throw system_error("fork");
  if (child == 0) {
    Json results = results_of_all(cu);
    results["cuInit"] = int{cu.cuInit(0)};
    const std::string text = results.dump();
    const bool written = ::write(write_end.get(), text.data(), text.size()) ==
                         static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  write_end.reset();
  return results_of_child(child, std::move(read_end));
}

}  // namespace

int print_results_before_init() {
  try {
    std::puts(results_of_all(DriverTable::load(Resolver::dlsym)).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vmmcts-driver-worker: %s\n", error.what());
    return 1;
  }
}

void add_driver_rounds(Server& server, DriverState& state) {
  server.add("cycles", [&](Message& m) { return cycles(state, m.body); });
  server.add("exports", [&](Message& m) { return exports(state, m.body); });
  server.add("imports", [&](Message& m) { return imports(state, m.body); });
  server.add("before_init", [](Message&) { return before_init(); });
  server.add("after_fork", [&](Message&) { return after_fork(state); });
}

}  // namespace cts
