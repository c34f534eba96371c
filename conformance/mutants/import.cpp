// Mutants of import: independence, access, wrong fds and sizes, several processes.
#include "mutant.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdio>
#include <cstring>

using namespace mutants;

namespace {

struct CachedExport {
  Buffer* buffer;
  std::uint64_t size;
  std::vector<int> fds;
  std::vector<std::uint64_t> sizes;
};

std::atomic<int> imports{0};
std::atomic<int> refusals{0};
Notes<Buffer*> stand_ins;            // the real import behind an own copy
Notes<std::pair<int, ino_t>> fd_at_import;
Notes<std::uint64_t> told;           // sizes that are told instead of the real ones
Notes<bool> live_imports;
Notes<CachedExport> cached_exports;  // by address
Notes<Descriptor*> local;            // descriptors exported by this process

// Imports, and hands a buffer that was made to `after`.
template <class After>
Status import_then(Resource* resource, Descriptor* descriptor, Buffer** out, Error* error,
                   After after) {
  const Status status = base().buffer_import(resource, descriptor, out, error);
  if (status == VMMCTS_OK) after(*out);
  return status;
}

ino_t file_of(int fd) {
  struct stat file{};
  return ::fstat(fd, &file) == 0 ? file.st_ino : 0;
}

std::uint64_t sum_of(Descriptor* descriptor) {
  std::uint64_t sum = 0;
  for (const std::uint64_t size : sizes_of(descriptor)) sum += size;
  return sum;
}

// A name that one process of this run at a time can bind, and nobody has to clean up.
int bind_lock() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                   "vmmcts-mutant-%d", ::getppid());
  const int lock = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (::bind(lock, reinterpret_cast<sockaddr*>(&address), size) == 0) return lock;
  ::close(lock);
  return -1;
}

}  // namespace

// An imported buffer says that it was allocated here.
VMMCTS_MUTANT(imports_not_mapped) {
  table.buffer_info = [](Buffer* buffer, BufferInfo* out, Error* error) {
    const Status status = base().buffer_info(buffer, out, error);
    if (status == VMMCTS_OK && out->size > 0) out->is_mapped = 0;
    return status;
  };
}

// An import in the exporting process is a copy of the bytes.
VMMCTS_MUTANT(local_import_copies) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const auto real = stand_ins.get(buffer);
    const Status status = base().buffer_export(real ? *real : buffer, out, error);
    if (status == VMMCTS_OK) local.set(*out, *out);
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    local.take(descriptor);
    base().descriptor_release(descriptor);
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error, [&](Buffer* real) {
      if (!local.get(descriptor) || info_of(real).size == 0) return;
      Buffer* copy = own_copy(resource, real);
      if (copy == nullptr) return;
      stand_ins.set(copy, real);
      *out = copy;
    });
  };
  table.buffer_info = [](Buffer* buffer, BufferInfo* out, Error* error) {
    const Status status = base().buffer_info(buffer, out, error);
    if (status == VMMCTS_OK && stand_ins.get(buffer)) out->is_mapped = 1;
    return status;
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (const auto real = stand_ins.get(buffer)) base().buffer_close(*real, error);
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    if (const auto real = stand_ins.take(buffer)) base().buffer_release(*real);
    base().buffer_release(buffer);
  };
}

// The last chunk of an import can be written whatever the importer's options say.
VMMCTS_MUTANT(import_writable_at_end) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error, [&](Buffer* made) {
      const auto sizes = sizes_of(descriptor);
      const BufferInfo info = info_of(made);
      if (sizes.empty() || info.size < sum_of(descriptor)) return;
      set_access(info.pointer + info.size - sizes.back(), sizes.back(), VMMCTS_ACCESS_READWRITE);
    });
  };
}

// An import closes the descriptor that it came from.
VMMCTS_MUTANT(import_consumes_descriptor) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error,
                       [&](Buffer*) { base().descriptor_close(descriptor); });
  };
}

// Every 100th import leaves an fd.
VMMCTS_MUTANT(hundredth_import_leaks) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error, [&](Buffer*) {
      const auto fds = fds_of(descriptor);
      if (++imports % 100 == 0 && !fds.empty()) duplicate(fds[0]);
    });
  };
}

// Growing an import wants the fd that it came from under its old number.
VMMCTS_MUTANT(import_needs_fd_to_grow) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error, [&](Buffer* made) {
      const auto fds = fds_of(descriptor);
      if (!fds.empty()) fd_at_import.set(made, {fds[0], file_of(fds[0])});
    });
  };
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const auto fd = fd_at_import.get(buffer);
    if (fd && size > info_of(buffer).size && file_of(fd->first) != fd->second) {
      return fail(error, VMMCTS_RUNTIME_ERROR, "the fd of the import is not there");
    }
    return base().buffer_modify(resource, buffer, size, config, out, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    fd_at_import.take(buffer);
    base().buffer_release(buffer);
  };
}

