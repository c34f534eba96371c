// Mutants of the descriptor: what it owns, when it lets go, what happens when something goes wrong.
#include "mutant.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

using namespace mutants;

namespace {

Notes<Descriptor*> cached;              // the hidden descriptor of a buffer
Notes<Buffer*> exported_from;           // the buffer of a live descriptor
Notes<std::vector<int>> kept;           // fds that are kept for an object
Notes<std::vector<int>> numbers;        // the fds of a descriptor as they were told
Notes<std::vector<std::uint64_t>> told_sizes;
Notes<DescriptorInfo> told_info;
Notes<int> counts;
Notes<Buffer*> longer;                  // the longest result of growing a buffer

// Exports, and hands a descriptor that was made to `after`.
template <class After>
Status export_then(Buffer* buffer, Descriptor** out, Error* error, After after) {
  const Status status = base().buffer_export(buffer, out, error);
  if (status == VMMCTS_OK) after(*out);
  return status;
}

std::vector<int> duplicates_of(const std::vector<int>& fds) {
  std::vector<int> copies;
  for (const int fd : fds) {
    if (const int copy = duplicate(fd); copy >= 0) copies.push_back(copy);
  }
  return copies;
}

// The descriptor of an export lives no longer than its buffer: what `end` does to it on close.
template <void (*end)(Descriptor*)>
void end_descriptors_with_buffer(Table& table) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [&](Descriptor* d) { exported_from.set(d, buffer); });
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    for (const auto& [descriptor, from] : exported_from.all()) {
      if (from == buffer) end(static_cast<Descriptor*>(const_cast<void*>(descriptor)));
    }
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    for (const auto& [descriptor, from] : exported_from.all()) {
      if (from == buffer) exported_from.take(descriptor);
    }
    base().buffer_release(buffer);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    exported_from.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

void close_descriptor(Descriptor* descriptor) { base().descriptor_close(descriptor); }

// Puts /dev/null where the fds are: the numbers stay, the memory is not pinned.
void hollow_out(Descriptor* descriptor) {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const int fd : fds_of(descriptor)) ::dup3(null, fd, O_CLOEXEC);
  ::close(null);
}

}  // namespace

// Exports once and hands the same descriptor out again, kept until the buffer is released.
VMMCTS_MUTANT(cached_descriptor) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    auto hidden = cached.get(buffer);
    if (!hidden) {
      const Status status = base().buffer_export(buffer, out, error);
      if (status != VMMCTS_OK) return status;
      hidden = *out;
      cached.set(buffer, *hidden);
      counts.set(*hidden, 1);  // the cache's own
    }
    *out = *hidden;
    counts.set(*out, *counts.get(*out) + 1);
    return VMMCTS_OK;
  };
  static constexpr auto let_go = [](Descriptor* descriptor) {
    const int count = counts.take(descriptor).value_or(1);
    if (count > 1) {
      counts.set(descriptor, count - 1);
    } else {
      base().descriptor_release(descriptor);
    }
  };
  table.descriptor_close = [](Descriptor* descriptor) {
    if (!counts.get(descriptor)) base().descriptor_close(descriptor);
  };
  table.descriptor_release = [](Descriptor* descriptor) { let_go(descriptor); };
  table.buffer_release = [](Buffer* buffer) {
    if (const auto hidden = cached.take(buffer)) {
      base().descriptor_close(*hidden);
      let_go(*hidden);
    }
    base().buffer_release(buffer);
  };
}

// A second export, while the first is there, has duplicates of its fds instead of new open files.
VMMCTS_MUTANT(duplicates_first_export) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    for (const auto& [descriptor, from] : exported_from.all()) {
      auto* first = static_cast<Descriptor*>(const_cast<void*>(descriptor));
      const auto fds = fds_of(first);
      if (from != buffer || fds.empty()) continue;
      return rebuild(fds, sizes_of(first), info_of(first).size, out, error);
    }
    return export_then(buffer, out, error, [&](Descriptor* d) { exported_from.set(d, buffer); });
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    exported_from.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// A descriptor of several allocations holds one duplicate too many until it is released.
VMMCTS_MUTANT(extra_duplicate) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [](Descriptor* d) {
      const auto fds = fds_of(d);
      if (fds.size() > 1) kept.set(d, {duplicate(fds[1])});
    });
  };
  table.descriptor_close = [](Descriptor* descriptor) {
    if (const auto fds = kept.take(descriptor)) close_all(*fds);
    base().descriptor_close(descriptor);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    if (const auto fds = kept.take(descriptor)) close_all(*fds);
    base().descriptor_release(descriptor);
  };
}

