// Mutants of allocation: sizes, bytes, what stays behind, and closing.
#include "mutant.hpp"

#include <limits>

using namespace mutants;

namespace {

std::atomic<int> allocations{0};
std::atomic<int> inside{0};
std::atomic<std::uint64_t> smallest{std::numeric_limits<std::uint64_t>::max()};
Notes<bool> closed;
Notes<std::uint64_t> requests;

}  // namespace

// A size just above a granule is reported as it was asked for, not rounded.
VMMCTS_MUTANT(reports_request) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    const Status status = base().buffer_allocate(resource, size, out, error);
    if (status == VMMCTS_OK && size > 4096 && size % 4096 == 1) requests.set(*out, size);
    return status;
  };
  table.buffer_info = [](Buffer* buffer, BufferInfo* out, Error* error) {
    const Status status = base().buffer_info(buffer, out, error);
    if (const auto size = requests.get(buffer); size && status == VMMCTS_OK) out->size = *size;
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    requests.take(buffer);
    base().buffer_release(buffer);
  };
}

// A size of 0 is one granule.
VMMCTS_MUTANT(empty_is_a_granule) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    return base().buffer_allocate(resource, size == 0 ? 1 : size, out, error);
  };
}

// The import of an empty descriptor says that it is not mapped.
VMMCTS_MUTANT(empty_import_not_mapped) {
  table.buffer_info = [](Buffer* buffer, BufferInfo* out, Error* error) {
    const Status status = base().buffer_info(buffer, out, error);
    if (status == VMMCTS_OK && out->size == 0) out->is_mapped = 0;
    return status;
  };
}

// Running out of memory leaves an fd.
VMMCTS_MUTANT(failed_allocation_leaks_fd) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    const Status status = base().buffer_allocate(resource, size, out, error);
    if (status != VMMCTS_OK && error->cuda_result != 0) ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    return status;
  };
}

// Running out of memory leaves a granule behind, held until the resource goes.
VMMCTS_MUTANT(failed_allocation_leaks_memory) {
  static Notes<Buffer*> leaked;
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    const Status status = base().buffer_allocate(resource, size, out, error);
    Buffer* granule = nullptr;
    Error ignored{};
    if (status != VMMCTS_OK && error->cuda_result != 0 && !leaked.get(resource) &&
        base().buffer_allocate(resource, 1, &granule, &ignored) == VMMCTS_OK) {
      leaked.set(resource, granule);
    }
    return status;
  };
  table.resource_release = [](Resource* resource) {
    if (const auto granule = leaked.take(resource)) base().buffer_release(*granule);
    base().resource_release(resource);
  };
}

// The creation reference of a large allocation is kept for good.
VMMCTS_MUTANT(keeps_creation_reference) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    const Status status = base().buffer_allocate(resource, size, out, error);
    if (status != VMMCTS_OK) return status;
    const BufferInfo info = info_of(*out);
    if (info.size > 0 && info.size < smallest) smallest = info.size;
    if (info.size >= 8 * smallest) retain_allocation(info.pointer);
    return status;
  };
}

// A grow needs a current context.
VMMCTS_MUTANT(grow_needs_context) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    void* context = nullptr;
    driver_call<int (*)(void**)>("cuCtxGetCurrent", &context);
    if (context == nullptr) {
      return fail(error, VMMCTS_RUNTIME_ERROR, "no current context", 201);
    }
    return base().buffer_modify(resource, buffer, size, config, out, error);
  };
}

// A write never reaches the last byte of a buffer.
VMMCTS_MUTANT(last_byte_not_written) {
  table.buffer_write = [](Buffer* buffer, std::uint64_t offset, const void* data,
                          std::uint64_t size, Error* error) {
    const bool to_the_end = size > 1 && offset + size == info_of(buffer).size;
    return base().buffer_write(buffer, offset, data, to_the_end ? size - 1 : size, error);
  };
}

// Rounding up a size near SIZE_MAX wraps around to a small one.
VMMCTS_MUTANT(huge_size_wraps) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    const bool wraps = size > std::numeric_limits<std::uint64_t>::max() - 2 * 1024 * 1024;
    return base().buffer_allocate(resource, wraps ? 1 : size, out, error);
  };
}

// Closing a second time is an error.
VMMCTS_MUTANT(second_close_fails) {
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (closed.get(buffer)) return fail(error, VMMCTS_RUNTIME_ERROR, "the buffer is closed");
    const Status status = base().buffer_close(buffer, error);
    if (status == VMMCTS_OK) closed.set(buffer, true);
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    closed.take(buffer);
    base().buffer_release(buffer);
  };
}

// Reading a closed buffer answers zeros.
VMMCTS_MUTANT(closed_buffer_reads_zeros) {
  table.buffer_close = [](Buffer* buffer, Error* error) {
    const Status status = base().buffer_close(buffer, error);
    if (status == VMMCTS_OK) closed.set(buffer, true);
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    closed.take(buffer);
    base().buffer_release(buffer);
  };
  table.buffer_read = [](Buffer* buffer, std::uint64_t offset, void* data, std::uint64_t size,
                         Error* error) {
    if (!closed.get(buffer)) return base().buffer_read(buffer, offset, data, size, error);
    std::fill_n(static_cast<std::uint8_t*>(data), size, std::uint8_t{0});
    return VMMCTS_OK;
  };
}

// Refuses to allocate while another thread allocates.
VMMCTS_MUTANT(one_allocation_at_a_time) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    if (inside.fetch_add(1) > 0) {
      --inside;
      return fail(error, VMMCTS_RUNTIME_ERROR, "another thread is allocating");
    }
    ::usleep(500);
    const Status status = base().buffer_allocate(resource, size, out, error);
    --inside;
    return status;
  };
}

// Every 200th allocation leaves an fd.
VMMCTS_MUTANT(slow_fd_leak) {
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    if (++allocations % 200 == 0) ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    return base().buffer_allocate(resource, size, out, error);
  };
}