// Sizes that the driver refuses to map are taken for an own buffer of that size.
VMMCTS_MUTANT(wrong_sizes_allocate) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const bool refused_map = std::strstr(error->message, "cuMemMap") != nullptr;
    if (status != VMMCTS_RUNTIME_ERROR || !refused_map) return status;
    return base().buffer_allocate(resource, info_of(descriptor).size, out, error);
  };
}

// A refused import of several chunks leaves a duplicate of the first fd.
VMMCTS_MUTANT(refused_import_leaks_fd) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const auto fds = fds_of(descriptor);
    if (status == VMMCTS_RUNTIME_ERROR && error->cuda_result != 0 && fds.size() > 1) {
      duplicate(fds[0]);
    }
    return status;
  };
}

// An import works on duplicates, and loses those made before one fails.
VMMCTS_MUTANT(import_loses_duplicates) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    std::vector<int> copies;
    for (const int fd : fds_of(descriptor)) {
      copies.push_back(duplicate(fd));
      if (copies.back() < 0) return fail(error, VMMCTS_OS_ERROR, "no duplicate", 0, errno);
    }
    const Status status = base().buffer_import(resource, descriptor, out, error);
    close_all(copies);
    return status;
  };
}

// An import that the driver refuses to map leaves its reservation.
VMMCTS_MUTANT(refused_import_keeps_reservation) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_RUNTIME_ERROR && error->cuda_result != 0) {
      unsigned long long pointer = 0;
      driver_call<int (*)(unsigned long long*, std::size_t, std::size_t, unsigned long long,
                          unsigned long long)>("cuMemAddressReserve", &pointer,
                                               static_cast<std::size_t>(sum_of(descriptor)),
                                               std::size_t{0}, 0ULL, 0ULL);
    }
    return status;
  };
}

// A pipe or socket imports as an empty buffer.
VMMCTS_MUTANT(wrong_fd_is_empty_buffer) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const auto fds = fds_of(descriptor);
    struct stat file{};
    if (status != VMMCTS_OK && fds.size() == 1 && ::fstat(fds[0], &file) == 0 &&
        (S_ISFIFO(file.st_mode) || S_ISSOCK(file.st_mode))) {
      return base().buffer_allocate(resource, 0, out, error);
    }
    return status;
  };
}

// Every 64th wrong fd leaves a duplicate.
VMMCTS_MUTANT(wrong_fd_leaks_sometimes) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const auto fds = fds_of(descriptor);
    if (status != VMMCTS_OK && fds.size() == 1 && ++refusals % 64 == 0) duplicate(fds[0]);
    return status;
  };
}

// An import that the driver fails leaves a granule allocated.
VMMCTS_MUTANT(failed_import_keeps_memory) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    // A wrong fd fails in the import call; this one is for what comes after it.
    const bool later = std::strstr(error->message, "cuMemImport") == nullptr;
    Buffer* granule = nullptr;
    Error ignored{};
    if (status != VMMCTS_OK && error->cuda_result != 0 && later) {
      base().buffer_allocate(resource, 1, &granule, &ignored);
    }
    return status;
  };
}

// An import of several chunks reserves as many addresses again, for a moment.
VMMCTS_MUTANT(import_reserves_twice) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error, [&](Buffer*) {
      const auto sum = static_cast<std::size_t>(sum_of(descriptor));
      unsigned long long pointer = 0;
      if (info_of(descriptor).count < 2 ||
          driver_call<int (*)(unsigned long long*, std::size_t, std::size_t, unsigned long long,
                              unsigned long long)>("cuMemAddressReserve", &pointer, sum,
                                                   std::size_t{0}, 0ULL, 0ULL) != 0) {
        return;
      }
      driver_call<int (*)(unsigned long long, std::size_t)>("cuMemAddressFree", pointer, sum);
    });
  };
}

// An import duplicates the first fd for a while, which needs a free slot.
VMMCTS_MUTANT(import_needs_slot) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const auto fds = fds_of(descriptor);
    const int copy = fds.empty() ? -1 : duplicate(fds[0]);
    if (!fds.empty() && copy < 0) return fail(error, VMMCTS_OS_ERROR, "dup failed", 0, errno);
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (copy >= 0) ::close(copy);
    return status;
  };
}

