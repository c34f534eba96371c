// Mutants of export: driver calls, the fd limit, many cycles, threads.
#include "mutant.hpp"

using namespace mutants;

namespace {

constexpr int kOperatingSystem = 304;  // CUDA_ERROR_OPERATING_SYSTEM
constexpr int kNotSupported = 801;     // CUDA_ERROR_NOT_SUPPORTED

std::atomic<int> exports{0};
std::atomic<int> inside{0};
Notes<bool> broken;

}  // namespace

// An export of several allocations exports one of them twice and closes the extra fd.
VMMCTS_MUTANT(exports_once_more) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status != VMMCTS_OK || info_of(*out).count < 2) return status;
    if (const std::uint64_t allocation = retain_allocation(info_of(buffer).pointer)) {
      int fd = -1;
      driver_call<int (*)(void*, unsigned long long, int, unsigned long long)>(
          "cuMemExportToShareableHandle", static_cast<void*>(&fd),
          static_cast<unsigned long long>(allocation), 1, 0ULL);
      if (fd >= 0) ::close(fd);
      release_allocation(allocation);
    }
    return status;
  };
}

// An export takes and gives up a driver reference beside what it must do.
VMMCTS_MUTANT(export_retains_allocation) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status != VMMCTS_OK) return status;
    if (const auto allocation = retain_allocation(info_of(buffer).pointer)) {
      release_allocation(allocation);
    }
    return status;
  };
}

// A driver that cannot export makes an export fail with nothing that says why.
VMMCTS_MUTANT(export_failure_unsaid) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK || error->cuda_result != kNotSupported) return status;
    return fail(error, VMMCTS_RUNTIME_ERROR, "the operation failed");
  };
}

// Once the fd limit was hit, a buffer never exports again.
VMMCTS_MUTANT(limit_sticks) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    if (broken.get(buffer)) return fail(error, VMMCTS_RUNTIME_ERROR, "the export failed before");
    const Status status = base().buffer_export(buffer, out, error);
    if (status != VMMCTS_OK && error->cuda_result == kOperatingSystem) broken.set(buffer, true);
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    broken.take(buffer);
    base().buffer_release(buffer);
  };
}

// At the fd limit an export answers an empty descriptor instead of the error.
VMMCTS_MUTANT(limit_swallowed) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK || error->cuda_result != kOperatingSystem) return status;
    return rebuild({}, {}, 0, out, error);
  };
}

// An export needs one free slot more than it has allocations.
VMMCTS_MUTANT(export_needs_spare_slot) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const int spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (spare < 0) {
      return fail(error, VMMCTS_RUNTIME_ERROR,
                  "cuMemExportToShareableHandle: CUDA_ERROR_OPERATING_SYSTEM: the file descriptor "
                  "limit was reached",
                  kOperatingSystem);
    }
    const Status status = base().buffer_export(buffer, out, error);
    ::close(spare);
    return status;
  };
}

// The 900th export of a process fails.
VMMCTS_MUTANT(export_900_fails) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    if (++exports == 900) return fail(error, VMMCTS_RUNTIME_ERROR, "too many exports");
    return base().buffer_export(buffer, out, error);
  };
}

// Refuses to export while another thread exports.
VMMCTS_MUTANT(one_export_at_a_time) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    if (inside.fetch_add(1) > 0) {
      --inside;
      return fail(error, VMMCTS_RUNTIME_ERROR, "another thread is exporting");
    }
    ::usleep(500);
    const Status status = base().buffer_export(buffer, out, error);
    --inside;
    return status;
  };
}

// The error at the fd limit names neither the call nor the limit.
VMMCTS_MUTANT(bare_limit_error) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status != VMMCTS_OK && error->cuda_result == kOperatingSystem) {
      return fail(error, status, "operating system error", kOperatingSystem);
    }
    return status;
  };
}
