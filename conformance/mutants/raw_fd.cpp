// Mutants of from_fds and of the handles.
#include "mutant.hpp"

#include <cerrno>

using namespace mutants;

namespace {

// A call of from_fds that a mutant may change before it is made.
struct Call {
  std::vector<FdOrHandle> fds;
  std::vector<std::int64_t> sizes;
  std::int32_t type = 0;
  std::optional<std::int64_t> size;

  Status make(Descriptor** out, Error* error) const {
    return base().descriptor_from_fds(fds.data(), fds.size(), sizes.data(), sizes.size(), type,
                                      size ? &*size : nullptr, out, error);
  }
  bool has(bool handles) const {
    return std::any_of(fds.begin(), fds.end(),
                       [&](const FdOrHandle& e) { return (e.handle != nullptr) == handles; });
  }
};

// Replaces from_fds by `changed`.
template <class Changed>
void replace_from_fds(Table& table, Changed) {
  table.descriptor_from_fds = [](const FdOrHandle* fds, std::size_t fd_count,
                                 const std::int64_t* sizes, std::size_t size_count,
                                 std::int32_t type, const std::int64_t* size, Descriptor** out,
                                 Error* error) {
    Call call{{fds, fds + fd_count}, {sizes, sizes + size_count}, type, {}};
    if (size != nullptr) call.size = *size;
    return Changed{}(call, out, error);
  };
}

Notes<bool> rebuilt;
Notes<bool> imported_once;
Notes<int> handle_duplicates;
std::atomic<bool> has_exported{false};

}  // namespace

// from_fds takes integers over and closes the caller's.
VMMCTS_MUTANT(takes_over_integers) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    for (const FdOrHandle& element : call.fds) {
      if (status == VMMCTS_OK && element.handle == nullptr) ::close(element.fd);
    }
    return status;
  });
}

// Handles are duplicated as integers are.
VMMCTS_MUTANT(duplicates_handles) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    for (FdOrHandle& element : call.fds) {
      std::int32_t fd = -1;
      Error ignored{};
      if (element.handle != nullptr && !base().handle_fd(element.handle, &fd, &ignored)) {
        element = {fd, nullptr};
      }
    }
    return call.make(out, error);
  });
}

// Integers and handles do not mix.
VMMCTS_MUTANT(mixed_refused) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (call.has(true) && call.has(false) && call.fds.size() == call.sizes.size() &&
        call.fds.back().handle == nullptr) {
      const Status status = call.make(out, error);
      if (status != VMMCTS_OK) return status;
      base().descriptor_release(*out);
      return fail(error, VMMCTS_TYPE_ERROR, "integers and handles do not mix");
    }
    return call.make(out, error);
  });
}

// The default size is that of the first allocation.
VMMCTS_MUTANT(default_size_is_first) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (!call.size && call.sizes.size() > 1 && call.fds.size() == call.sizes.size() &&
        call.sizes[0] > 0) {
      call.size = call.sizes[0];
    }
    return call.make(out, error);
  });
}

// Fds beyond the sizes are ignored.
VMMCTS_MUTANT(extra_fds_ignored) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (call.sizes.size() > 1 && call.fds.size() > call.sizes.size()) {
      call.fds.resize(call.sizes.size());
    }
    return call.make(out, error);
  });
}

// Sizes beyond the fds are ignored: what was truncated makes a shorter buffer.
VMMCTS_MUTANT(truncated_is_shorter) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (!call.fds.empty() && call.fds.size() < call.sizes.size()) {
      call.sizes.resize(call.fds.size());
    }
    return call.make(out, error);
  });
}

// One size with another number of fds is taken as it comes.
VMMCTS_MUTANT(hostile_counts_accepted) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (call.sizes.size() == 1 && call.fds.size() != 1) {
      const std::size_t common = std::min(call.fds.size(), call.sizes.size());
      call.fds.resize(common);
      call.sizes.resize(common);
    }
    return call.make(out, error);
  });
}

// A size of 0 in the last place is taken for a page.
VMMCTS_MUTANT(last_zero_size_accepted) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (!call.sizes.empty() && call.sizes.back() == 0) call.sizes.back() = 4096;
    return call.make(out, error);
  });
}

// A negative size counts as its amount.
VMMCTS_MUTANT(negative_size_accepted) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    for (std::int64_t& size : call.sizes) size = std::abs(size);
    return call.make(out, error);
  });
}

// A size above the sum is cut to the sum.
VMMCTS_MUTANT(size_above_sum_cut) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    std::int64_t sum = 0;
    for (const std::int64_t size : call.sizes) sum += size;
    if (call.size && *call.size > sum) call.size = sum;
    return call.make(out, error);
  });
}

// The handle type fabric is taken for posix_fd.
VMMCTS_MUTANT(fabric_descriptor_accepted) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (call.type == VMMCTS_HANDLE_FABRIC) call.type = VMMCTS_HANDLE_POSIX_FD;
    return call.make(out, error);
  });
}

// A closed handle behind the first place is an OSError, as if it were an integer.
VMMCTS_MUTANT(closed_handle_is_os_error) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_RUNTIME_ERROR && call.fds.size() > 1 && call.fds[0].handle == nullptr) {
      return fail(error, VMMCTS_OS_ERROR, "bad file descriptor", 0, EBADF);
    }
    return status;
  });
}

// The error of an integer that is not open has no errno.
VMMCTS_MUTANT(bad_fd_without_errno) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OS_ERROR && error->system_errno == EBADF) error->system_errno = 0;
    return status;
  });
}

