#include "worker/driver_table.hpp"

#include <dlfcn.h>

#include "worker/server.hpp"

#define CTS_STRING_(name) #name
#define CTS_STRING(name) CTS_STRING_(name)

namespace cts {
namespace {

void* library() {
  static void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (handle == nullptr) throw OperationError("RuntimeError", ::dlerror());
  return handle;
}

template <class Function>
void set(Function& function, void* address) {
  function = reinterpret_cast<Function>(address);
}

}  // namespace

void* driver_symbol(const char* name) { return ::dlsym(library(), name); }

Resolver resolver_of(const std::string& name) {
  if (name == "dlsym") return Resolver::dlsym;
  if (name == "proc_address") return Resolver::proc_address;
  if (name == "per_thread") return Resolver::per_thread;
  throw OperationError("Protocol", "no resolver " + name);
}

DriverTable DriverTable::load(Resolver resolver) {
  DriverTable table;
  set(table.get_proc_address, driver_symbol(CTS_STRING(cuGetProcAddress)));
  if (resolver == Resolver::dlsym) {
#define CTS_LOAD(name) set(table.name, driver_symbol(CTS_STRING(name)));
    CTS_DRIVER_ENTRY_POINTS(CTS_LOAD)
#undef CTS_LOAD
    return table;
  }
  if (table.get_proc_address == nullptr) {
    throw OperationError("RuntimeError", "libcuda.so.1 has no cuGetProcAddress_v2");
  }
  const cuuint64_t flags = resolver == Resolver::per_thread
                               ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                               : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  const auto find = [&](const char* name) {
    void* address = nullptr;
    table.get_proc_address(name, &address, kEntryPointVersion, flags, nullptr);
    return address;
  };
#define CTS_LOAD(name) set(table.name, find(#name));
  CTS_DRIVER_ENTRY_POINTS(CTS_LOAD)
#undef CTS_LOAD
  return table;
}

}  // namespace cts
