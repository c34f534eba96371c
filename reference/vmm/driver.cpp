#include "driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <string>

namespace vmm {
namespace {

std::atomic<const Driver*> loaded{nullptr};
std::atomic<bool> forked{false};

}  // namespace

Status load_driver() {
  static std::mutex mutex;
  static Driver table;
  if (loaded.load(std::memory_order_acquire)) return Done{};
  std::lock_guard lock(mutex);
  if (loaded.load(std::memory_order_relaxed)) return Done{};

  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return runtime_error(std::string("the CUDA driver cannot be loaded: ") + dlerror() +
                         "; install the NVIDIA driver, or put the directory of a libcuda.so.1 "
                         "into LD_LIBRARY_PATH");
  using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult*);
  auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (!get)
    return runtime_error("the CUDA driver is too old: libcuda.so.1 has no cuGetProcAddress_v2; "
                         "install a driver of CUDA 12.0 or later");
  struct Entry {
    const char* name;
    void** slot;
    int version;
  };
#define VMM_ENTRY(name, version) {#name, reinterpret_cast<void**>(&table.name), version},
  const Entry entries[] = {VMM_DRIVER_CALLS(VMM_ENTRY)};
#undef VMM_ENTRY
  for (const Entry& entry : entries) {
    CUresult result = get(entry.name, entry.slot, entry.version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    if (result || !*entry.slot)
      return runtime_error(std::string("the CUDA driver has no ") + entry.name +
                           "; install a driver of CUDA 12.0 or later");
  }
  if (CUresult result = table.cuInit(0)) {
    Error error = cuda_error("cuInit", result, "the CUDA driver cannot be initialized");
    const char* name = nullptr;
    if (!table.cuGetErrorName(result, &name) && name) error.detail += std::string(" (") + name + ")";
    return error;
  }
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  loaded.store(&table, std::memory_order_release);
  return Done{};
}

const Driver& driver() noexcept { return *loaded.load(std::memory_order_acquire); }

const Driver* exchange_driver(const Driver* table) noexcept { return loaded.exchange(table); }

bool forked_after_load() noexcept { return forked.load(std::memory_order_relaxed); }

const char* result_name(CUresult result) noexcept {
  const Driver* table = loaded.load(std::memory_order_acquire);
  const char* name = nullptr;
  if (!table || table->cuGetErrorName(result, &name) || !name) return "a CUDA error";
  return name;
}

}  // namespace vmm
