// The tap: a libcuda.so.1 that records the calls of traced.inc, carries out an injection, and passes
// everything on to the next driver.
//
//   VMMCTS_TAP_NEXT  the next driver; else the first libcuda.so.1 of the usual places that is not us
//   VMMCTS_TAP_LOG   the call log; without it calls are only passed on
//   VMMCTS_TAP_PLAN  an injection to start with: CALL:NTH=CODE, CALL:NTH=kill or CALL:NTH=delay NS
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tap/log_layout.hpp"

// Versions of traced calls that cuda.h hides behind the newest one: of the first driver API, whose
// device pointers have 32 bits, and for the per-thread default stream.
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemGetInfo
#undef cuMemcpyHtoD
#undef cuMemcpyDtoH
#undef cuMemsetD8
extern "C" {
using OldPointer = unsigned int;
CUresult CUDAAPI cuMemAlloc(OldPointer*, unsigned int);
CUresult CUDAAPI cuMemFree(OldPointer);
CUresult CUDAAPI cuMemGetInfo(unsigned int*, unsigned int*);
CUresult CUDAAPI cuMemcpyHtoD(OldPointer, const void*, unsigned int);
CUresult CUDAAPI cuMemcpyDtoH(void*, OldPointer, unsigned int);
CUresult CUDAAPI cuMemsetD8(OldPointer, unsigned char, unsigned int);
CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void*, size_t);
CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void*, CUdeviceptr, size_t);
CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr, unsigned char, size_t);
CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr*, size_t, CUstream);
CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr*, size_t, CUmemoryPool, CUstream);
CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
}

#define TAP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tap::LogHeader;
using tap::Record;

constexpr std::size_t kOwnLogCapacity = std::size_t{1} << 18;  // for a log that the tap makes

void* next_driver = nullptr;
LogHeader* call_log = nullptr;
pid_t process = 0;
thread_local pid_t thread = 0;

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + now.tv_nsec;
}

CUresult not_in_driver() { return CUDA_ERROR_NOT_SUPPORTED; }

// The next driver's function, or one that answers with an error.
void* next(const char* symbol) {
  void* found = ::dlsym(next_driver, symbol);
  return found != nullptr ? found : reinterpret_cast<void*>(not_in_driver);
}

// What is to be done to this call, if anything. Every injection of its kind counts it.
const tap::InjectionSlot* due(std::uint16_t call) {
  const tap::InjectionSlot* found = nullptr;
  const std::uint32_t armed = call_log->injections.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < armed; ++i) {
    tap::InjectionSlot& slot = call_log->slots[i];
    if (slot.remaining.load(std::memory_order_acquire) <= 0) continue;
    if (slot.target == tap::kAnyCall ? tap::kCallKinds[call].query
                                     : slot.target != tap::first_version(call)) {
      continue;
    }
    if (slot.remaining.fetch_sub(1, std::memory_order_acq_rel) != 1 || found != nullptr) continue;
    call_log->fired.fetch_add(1, std::memory_order_acq_rel);
    found = &slot;
  }
  return found;
}

// One call's record, begun before the call so that a kill inside it shows.
class Recording {
 public:
  Recording(std::uint16_t call, std::uint64_t start) {
    const std::uint64_t at = call_log->next.fetch_add(1, std::memory_order_acq_rel);
    if (at >= call_log->capacity) return;
    if (thread == 0) thread = static_cast<pid_t>(::syscall(SYS_gettid));
    record_ = call_log->records() + at;
    record_->call = call;
    record_->start_ns = start;
    record_->pid = process;
    record_->tid = thread;
    record_->fd_in = -1;
    record_->fd_out = -1;
    record_->result.store(tap::Call::kUnfinished, std::memory_order_relaxed);
    record_->sequence.store(at + 1, std::memory_order_release);
  }

  void argument(std::size_t index, std::uint64_t value) {
    if (record_ != nullptr && index < tap::kArguments) record_->arguments[index] = value;
  }
  void fds(int in, int out) {
    if (record_ == nullptr) return;
    record_->fd_in = in;
    record_->fd_out = out;
  }
  void finish(CUresult result, bool injected) {
    if (record_ == nullptr) return;
    record_->injected = injected;
    record_->duration_ns = now_ns() - record_->start_ns;
    record_->result.store(result, std::memory_order_release);
  }