// A release leaves the last of several fds open.
VMMCTS_MUTANT(release_keeps_last_fd) {
  table.descriptor_release = [](Descriptor* descriptor) {
    const auto fds = fds_of(descriptor);
    if (fds.size() > 1) duplicate(fds.back());
    base().descriptor_release(descriptor);
  };
}

// A duplicate of the first fd stays with the buffer after the descriptor is released.
VMMCTS_MUTANT(buffer_keeps_fd) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [&](Descriptor* d) { exported_from.set(d, buffer); });
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    const auto buffer = exported_from.take(descriptor);
    const auto fds = fds_of(descriptor);
    if (buffer && !fds.empty() && !kept.get(*buffer)) kept.set(*buffer, {duplicate(fds[0])});
    base().descriptor_release(descriptor);
  };
  table.buffer_release = [](Buffer* buffer) {
    for (const auto& [descriptor, from] : exported_from.all()) {
      if (from == buffer) exported_from.take(descriptor);
    }
    if (const auto fds = kept.take(buffer)) close_all(*fds);
    base().buffer_release(buffer);
  };
}

// The sizes of three or more allocations come in reverse order.
VMMCTS_MUTANT(reversed_sizes) {
  table.descriptor_sizes = [](Descriptor* descriptor, std::uint64_t* out, std::size_t capacity,
                              Error* error) {
    const Status status = base().descriptor_sizes(descriptor, out, capacity, error);
    const std::size_t count = info_of(descriptor).count;
    if (status == VMMCTS_OK && count > 2 && capacity >= count) std::reverse(out, out + count);
    return status;
  };
}

// The descriptor of a shorter alias covers every allocation of the longest.
VMMCTS_MUTANT(alias_exports_everything) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const Status status = base().buffer_modify(resource, buffer, size, config, out, error);
    if (status == VMMCTS_OK && path_between(buffer, *out) != Path::alias) longer.set(buffer, *out);
    return status;
  };
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const auto result = longer.get(buffer);
    if (!result) return base().buffer_export(buffer, out, error);
    Descriptor* whole = nullptr;
    const Status status = base().buffer_export(*result, &whole, error);
    if (status != VMMCTS_OK) return status;
    const Status rebuilt =
        rebuild(fds_of(whole), sizes_of(whole), info_of(buffer).size, out, error);
    base().descriptor_release(whole);
    return rebuilt;
  };
  table.buffer_release = [](Buffer* buffer) {
    longer.take(buffer);
    for (const auto& [input, result] : longer.all()) {
      if (result == buffer) longer.take(input);
    }
    base().buffer_release(buffer);
  };
}

// The fds of an export survive exec.
VMMCTS_MUTANT(inheritable_fds) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [](Descriptor* d) {
      for (const int fd : fds_of(d)) ::fcntl(fd, F_SETFD, 0);
    });
  };
}

// Closing a buffer closes the descriptors that were made of it.
VMMCTS_MUTANT(buffer_close_closes_descriptors) {
  end_descriptors_with_buffer<close_descriptor>(table);
}

// Closing a buffer takes the memory out of its descriptors; the numbers stay open.
VMMCTS_MUTANT(buffer_close_hollows_descriptors) { end_descriptors_with_buffer<hollow_out>(table); }

// Releasing a descriptor closes the buffer that it was made of.
VMMCTS_MUTANT(descriptor_release_closes_buffer) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [&](Descriptor* d) {
      if (fds_of(d).size() > 1) exported_from.set(d, buffer);
    });
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    Error ignored{};
    if (const auto buffer = exported_from.take(descriptor)) base().buffer_close(*buffer, &ignored);
    base().descriptor_release(descriptor);
  };
  table.buffer_release = [](Buffer* buffer) {
    for (const auto& [descriptor, from] : exported_from.all()) {
      if (from == buffer) exported_from.take(descriptor);
    }
    base().buffer_release(buffer);
  };
}

