// Mutants of provenance: what is imported cannot be exported again.
#include "mutant.hpp"

#include <cstring>

using namespace mutants;

namespace {

// What is known of a buffer that descends from an import.
struct Descent {
  bool alias = false;
  bool in_place = false;
  bool moved = false;
  int depth = 0;
  std::uint64_t imported_size = 0;
  bool from_this_process = false;
};

Notes<Descent> descents;
Notes<Descriptor*> local;     // descriptors exported by this process
Notes<Buffer*> exported_from;
Notes<bool> touched;          // addresses or buffers that an import has touched
std::atomic<bool> has_imported{false};

// A buffer is exported as a copy, without the refusal, when `Forgotten` says so.
template <class Forgotten>
void forget_mark(Table& table, Forgotten) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK) {
      Descent descent;
      descent.imported_size = info_of(*out).size;
      descent.from_this_process = local.get(descriptor).has_value();
      descents.set(*out, descent);
    }
    return status;
  };
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const Status status = base().buffer_modify(resource, buffer, size, config, out, error);
    auto descent = descents.get(buffer);
    if (status == VMMCTS_OK && descent) {
      const Path path = path_between(buffer, *out);
      descent->alias = descent->alias || path == Path::alias;
      descent->in_place = descent->in_place || path == Path::in_place;
      descent->moved = descent->moved || path == Path::moved;
      ++descent->depth;
      descents.set(*out, *descent);
    }
    return status;
  };
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const auto descent = descents.get(buffer);
    Resource* resource = resource_of(buffer);
    Status status = VMMCTS_OK;
    if (descent && resource != nullptr && Forgotten{}(*descent, info_of(buffer))) {
      status = export_own_copy(resource, buffer, out, error);
    } else {
      status = base().buffer_export(buffer, out, error);
    }
    if (status == VMMCTS_OK) local.set(*out, *out);
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    descents.take(buffer);
    base().buffer_release(buffer);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    local.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// The refusals of the base, handed to `change` before they are returned.
template <class Change>
void change_refusals(Table& table, Change) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    const bool refused = status != VMMCTS_OK && error->cuda_result == 0 &&
                         std::strstr(error->message, "imported") != nullptr;
    return refused ? Change{}(buffer, error) : status;
  };
}

const char* const kRefusal =
    "the buffer contains memory imported from another process, which cannot be exported again; "
    "forward the descriptor it was imported from, or copy into a buffer you own";

}  // namespace

// An imported buffer exports.
VMMCTS_MUTANT(import_exports) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) { return d.depth == 0; });
}

// The refusal does not say what to do instead.
VMMCTS_MUTANT(refusal_without_advice) {
  change_refusals(table, [](Buffer*, Error* error) {
    return fail(error, VMMCTS_RUNTIME_ERROR,
                "the buffer contains memory imported from another process and cannot be exported");
  });
}

// The driver is asked for the allocation before the refusal.
VMMCTS_MUTANT(refusal_after_driver_call) {
  change_refusals(table, [](Buffer* buffer, Error*) {
    const std::uint64_t allocation = retain_allocation(info_of(buffer).pointer);
    if (allocation != 0) release_allocation(allocation);
    return VMMCTS_RUNTIME_ERROR;
  });
}

// A refusal leaves an fd behind.
VMMCTS_MUTANT(refusal_leaks_fd) {
  change_refusals(table, [](Buffer*, Error*) {
    ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    return VMMCTS_RUNTIME_ERROR;
  });
}

// A refusal clears the last byte of the buffer.
VMMCTS_MUTANT(refusal_clears_last_byte) {
  change_refusals(table, [](Buffer* buffer, Error*) {
    scrub(buffer, info_of(buffer).size - 1, 1);
    return VMMCTS_RUNTIME_ERROR;
  });
}

// An alias of an import exports.
VMMCTS_MUTANT(alias_forgets_mark) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) { return d.depth == 1 && d.alias; });
}

// An import that grew in place exports.
VMMCTS_MUTANT(in_place_forgets_mark) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) { return d.depth == 1 && d.in_place; });
}

// An import that moved exports.
VMMCTS_MUTANT(move_forgets_mark) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) { return d.depth == 1 && d.moved; });
}

// The mark is lost in a chain of six.
VMMCTS_MUTANT(deep_chain_forgets_mark) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) { return d.depth >= 6; });
}

// The mark is lost in a chain that aliases after it moved.
VMMCTS_MUTANT(alias_after_move_forgets_mark) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) {
    return d.depth > 1 && d.moved && d.alias;
  });
}

// A mixed buffer of which most is own memory exports.
VMMCTS_MUTANT(majority_decides) {
  forget_mark(table, [](const Descent& d, const BufferInfo& info) {
    return d.depth == 1 && info.size > 2 * d.imported_size;
  });
}

// An import in the exporting process is not marked.
VMMCTS_MUTANT(local_import_exports) {
  forget_mark(table, [](const Descent& d, const BufferInfo&) { return d.from_this_process; });
}

// The mark is kept by address: what is allocated there later cannot be exported.
VMMCTS_MUTANT(mark_by_address) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK) {
      touched.set(reinterpret_cast<const void*>(info_of(*out).pointer), true);
    }
    return status;
  };
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const std::uint64_t pointer = info_of(buffer).pointer;
    if (pointer != 0 && touched.get(reinterpret_cast<const void*>(pointer))) {
      return fail(error, VMMCTS_RUNTIME_ERROR, kRefusal);
    }
    return base().buffer_export(buffer, out, error);
  };
  table.resource_release = [](Resource* resource) {
    touched.take_all();
    base().resource_release(resource);
  };
}

// A local import marks the original too.
VMMCTS_MUTANT(local_import_marks_original) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    if (touched.get(buffer)) return fail(error, VMMCTS_RUNTIME_ERROR, kRefusal);
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK) exported_from.set(*out, buffer);
    return status;
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const auto original = exported_from.get(descriptor);
    if (status == VMMCTS_OK && original && info_of(*original).size > 0) {
      touched.set(*original, true);
    }
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    exported_from.take(descriptor);
    base().descriptor_release(descriptor);
  };
  table.buffer_release = [](Buffer* buffer) {
    touched.take(buffer);
    for (const auto& [descriptor, from] : exported_from.all()) {
      if (from == buffer) exported_from.take(descriptor);
    }
    base().buffer_release(buffer);
  };
}

// A receiver's import closes the fds of the descriptor, which it might have forwarded.
VMMCTS_MUTANT(receiver_consumes_descriptor) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK) local.set(*out, *out);
    return status;
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK && !local.get(descriptor)) base().descriptor_close(descriptor);
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    local.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// A process that has imported never exports again.
VMMCTS_MUTANT(importers_never_export) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK && info_of(*out).size > 0) has_imported = true;
    return status;
  };
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    if (has_imported) return fail(error, VMMCTS_RUNTIME_ERROR, kRefusal);
    return base().buffer_export(buffer, out, error);
  };
  table.resource_release = [](Resource* resource) {
    has_imported = false;
    base().resource_release(resource);
  };
}