// An import is as long as the allocations, whatever the descriptor's size.
VMMCTS_MUTANT(import_size_is_sum) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error, [&](Buffer* made) {
      const std::uint64_t sum = sum_of(descriptor);
      if (sum != info_of(descriptor).size) told.set(made, sum);
    });
  };
  table.buffer_info = [](Buffer* buffer, BufferInfo* out, Error* error) {
    const Status status = base().buffer_info(buffer, out, error);
    if (const auto size = told.get(buffer); size && status == VMMCTS_OK) out->size = *size;
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    told.take(buffer);
    base().buffer_release(buffer);
  };
}

// Closing the shorter of two imports closes the longer one too.
VMMCTS_MUTANT(shorter_import_closes_longer) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return import_then(resource, descriptor, out, error,
                       [&](Buffer* made) { live_imports.set(made, true); });
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (live_imports.take(buffer)) {
      const std::uint64_t size = info_of(buffer).size;
      for (const auto& [other, live] : live_imports.all()) {
        auto* import = static_cast<Buffer*>(const_cast<void*>(other));
        if (info_of(import).size > size) base().buffer_close(import, error);
      }
    }
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    live_imports.take(buffer);
    base().buffer_release(buffer);
  };
}

// The exporter keeps the fds by address, and exports the old memory when the address is used again.
VMMCTS_MUTANT(export_cached_by_address) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const BufferInfo info = info_of(buffer);
    const auto* address = reinterpret_cast<const void*>(info.pointer);
    if (const auto known = cached_exports.get(address);
        known && known->buffer != buffer && known->size == info.size) {
      return rebuild(known->fds, known->sizes, known->size, out, error);
    }
    const Status status = base().buffer_export(buffer, out, error);
    if (status != VMMCTS_OK || info.size == 0) return status;
    CachedExport fresh{buffer, info.size, {}, sizes_of(*out)};
    for (const int fd : fds_of(*out)) fresh.fds.push_back(duplicate(fd));
    if (const auto old = cached_exports.take(address)) close_all(old->fds);
    cached_exports.set(address, fresh);
    return status;
  };
  table.resource_release = [](Resource* resource) {
    for (const auto& [address, old] : cached_exports.take_all()) close_all(old.fds);
    base().resource_release(resource);
  };
}

// Memory of another device is imported through a resource of any device.
VMMCTS_MUTANT(foreign_device_accepted) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    auto options = options_of(resource);
    if (status != VMMCTS_VALUE_ERROR || !options ||
        std::strstr(error->message, "device") == nullptr) {
      return status;
    }
    options->device = 1 - options->device;
    Resource* other = nullptr;
    Error ignored{};
    if (base().resource_create(&*options, &other, &ignored)) return status;
    const Status second = base().buffer_import(other, descriptor, out, &ignored);
    base().resource_release(other);
    return second == VMMCTS_OK ? VMMCTS_OK : status;
  };
}

// A malformed descriptor is found out only after the driver imported its first allocation.
VMMCTS_MUTANT(malformed_reaches_driver) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const auto fds = fds_of(descriptor);
    unsigned long long allocation = 0;
    if (status == VMMCTS_VALUE_ERROR && !fds.empty() &&
        driver_call<int (*)(unsigned long long*, void*, int)>(
            "cuMemImportFromShareableHandle", &allocation,
            reinterpret_cast<void*>(static_cast<std::intptr_t>(fds[0])), 1) == 0) {
      release_allocation(allocation);
    }
    return status;
  };
}

// A descriptor with a closed handle is a RuntimeError.
VMMCTS_MUTANT(malformed_is_runtime_error) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    return status == VMMCTS_VALUE_ERROR ? VMMCTS_RUNTIME_ERROR : status;
  };
}

// A refusal in the middle of an import does not say which chunk.
VMMCTS_MUTANT(import_error_without_chunk) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_RUNTIME_ERROR && error->cuda_result != 0) {
      return fail(error, status, "the import failed", error->cuda_result);
    }
    return status;
  };
}

// Refuses to import while another process imports.
VMMCTS_MUTANT(one_importer_at_a_time) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const int lock = bind_lock();
    if (lock < 0) return fail(error, VMMCTS_RUNTIME_ERROR, "another process is importing");
    ::usleep(1000);
    const Status status = base().buffer_import(resource, descriptor, out, error);
    ::close(lock);
    return status;
  };
}

// Where setting the access fails, an operation reports another status than the driver's.
VMMCTS_MUTANT(access_failure_hides_status) {
  static constexpr auto hide = [](Status status, Error* error) {
    if (status != VMMCTS_OK && std::strstr(error->message, "cuMemSetAccess") != nullptr) {
      error->cuda_result = 1;
    }
    return status;
  };
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    return hide(base().buffer_allocate(resource, size, out, error), error);
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    return hide(base().buffer_import(resource, descriptor, out, error), error);
  };
}