// A closed descriptor still tells the numbers that were its fds.
VMMCTS_MUTANT(closed_descriptor_tells_numbers) {
  table.descriptor_close = [](Descriptor* descriptor) {
    if (!numbers.get(descriptor)) {
      numbers.set(descriptor, fds_of(descriptor));
      told_sizes.set(descriptor, sizes_of(descriptor));
      told_info.set(descriptor, info_of(descriptor));
    }
    base().descriptor_close(descriptor);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    numbers.take(descriptor);
    told_sizes.take(descriptor);
    told_info.take(descriptor);
    base().descriptor_release(descriptor);
  };
  table.descriptor_info = [](Descriptor* descriptor, DescriptorInfo* out, Error* error) {
    const auto info = told_info.get(descriptor);
    if (!info) return base().descriptor_info(descriptor, out, error);
    *out = *info;
    return VMMCTS_OK;
  };
  table.descriptor_sizes = [](Descriptor* descriptor, std::uint64_t* out, std::size_t capacity,
                              Error* error) {
    const auto sizes = told_sizes.get(descriptor);
    if (!sizes) return base().descriptor_sizes(descriptor, out, capacity, error);
    std::copy_n(sizes->begin(), std::min(capacity, sizes->size()), out);
    return VMMCTS_OK;
  };
  table.descriptor_fds = [](Descriptor* descriptor, std::int32_t* out, std::size_t capacity,
                            Error* error) {
    const auto fds = numbers.get(descriptor);
    if (!fds) return base().descriptor_fds(descriptor, out, capacity, error);
    std::copy_n(fds->begin(), std::min(capacity, fds->size()), out);
    return VMMCTS_OK;
  };
}

// A second release closes the numbers again, whatever they are by then.
VMMCTS_MUTANT(double_close) {
  table.descriptor_close = [](Descriptor* descriptor) {
    if (const auto fds = numbers.get(descriptor)) {
      close_all(*fds);
    } else {
      numbers.set(descriptor, fds_of(descriptor));
    }
    base().descriptor_close(descriptor);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    numbers.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// An export that fails after its first allocation leaves one fd.
VMMCTS_MUTANT(failed_export_leaks_fd) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    // There is a slot for it only when the export had got that far.
    if (status != VMMCTS_OK && error->cuda_result != 0) {
      ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    return status;
  };
}

// An export that fails hides the driver's status.
VMMCTS_MUTANT(failed_export_hides_status) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status != VMMCTS_OK) error->cuda_result = 0;
    return status;
  };
}

// Releasing stops at an fd that is not open any more.
VMMCTS_MUTANT(release_stops_at_bad_fd) {
  table.descriptor_release = [](Descriptor* descriptor) {
    bool stopped = false;
    for (const int fd : fds_of(descriptor)) {
      if (stopped) duplicate(fd);
      stopped = stopped || ::fcntl(fd, F_GETFD) < 0;
    }
    base().descriptor_release(descriptor);
  };
}

// The second descriptor of a buffer tells a smaller size.
VMMCTS_MUTANT(second_descriptor_smaller) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [&](Descriptor* d) {
      const int count = counts.get(buffer).value_or(0) + 1;
      counts.set(buffer, count);
      if (count == 2) counts.set(d, count);
    });
  };
  table.descriptor_info = [](Descriptor* descriptor, DescriptorInfo* out, Error* error) {
    const Status status = base().descriptor_info(descriptor, out, error);
    if (status == VMMCTS_OK && counts.get(descriptor)) --out->size;
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    counts.take(descriptor);
    base().descriptor_release(descriptor);
  };
  table.buffer_release = [](Buffer* buffer) {
    counts.take(buffer);
    base().buffer_release(buffer);
  };
}

// The process complains at exit about descriptors that are alive.
VMMCTS_MUTANT(noise_at_exit) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    return export_then(buffer, out, error, [&](Descriptor* d) { exported_from.set(d, buffer); });
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    exported_from.take(descriptor);
    base().descriptor_release(descriptor);
  };
  std::atexit([] {
    if (!exported_from.all().empty()) std::fprintf(stderr, "descriptors are alive at exit\n");
  });
}

// The descriptor has duplicates of what the driver returned.
VMMCTS_MUTANT(exports_duplicates) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    Descriptor* first = nullptr;
    const Status status = base().buffer_export(buffer, &first, error);
    if (status != VMMCTS_OK) return status;
    // A copy of each keeps the numbers from being used again at once.
    const auto copies = duplicates_of(fds_of(first));
    const auto sizes = sizes_of(first);
    const std::uint64_t size = info_of(first).size;
    const Status rebuilt = rebuild(copies, sizes, size, out, error);
    base().descriptor_release(first);
    close_all(copies);
    return rebuilt;
  };
}

// A release in which a close was interrupted closes its numbers again.
VMMCTS_MUTANT(interrupted_close_repeated) {
  table.descriptor_release = [](Descriptor* descriptor) {
    const auto fds = fds_of(descriptor);
    errno = 0;
    base().descriptor_release(descriptor);
    if (errno == EINTR) close_all(fds);
  };
}