// A refusal for the last of several fds leaves a duplicate of the first.
VMMCTS_MUTANT(refusal_for_last_leaks) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OS_ERROR && error->system_errno == EBADF && call.fds.size() > 1 &&
        ::fcntl(call.fds.back().fd, F_GETFD) < 0) {
      duplicate(call.fds[0].fd);
    }
    return status;
  });
}

// A refusal closes the integers of the caller.
VMMCTS_MUTANT(refusal_closes_integers) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    for (const FdOrHandle& element : call.fds) {
      if (status == VMMCTS_VALUE_ERROR && element.handle == nullptr) ::close(element.fd);
    }
    return status;
  });
}

// A rebuilt descriptor imports once.
VMMCTS_MUTANT(rebuilt_imports_once) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OK) rebuilt.set(*out, true);
    return status;
  });
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    if (imported_once.get(descriptor)) {
      return fail(error, VMMCTS_RUNTIME_ERROR, "the descriptor was imported before");
    }
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK && rebuilt.get(descriptor)) imported_once.set(descriptor, true);
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    rebuilt.take(descriptor);
    imported_once.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// What was received cannot be written.
VMMCTS_MUTANT(received_is_read_only) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OK) rebuilt.set(*out, true);
    return status;
  });
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK && rebuilt.get(descriptor)) {
      const BufferInfo info = info_of(*out);
      set_access(info.pointer, info.size, VMMCTS_ACCESS_READ);
    }
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    rebuilt.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// More fds than one message carries are refused.
VMMCTS_MUTANT(one_message_of_fds) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    if (call.fds.size() > 253) return fail(error, VMMCTS_VALUE_ERROR, "too many fds");
    return call.make(out, error);
  });
}

// A rebuilt descriptor of unequal allocations tells their average as each size.
VMMCTS_MUTANT(rebuilt_tells_average) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OK) rebuilt.set(*out, true);
    return status;
  });
  table.descriptor_sizes = [](Descriptor* descriptor, std::uint64_t* out, std::size_t capacity,
                              Error* error) {
    const Status status = base().descriptor_sizes(descriptor, out, capacity, error);
    const auto sizes = sizes_of(descriptor);
    if (status != VMMCTS_OK || !rebuilt.get(descriptor) || capacity < sizes.size()) return status;
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes) sum += size;
    for (std::size_t i = 0; i < sizes.size(); ++i) out[i] = sum / sizes.size();
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    rebuilt.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// At the fd limit from_fds keeps the duplicate that it had room for.
VMMCTS_MUTANT(limit_keeps_duplicate) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OS_ERROR && error->system_errno == EMFILE) duplicate(call.fds[0].fd);
    return status;
  });
}

// At the fd limit from_fds raises a RuntimeError.
VMMCTS_MUTANT(limit_is_runtime_error) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    const bool limit = status == VMMCTS_OS_ERROR && error->system_errno == EMFILE;
    return limit ? VMMCTS_RUNTIME_ERROR : status;
  });
}

// The duplicates survive exec.
VMMCTS_MUTANT(inheritable_duplicates) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OK) {
      for (const int fd : fds_of(*out)) ::fcntl(fd, F_SETFD, 0);
    }
    return status;
  });
}

// from_fds has the driver try the first fd.
VMMCTS_MUTANT(from_fds_asks_driver) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    unsigned long long allocation = 0;
    if (status == VMMCTS_OK && !call.fds.empty() && call.fds[0].handle == nullptr &&
        driver_call<int (*)(unsigned long long*, void*, int)>(
            "cuMemImportFromShareableHandle", &allocation,
            reinterpret_cast<void*>(static_cast<std::intptr_t>(call.fds[0].fd)), 1) == 0) {
      release_allocation(allocation);
    }
    return status;
  });
}

// A handle tells a duplicate of the descriptor's fd.
VMMCTS_MUTANT(handle_tells_duplicate) {
  table.handle_fd = [](Handle* handle, std::int32_t* out, Error* error) {
    const Status status = base().handle_fd(handle, out, error);
    if (status != VMMCTS_OK) return status;
    if (!handle_duplicates.get(handle)) handle_duplicates.set(handle, duplicate(*out));
    *out = *handle_duplicates.get(handle);
    return status;
  };
  table.handle_release = [](Handle* handle) {
    if (const auto copy = handle_duplicates.take(handle)) ::close(*copy);
    base().handle_release(handle);
  };
}

// A process that has exported nothing refuses integers that it inherited over exec.
VMMCTS_MUTANT(inherited_refused) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    has_exported = true;
    return base().buffer_export(buffer, out, error);
  };
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    for (const FdOrHandle& element : call.fds) {
      if (!has_exported && element.handle == nullptr && ::fcntl(element.fd, F_GETFD) == 0) {
        return fail(error, VMMCTS_VALUE_ERROR, "the fd was not made here");
      }
    }
    return call.make(out, error);
  });
  table.resource_release = [](Resource* resource) {
    has_exported = false;
    base().resource_release(resource);
  };
}

// No free number is reported as a number that is not open.
VMMCTS_MUTANT(limit_is_bad_fd) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    if (status == VMMCTS_OS_ERROR && error->system_errno == EMFILE) error->system_errno = EBADF;
    return status;
  });
}

// A duplicate that fails takes the handles beside it along.
VMMCTS_MUTANT(failed_duplicate_closes_handles) {
  replace_from_fds(table, [](Call& call, Descriptor** out, Error* error) {
    const Status status = call.make(out, error);
    for (const FdOrHandle& element : call.fds) {
      if (status == VMMCTS_OS_ERROR && element.handle != nullptr) {
        base().handle_close(element.handle);
      }
    }
    return status;
  });
}
