// vmmcts-observer DRIVER: the third process. It neither exports nor imports; it tells how much
// memory of a device is free, from a primary context of its own.
//
// vmmcts-observer DRIVER --describe: prints what the driver is, as JSON, and ends.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "worker/server.hpp"

namespace {

using cts::Json;
using cts::OperationError;

// The entry points that the observer needs, from one driver library.
class Driver {
 public:
  explicit Driver(const char* path) : library_(::dlopen(path, RTLD_NOW)) {
    if (library_ == nullptr) return;
    load(init_, "cuInit");
    load(version_, "cuDriverGetVersion");
    load(count_, "cuDeviceGetCount");
    load(name_, "cuDeviceGetName");
    load(retain_, "cuDevicePrimaryCtxRetain");
    load(set_current_, "cuCtxSetCurrent");
    load(memory_info_, "cuMemGetInfo_v2");
  }

  bool loaded() const { return library_ != nullptr && memory_info_ != nullptr; }

  int version() {
    int value = 0;
    check(version_(&value), "cuDriverGetVersion");
    return value;
  }

  Json describe() {
    check(init_(0), "cuInit");
    int devices = 0;
    check(count_(&devices), "cuDeviceGetCount");
    char name[256] = "";
    if (devices > 0) check(name_(name, sizeof name, 0), "cuDeviceGetName");
    return {{"devices", devices}, {"driver_version", version()}, {"name", name}};
  }

  Json memory(int device) {
    CUcontext& context = contexts_[device];
    if (context == nullptr) {
      check(init_(0), "cuInit");
      check(retain_(&context, device), "cuDevicePrimaryCtxRetain");
    }
    check(set_current_(context), "cuCtxSetCurrent");
    std::size_t free = 0;
    std::size_t total = 0;
    check(memory_info_(&free, &total), "cuMemGetInfo");
    return {{"free", free}, {"total", total}};
  }

 private:
  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }
  static void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    throw OperationError("RuntimeError", std::string(call) + " answered " + std::to_string(result),
                         result);
  }

  void* library_;
  CUresult (*init_)(unsigned) = nullptr;
  CUresult (*version_)(int*) = nullptr;
  CUresult (*count_)(int*) = nullptr;
  CUresult (*name_)(char*, int, CUdevice) = nullptr;
  CUresult (*retain_)(CUcontext*, CUdevice) = nullptr;
  CUresult (*set_current_)(CUcontext) = nullptr;
  CUresult (*memory_info_)(std::size_t*, std::size_t*) = nullptr;
  std::map<int, CUcontext> contexts_;
};

int usage(const std::string& problem) {
  std::fprintf(stderr, "vmmcts-observer: %s\n", problem.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const bool describe = argc == 3 && std::strcmp(argv[2], "--describe") == 0;
  if (argc != 2 && !describe) return usage("usage: vmmcts-observer DRIVER [--describe]");
  Driver driver(argv[1]);
  if (!driver.loaded()) return usage(std::string(argv[1]) + " is not a CUDA driver library");
  if (describe) {
    try {
      std::puts(driver.describe().dump().c_str());
      return 0;
    } catch (const OperationError& error) {
      return usage(error.what());
    }
  }
  if (const auto problem = cts::Server::environment_problem(); !problem.empty()) {
    return usage(problem);
  }
  cts::Server server;
  server.add("hello", [&](cts::Message&) {
    return cts::Reply{{{"protocol", cts::kProtocolVersion},
                       {"pid", ::getpid()},
                       {"driver_version", driver.version()}}};
  });
  server.add("meminfo", [&](cts::Message& m) {
    return cts::Reply{driver.memory(m.body.value("device", 0))};
  });
  return server.run();
}
