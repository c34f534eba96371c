// Start and end of the driver in a process. Measured facts: every call before cuInit is
// NOT_INITIALIZED, and after fork the child gets NOT_INITIALIZED from everything, cuInit included
// (env.*_before_cuInit, fork.child.*).
#include "driver.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.hpp"

namespace softcuda {
namespace {

std::atomic<Driver*> g_driver{nullptr};
std::atomic<bool> g_forked{false};

// The child of a process with CUDA has none, and keeps nothing of its parent's alive.
void after_fork_in_child() {
  Driver* driver = g_driver.exchange(nullptr);
  if (driver == nullptr) return;
  g_forked = true;
  driver->books->abandon_in_child();
}

CUresult start_locked() {
  auto fail = [](const std::string& error) {
    log_trouble("%s", error.c_str());
    return CUDA_ERROR_OPERATING_SYSTEM;
  };
  Profile profile;
  Variants variants;
  std::string error;
  if (!load_profile(&profile, &error)) return fail(error);
  if (!load_variants(&profile, &variants, &error)) return fail(error);
  if (profile.devices == 0) return CUDA_ERROR_NO_DEVICE;
  std::unique_ptr<Books> books;
  if (CUresult r = Books::open(device_directory(), profile, &books)) return r;
  if (pthread_atfork(nullptr, nullptr, after_fork_in_child) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Lives as long as the process: threads may be in a call while the process exits.
  g_driver = new Driver(profile, variants, std::move(books));
  return CUDA_SUCCESS;
}

}  // namespace

Driver::Driver(Profile p, Variants v, std::unique_ptr<Books> b)
    : profile(std::move(p)), variants(v), books(std::move(b)) {
  space.configure(profile, variants);
  primary_contexts.resize(static_cast<size_t>(profile.devices));
  for (int device = 0; device < profile.devices; device++) {
    primary_contexts[device].device = device;
    primary_contexts[device].primary = true;
  }
}

Driver* ready() noexcept {
  Driver* driver = g_driver.load(std::memory_order_acquire);
  if (driver != nullptr && driver->variants.slow_call_us > 0) {
    usleep(static_cast<useconds_t>(driver->variants.slow_call_us));
  }
  return driver;
}

CUresult start() noexcept {
  static std::mutex starting;
  if (g_forked) return CUDA_ERROR_NOT_INITIALIZED;
  std::lock_guard lock(starting);
  if (g_driver != nullptr) return CUDA_SUCCESS;
  try {
    return start_locked();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

void Driver::unmap(Mapping* mapping) {
  if (mapping->host_access != 0) set_cpu_access(*mapping, 0);
  Mapping gone = *mapping;
  if (gone.origin != Origin::kMap) space.give_plain_back(gone);
  space.remove(gone.base);
  drop_extent(gone.extent.id);
  if (gone.pool != nullptr) forget_pool_allocation(*this, gone);
  if (gone.handle != nullptr) {
    gone.handle->mappings--;
    destroy_if_unused(gone.handle);
  }
}

CUresult Driver::allocate_plain(size_t size, int location_type, int location_id, Origin origin,
                                Mapping** out) {
  size_t unit = std::max(profile.granularity, size_t{2} << 20);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > (size_t{1} << 47)) return CUDA_ERROR_OUT_OF_MEMORY;
  Mapping m;
  m.size = size;
  m.span = (size + unit - 1) / unit * unit;
  m.origin = origin;
  m.extent.kind = ExtentKind::kPlain;
  m.extent.size = m.span;
  m.extent.location_type = location_type;
  m.extent.location_id = location_id;
  m.access.fill(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (CUresult r = books->create(&m.extent)) return r;
  count_extent(m.extent.id);
  if (!place_plain(&m)) {
    drop_extent(m.extent.id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = &space.add(m);
  return CUDA_SUCCESS;
}

bool Driver::place_plain(Mapping* mapping) {
  if (!space.take_plain(mapping->span, &mapping->base)) return false;
  if (mapping->extent.location_type == CU_MEM_LOCATION_TYPE_DEVICE) return true;
  if (set_cpu_access(*mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) return true;
  space.give_plain_back(*mapping);
  return false;
}

bool Driver::set_cpu_access(Mapping& m, uint8_t flags) {
  int protection = PROT_NONE;
  if ((flags & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0) protection |= PROT_READ;
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  void* address = reinterpret_cast<void*>(m.base);
  void* got = protection == PROT_NONE
                  ? mmap(address, m.span, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0)
                  : mmap(address, m.span, protection, MAP_SHARED | MAP_FIXED, books->store().fd(),
                         static_cast<off_t>(m.extent.offset));
  if (got == MAP_FAILED) return false;
  m.host_access = flags;
  return true;
}

void Driver::drop_extent(ExtentId id) {
  auto found = extent_references_.find(id);
  if (--found->second > 0) return;
  extent_references_.erase(found);
  books->drop(id);
}

}  // namespace softcuda