 private:
  Record* record_ = nullptr;
};

// A number for an argument: an output of integral type is what came back.
template <class T>
std::uint64_t as_number(T value, bool succeeded) {
  if constexpr (std::is_pointer_v<T>) {
    using Pointee = std::remove_pointer_t<T>;
    if constexpr (std::is_integral_v<Pointee> && !std::is_const_v<Pointee>) {
      return succeeded && value != nullptr ? static_cast<std::uint64_t>(*value) : 0;
    } else if constexpr (std::is_pointer_v<Pointee>) {
      return succeeded && value != nullptr ? reinterpret_cast<std::uintptr_t>(*value) : 0;
    } else {
      return reinterpret_cast<std::uintptr_t>(value);
    }
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

// The descriptors that this process was given by exports, to be looked at when it ends.
class ExportedDescriptors {
 public:
  void note(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return;
    const std::lock_guard lock(mutex_);
    exported_[fd] = {status.st_dev, status.st_ino};
  }
  // Those of the numbers that are still open, on a file of the same identity.
  std::vector<int> open() {
    const std::lock_guard lock(mutex_);
    std::vector<int> found;
    for (const auto& [fd, identity] : exported_) {
      struct stat status {};
      if (::fstat(fd, &status) == 0 && identity == std::pair{status.st_dev, status.st_ino}) {
        found.push_back(fd);
      }
    }
    return found;
  }
  void forget() { exported_.clear(); }  // for the one thread of a forked child

 private:
  std::mutex mutex_;
  std::map<int, std::pair<dev_t, ino_t>> exported_;
};

ExportedDescriptors& exported_descriptors() {
  static auto* const exported = new ExportedDescriptors;  // used until the very end of the process
  return *exported;
}

// The descriptors among the arguments: what an import was given, what an export returned.
template <std::uint16_t kCall, class First, class Second, class... Rest>
void note_fds(Recording& recording, bool succeeded, First first, Second second, Rest...) {
  constexpr bool kExports = kCall == tap::kId_cuMemExportToShareableHandle ||
                            kCall == tap::kId_cuMemPoolExportToShareableHandle;
  constexpr bool kImports = kCall == tap::kId_cuMemImportFromShareableHandle ||
                            kCall == tap::kId_cuMemPoolImportFromShareableHandle;
  if constexpr (kExports) {
    recording.fds(-1, succeeded ? *static_cast<const int*>(first) : -1);
    if (succeeded) exported_descriptors().note(*static_cast<const int*>(first));
  } else if constexpr (kImports) {
    recording.fds(static_cast<int>(reinterpret_cast<std::intptr_t>(second)), -1);
  }
}
template <std::uint16_t kCall, class First>
void note_fds(Recording&, bool, First) {}

template <std::uint16_t kCall, class... Arguments>
CUresult traced(CUresult (*function)(Arguments...), std::type_identity_t<Arguments>... arguments) {
  if (call_log == nullptr) return function(arguments...);
  Recording recording(kCall, now_ns());
  std::size_t index = 0;
  (recording.argument(index++, as_number(arguments, false)), ...);
  const tap::InjectionSlot* injected = due(kCall);
  if (injected != nullptr && injected->action == tap::Action::kill) ::raise(SIGKILL);
  if (injected != nullptr && injected->action == tap::Action::delay) {
    const std::uint64_t delay = injected->delay_ns;
    const timespec wait{static_cast<time_t>(delay / 1'000'000'000u),
                        static_cast<long>(delay % 1'000'000'000u)};
    ::nanosleep(&wait, nullptr);
  }
  const bool failing = injected != nullptr && injected->action == tap::Action::fail;
  const CUresult result =
      failing ? static_cast<CUresult>(injected->code) : function(arguments...);
  const bool succeeded = result == CUDA_SUCCESS && !failing;
  index = 0;
  (recording.argument(index++, as_number(arguments, succeeded)), ...);
  note_fds<kCall>(recording, succeeded, arguments...);
  recording.finish(result, failing);
  return result;
}

bool is_this_library(const char* path) {
  Dl_info self{};
  struct stat ours {};
  struct stat theirs {};
  return ::dladdr(reinterpret_cast<const void*>(&is_this_library), &self) != 0 &&
         ::stat(self.dli_fname, &ours) == 0 && ::stat(path, &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

[[noreturn]] void give_up(const std::string& problem) {
  std::fprintf(stderr, "vmmcts tap: %s\n", problem.c_str());
  ::_exit(2);
}

void* open_next_driver() {
  int flags = RTLD_NOW | RTLD_LOCAL;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  flags |= RTLD_DEEPBIND;  // its calls to itself are not ours to see
#endif
  const char* named = std::getenv("VMMCTS_TAP_NEXT");
  static constexpr const char* kUsual[] = {
      "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
      "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
      "/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"};
  std::string why = "none of the usual places has one";
  if (named != nullptr) {
    if (!is_this_library(named)) {
      if (void* opened = ::dlopen(named, flags)) return opened;
      why = ::dlerror();
    } else {
      why = "VMMCTS_TAP_NEXT names the tap itself";
    }
  } else {
    for (const char* path : kUsual) {
      if (::access(path, R_OK) != 0 || is_this_library(path)) continue;
      if (void* opened = ::dlopen(path, flags)) return opened;
      why = ::dlerror();
    }
  }
  give_up("no next driver: " + why + "; set VMMCTS_TAP_NEXT to a libcuda.so.1");
}

// CALL:NTH=CODE, CALL:NTH=kill, CALL:NTH=delay NANOSECONDS
tap::Injection parse_plan(const std::string& text) {
  const auto colon = text.find(':');
  const auto equals = text.find('=');
  tap::Injection injection;
  char* end = nullptr;
  if (colon != std::string::npos && equals != std::string::npos && colon < equals) {
    injection.call = text.substr(0, colon);
    injection.nth = std::strtoull(text.c_str() + colon + 1, &end, 10);
    const bool counted = end == text.c_str() + equals && injection.nth > 0;
    const std::string what = text.substr(equals + 1);
    if (counted && what == "kill") {
      injection.action = tap::Action::kill;
      return injection;
    }
    if (counted && what.starts_with("delay ")) {
      injection.action = tap::Action::delay;
      injection.delay_ns = std::strtoull(what.c_str() + 6, &end, 10);
      if (*end == '\0') return injection;
    } else if (counted) {
      injection.code = static_cast<int>(std::strtol(what.c_str(), &end, 10));
      if (!what.empty() && *end == '\0') return injection;
    }
  }
  give_up("VMMCTS_TAP_PLAN is '" + text +
          "'; write CALL:NTH=CODE, CALL:NTH=kill or CALL:NTH=delay NANOSECONDS");
}

}  // namespace

// Calls that are passed on untouched jump through one slot each.
#define FORWARD(symbol) extern "C" { void* tap_slot_##symbol = nullptr; }
#include "tap/forwarded.inc"
#undef FORWARD

// (The names are pasted and quoted in place: several are macros of cuda.h.)
#if defined(__x86_64__)
#define FORWARD(symbol)                                                              \
  __asm__(".text\n.globl " #symbol "\n.type " #symbol ", %function\n" #symbol ":\n"  \
          "jmp *tap_slot_" #symbol "(%rip)\n.size " #symbol ", .-" #symbol "\n");
#elif defined(__aarch64__)
#define FORWARD(symbol)                                                              \
  __asm__(".text\n.globl " #symbol "\n.type " #symbol ", %function\n" #symbol ":\n"  \
          "adrp x16, tap_slot_" #symbol "\nldr x16, [x16, :lo12:tap_slot_" #symbol   \
          "]\nbr x16\n.size " #symbol ", .-" #symbol "\n");
#endif
#include "tap/forwarded.inc"
#undef FORWARD

namespace {

// The next driver's traced functions.
struct NextCalls {
#define TRACED(symbol, name, query, arguments) decltype(&::symbol) symbol = nullptr;
#include "tap/traced.inc"
#undef TRACED
  CUresult (*get_proc_address)(const char*, void**, int, cuuint64_t) = nullptr;
  CUresult (*get_proc_address_v2)(const char*, void**, int, cuuint64_t,
                                  CUdriverProcAddressQueryResult*) = nullptr;
} calls;

template <class Function>
void resolve(Function& function, const char* symbol) {
  function = reinterpret_cast<Function>(next(symbol));
}

__attribute__((constructor)) void start() {
  process = ::getpid();
  ::pthread_atfork(nullptr, nullptr, [] {
    process = ::getpid();
    thread = 0;
    exported_descriptors().forget();
  });
  next_driver = open_next_driver();
#define FORWARD(symbol) tap_slot_##symbol = next(#symbol);
#include "tap/forwarded.inc"
#undef FORWARD
#define TRACED(symbol, name, query, arguments) resolve(calls.symbol, #symbol);
#include "tap/traced.inc"
#undef TRACED
  resolve(calls.get_proc_address, "cuGetProcAddress");
  resolve(calls.get_proc_address_v2, "cuGetProcAddress_v2");
  const char* path = std::getenv("VMMCTS_TAP_LOG");
  const char* plan = std::getenv("VMMCTS_TAP_PLAN");
  if (path == nullptr && plan == nullptr) return;
  if (path == nullptr) give_up("VMMCTS_TAP_PLAN needs VMMCTS_TAP_LOG");
  try {
    std::size_t bytes = 0;
    call_log = tap::map_log(path, kOwnLogCapacity, bytes);
    if (plan != nullptr) tap::CallLog::open(path).inject(parse_plan(plan));
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

__attribute__((destructor)) void end() {
  if (call_log == nullptr) return;
  for (const int fd : exported_descriptors().open()) {
    Recording recording(tap::kId_descriptor_open, now_ns());
    recording.argument(0, static_cast<std::uint64_t>(fd));
    recording.fds(-1, fd);
    recording.finish(CUDA_SUCCESS, false);
  }
}

// Our function in place of the next driver's, for a traced name that it has.
void* wrapper_of(const char* name, void* found) {
#define TRACED(symbol, name_, query, arguments) \
  if (found == reinterpret_cast<void*>(calls.symbol) && std::strcmp(name, #name_) == 0) \
    return reinterpret_cast<void*>(&::symbol);
#include "tap/traced.inc"
#undef TRACED
  return found;
}

}  // namespace

#define TAP_WRAP(symbol, parameters, arguments)                     \
  TAP_EXPORT CUresult CUDAAPI symbol parameters {                   \
    return traced<tap::kId_##symbol>(calls.symbol, TAP_UNPACK arguments); \
  }
#define TAP_UNPACK(...) __VA_ARGS__

using Handle = CUmemGenericAllocationHandle;
TAP_WRAP(cuMemCreate, (Handle * h, size_t n, const CUmemAllocationProp* p, unsigned long long f),
         (h, n, p, f))
TAP_WRAP(cuMemRelease, (Handle h), (h))
TAP_WRAP(cuMemAddressReserve,
         (CUdeviceptr * p, size_t n, size_t a, CUdeviceptr at, unsigned long long f),
         (p, n, a, at, f))
TAP_WRAP(cuMemAddressFree, (CUdeviceptr p, size_t n), (p, n))
TAP_WRAP(cuMemMap, (CUdeviceptr p, size_t n, size_t o, Handle h, unsigned long long f),
         (p, n, o, h, f))
TAP_WRAP(cuMemUnmap, (CUdeviceptr p, size_t n), (p, n))
TAP_WRAP(cuMemSetAccess, (CUdeviceptr p, size_t n, const CUmemAccessDesc* d, size_t c),
         (p, n, d, c))
TAP_WRAP(cuMemExportToShareableHandle,
         (void* out, Handle h, CUmemAllocationHandleType t, unsigned long long f), (out, h, t, f))
TAP_WRAP(cuMemImportFromShareableHandle, (Handle * h, void* os, CUmemAllocationHandleType t),
         (h, os, t))
TAP_WRAP(cuMemRetainAllocationHandle, (Handle * h, void* at), (h, at))
TAP_WRAP(cuMemPoolCreate, (CUmemoryPool * p, const CUmemPoolProps* props), (p, props))
TAP_WRAP(cuMemPoolDestroy, (CUmemoryPool p), (p))
TAP_WRAP(cuMemPoolExportToShareableHandle,
         (void* out, CUmemoryPool p, CUmemAllocationHandleType t, unsigned long long f),
         (out, p, t, f))
TAP_WRAP(cuMemPoolImportFromShareableHandle,
         (CUmemoryPool * p, void* os, CUmemAllocationHandleType t, unsigned long long f),
         (p, os, t, f))
TAP_WRAP(cuMemPoolExportPointer, (CUmemPoolPtrExportData * d, CUdeviceptr p), (d, p))
TAP_WRAP(cuMemPoolImportPointer, (CUdeviceptr * p, CUmemoryPool pool, CUmemPoolPtrExportData* d),
         (p, pool, d))
TAP_WRAP(cuMemAllocFromPoolAsync, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s),
         (p, n, pool, s))
TAP_WRAP(cuMemAllocFromPoolAsync_ptsz,
         (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s), (p, n, pool, s))
TAP_WRAP(cuMemAllocAsync, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
TAP_WRAP(cuMemAllocAsync_ptsz, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
TAP_WRAP(cuMemPoolTrimTo, (CUmemoryPool p, size_t n), (p, n))
TAP_WRAP(cuMemPoolSetAccess, (CUmemoryPool p, const CUmemAccessDesc* d, size_t n), (p, d, n))
TAP_WRAP(cuMemPoolGetAccess, (CUmemAccess_flags * f, CUmemoryPool p, CUmemLocation* l), (f, p, l))
TAP_WRAP(cuMemPoolSetAttribute, (CUmemoryPool p, CUmemPool_attribute a, void* v), (p, a, v))
TAP_WRAP(cuMemPoolGetAttribute, (CUmemoryPool p, CUmemPool_attribute a, void* v), (p, a, v))
TAP_WRAP(cuMemFreeAsync_ptsz, (CUdeviceptr p, CUstream s), (p, s))
TAP_WRAP(cuMemAlloc, (OldPointer * p, unsigned int n), (p, n))
TAP_WRAP(cuMemFree, (OldPointer p), (p))
TAP_WRAP(cuMemGetInfo, (unsigned int* f, unsigned int* t), (f, t))
TAP_WRAP(cuMemcpyHtoD, (OldPointer to, const void* from, unsigned int n), (to, from, n))
TAP_WRAP(cuMemcpyDtoH, (void* to, OldPointer from, unsigned int n), (to, from, n))
TAP_WRAP(cuMemsetD8, (OldPointer p, unsigned char v, unsigned int n), (p, v, n))
TAP_WRAP(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void* from, size_t n), (to, from, n))
TAP_WRAP(cuMemcpyDtoH_v2_ptds, (void* to, CUdeviceptr from, size_t n), (to, from, n))
TAP_WRAP(cuMemsetD8_v2_ptds, (CUdeviceptr p, unsigned char v, size_t n), (p, v, n))
TAP_WRAP(cuMemFreeAsync, (CUdeviceptr p, CUstream s), (p, s))
TAP_WRAP(cuMemAlloc_v2, (CUdeviceptr * p, size_t n), (p, n))
TAP_WRAP(cuMemFree_v2, (CUdeviceptr p), (p))
TAP_WRAP(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t n), (to, from, n))
TAP_WRAP(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t n), (to, from, n))
TAP_WRAP(cuMemsetD8_v2, (CUdeviceptr p, unsigned char v, size_t n), (p, v, n))
TAP_WRAP(cuMemGetAccess, (unsigned long long* f, const CUmemLocation* l, CUdeviceptr p), (f, l, p))
TAP_WRAP(cuMemGetAllocationGranularity,
         (size_t* g, const CUmemAllocationProp* p, CUmemAllocationGranularity_flags o), (g, p, o))
TAP_WRAP(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * p, Handle h), (p, h))
TAP_WRAP(cuMemGetInfo_v2, (size_t* f, size_t* t), (f, t))

TAP_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* name, void** function, int version,
                                                cuuint64_t flags,
                                                CUdriverProcAddressQueryResult* status) {
  const CUresult result = calls.get_proc_address_v2(name, function, version, flags, status);
  if (result != CUDA_SUCCESS || *function == nullptr) return result;
  const bool itself = std::strcmp(name, "cuGetProcAddress") == 0;
  *function = itself && *function == reinterpret_cast<void*>(calls.get_proc_address_v2)
                  ? reinterpret_cast<void*>(&cuGetProcAddress_v2)
                  : wrapper_of(name, *function);
  return result;
}

#undef cuGetProcAddress
TAP_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* name, void** function, int version,
                                             cuuint64_t flags) {
  const CUresult result = calls.get_proc_address(name, function, version, flags);
  if (result == CUDA_SUCCESS && *function != nullptr) *function = wrapper_of(name, *function);
  return result;
}
