// Mutants of modify_allocation: alias, grow in place, move.
#include "mutant.hpp"

using namespace mutants;

namespace {

std::atomic<int> inside{0};
Notes<Buffer*> partners;      // the other one of an input and its result
Notes<std::uint64_t> told;    // sizes that are told instead of the real ones
Notes<int> chunk_counts;

// Modifies, and hands input, result and the path between them to `after`.
template <class After>
Status modify_then(Resource* resource, Buffer* buffer, std::uint64_t size, const Options* config,
                   Buffer** out, Error* error, After after) {
  const Status status = base().buffer_modify(resource, buffer, size, config, out, error);
  if (status == VMMCTS_OK) after(path_between(buffer, *out), *out);
  return status;
}

}  // namespace

// A move closes the buffer that it moved.
VMMCTS_MUTANT(move_closes_input) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer*) {
      Error ignored{};
      if (path == Path::moved) base().buffer_close(buffer, &ignored);
    });
  };
}

// An alias of a smaller request has the size of the request.
VMMCTS_MUTANT(alias_shrinks) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      if (path == Path::alias && size > 0 && size < info_of(buffer).size) told.set(made, size);
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

// An alias takes a driver reference of its own.
VMMCTS_MUTANT(alias_asks_driver) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      if (path != Path::alias) return;
      const std::uint64_t allocation = retain_allocation(info_of(made).pointer);
      if (allocation != 0) release_allocation(allocation);
    });
  };
}

// Closing an alias closes the buffer it is an alias of.
VMMCTS_MUTANT(alias_close_closes_input) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      if (path == Path::alias) partners.set(made, buffer);
    });
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (const auto input = partners.take(buffer)) base().buffer_close(*input, error);
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    partners.take(buffer);
    for (const auto& [alias, input] : partners.all()) {
      if (input == buffer) partners.take(alias);
    }
    base().buffer_release(buffer);
  };
}

// A grow in place clears the last old byte.
VMMCTS_MUTANT(in_place_clears_last_byte) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer*) {
      const std::uint64_t old_size = info_of(buffer).size;
      if (path == Path::in_place && old_size > 0) scrub(buffer, old_size - 1, 1);
    });
  };
}

// A move copies the bytes of an own buffer into new memory instead of mapping the old.
VMMCTS_MUTANT(move_copies) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      Buffer* copy = nullptr;
      Error ignored{};
      if (path != Path::moved || info_of(buffer).is_mapped ||
          base().buffer_allocate(resource, info_of(made).size, &copy, &ignored)) {
        return;
      }
      copy_bytes(buffer, copy, info_of(buffer).size);
      base().buffer_release(made);
      *out = copy;
    });
  };
}

// A move makes every chunk writable.
VMMCTS_MUTANT(move_makes_writable) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      const BufferInfo info = info_of(made);
      if (path == Path::moved) set_access(info.pointer, info.size, VMMCTS_ACCESS_READWRITE);
    });
  };
}

// The config of a grow reaches the old chunks too.
VMMCTS_MUTANT(config_reaches_old_chunks) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      const BufferInfo info = info_of(made);
      if (path != Path::alias && config != nullptr) {
        set_access(info.pointer, info.size, config->self_access);
      }
    });
  };
}

// A grow that the driver fails clears the first byte of its input.
VMMCTS_MUTANT(failed_grow_clears_first_byte) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const Status status = base().buffer_modify(resource, buffer, size, config, out, error);
    if (status != VMMCTS_OK && error->cuda_result != 0) scrub(buffer, 0, 1);
    return status;
  };
}

// Closing a moved buffer takes the memory from its result.
VMMCTS_MUTANT(input_close_closes_result) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      if (path == Path::moved) partners.set(buffer, made);
    });
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (const auto result = partners.take(buffer)) base().buffer_close(*result, error);
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    partners.take(buffer);
    for (const auto& [input, result] : partners.all()) {
      if (result == buffer) partners.take(input);
    }
    base().buffer_release(buffer);
  };
}

// A chunk that only the result holds is not freed when the result closes, but with its input.
VMMCTS_MUTANT(input_keeps_grown_chunk) {
  static Notes<Buffer*> inputs;  // of results
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      if (path != Path::alias) inputs.set(made, buffer);
    });
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    const auto input = inputs.take(buffer);
    Buffer* alias = nullptr;
    if (input && !partners.get(*input) &&
        base().buffer_modify(resource_of(buffer), buffer, 0, nullptr, &alias, error) == VMMCTS_OK) {
      partners.set(*input, alias);
    }
    if (const auto kept = partners.take(buffer)) base().buffer_release(*kept);
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    inputs.take(buffer);
    for (const auto& [result, input] : inputs.all()) {
      if (input == buffer) inputs.take(result);
    }
    if (const auto kept = partners.take(buffer)) base().buffer_release(*kept);
    base().buffer_release(buffer);
  };
}

// A buffer of another resource is grown by its own resource instead of refused.
VMMCTS_MUTANT(grows_for_any_resource) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    Resource* own = resource_of(buffer);
    return base().buffer_modify(own == nullptr ? resource : own, buffer, size, config, out, error);
  };
}

// Growing a closed buffer allocates a fresh one.
VMMCTS_MUTANT(closed_buffer_grows) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    BufferInfo info{};
    Error ignored{};
    const bool closed = base().buffer_info(buffer, &info, &ignored) != VMMCTS_OK;
    if (closed || (info.size == 0 && info.pointer == 0 && resource_of(buffer) == resource)) {
      return base().buffer_allocate(resource, size, out, error);
    }
    return base().buffer_modify(resource, buffer, size, config, out, error);
  };
}

// Refuses to grow while another thread grows.
VMMCTS_MUTANT(one_grow_at_a_time) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    if (inside.fetch_add(1) > 0) {
      --inside;
      return fail(error, VMMCTS_RUNTIME_ERROR, "another thread is growing");
    }
    ::usleep(500);
    const Status status = base().buffer_modify(resource, buffer, size, config, out, error);
    --inside;
    return status;
  };
}

// The fds of equal chunks come in reverse order, so that every size still fits.
VMMCTS_MUTANT(equal_chunks_reversed) {
  table.descriptor_fds = [](Descriptor* descriptor, std::int32_t* out, std::size_t capacity,
                            Error* error) {
    const Status status = base().descriptor_fds(descriptor, out, capacity, error);
    const auto sizes = sizes_of(descriptor);
    const bool equal = std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) ==
                       sizes.end();
    if (status == VMMCTS_OK && equal && capacity >= sizes.size()) {
      std::reverse(out, out + sizes.size());
    }
    return status;
  };
}

// A buffer of more than 128 chunks does not grow.
VMMCTS_MUTANT(few_chunks) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const int count = chunk_counts.get(buffer).value_or(1);
    if (count > 128) return fail(error, VMMCTS_RUNTIME_ERROR, "too many allocations");
    return modify_then(resource, buffer, size, config, out, error, [&](Path path, Buffer* made) {
      chunk_counts.set(made, path == Path::alias ? count : count + 1);
    });
  };
  table.buffer_release = [](Buffer* buffer) {
    chunk_counts.take(buffer);
    base().buffer_release(buffer);
  };
}

// An imported buffer does not grow beyond what was imported.
VMMCTS_MUTANT(import_does_not_grow) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const BufferInfo info = info_of(buffer);
    if (info.is_mapped && size > info.size) {
      return fail(error, VMMCTS_RUNTIME_ERROR, "an imported buffer does not grow");
    }
    return base().buffer_modify(resource, buffer, size, config, out, error);
  };
}
