// The C table over the reference library: it translates types and decides nothing.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "resource.hpp"
#include "vmmcts/implementation.h"

struct vmmcts_resource {
  vmm::ResourceHandle object;
};
struct vmmcts_buffer {
  vmm::BufferHandle object;
};
struct vmmcts_descriptor {
  vmm::DescriptorHandle object;
};
struct vmmcts_handle {
  vmm::IPCHandle object;
};

namespace {

vmmcts_status fail(const vmm::Error& cause, vmmcts_error* error) {
  if (error) {
    error->cuda_result = cause.cuda_result;
    error->system_errno = cause.system_errno;
    std::snprintf(error->message, sizeof error->message, "%s", cause.message().c_str());
  }
  switch (cause.kind) {
    case vmm::ErrorKind::kValue: return VMMCTS_VALUE_ERROR;
    case vmm::ErrorKind::kType: return VMMCTS_TYPE_ERROR;
    case vmm::ErrorKind::kOs: return VMMCTS_OS_ERROR;
    case vmm::ErrorKind::kRuntime: break;
  }
  return VMMCTS_RUNTIME_ERROR;
}

// Runs `body`; what it throws (no memory is all it can) becomes a RuntimeError.
template <class Body>
vmmcts_status guarded(vmmcts_error* error, Body&& body) {
  try {
    return body();
  } catch (const std::exception& caught) {
    if (error) {
      *error = {};
      std::snprintf(error->message, sizeof error->message, "%s", caught.what());
    }
    return VMMCTS_RUNTIME_ERROR;
  }
}

// Hands the value of `result` to the caller as a new opaque object.
template <class Opaque, class T>
vmmcts_status give(vmm::Result<T> result, Opaque** out, vmmcts_error* error) {
  if (!result) return fail(result.error(), error);
  *out = new Opaque{std::move(*result)};
  return VMMCTS_OK;
}

vmmcts_status finish(const vmm::Status& status, vmmcts_error* error) {
  return status ? VMMCTS_OK : fail(status.error(), error);
}

template <class T, class U>
vmmcts_status list(const vmm::Result<std::vector<T>>& found, U* out, size_t capacity,
                   vmmcts_error* error) {
  if (!found) return fail(found.error(), error);
  if (capacity < found->size())
    return fail(vmm::value_error("room for " + std::to_string(capacity) + " of " +
                                 std::to_string(found->size()) + " elements"),
                error);
  std::copy(found->begin(), found->end(), out);
  return VMMCTS_OK;
}

vmm::VirtualMemoryResourceOptions translate(const vmmcts_options& options) {
  return {static_cast<CUmemAllocationHandleType>(options.handle_type),
          static_cast<CUmemLocationType>(options.location_type),
          static_cast<CUmemAccess_flags>(options.self_access),
          static_cast<CUmemAccess_flags>(options.peer_access),
          {options.peers, options.peers + options.peer_count}};
}

vmmcts_status resource_create(const vmmcts_options* options, vmmcts_resource** out,
                              vmmcts_error* error) {
  return guarded(error, [&] {
    return give(vmm::VirtualMemoryResource::create(options->device, translate(*options)), out,
                error);
  });
}

int32_t resource_is_ipc_enabled(const vmmcts_resource* resource) {
  return resource->object->is_ipc_enabled();
}

vmmcts_status buffer_allocate(vmmcts_resource* resource, uint64_t size, vmmcts_buffer** out,
                              vmmcts_error* error) {
  return guarded(error, [&] { return give(resource->object->allocate(size), out, error); });
}

vmmcts_status buffer_modify(vmmcts_resource* resource, vmmcts_buffer* buffer, uint64_t size,
                            const vmmcts_options* config, vmmcts_buffer** out,
                            vmmcts_error* error) {
  return guarded(error, [&] {
    if (!config)
      return give(resource->object->modify_allocation(*buffer->object, size), out, error);
    if (config->device != resource->object->device())
      return fail(vmm::value_error("the config is of another device"), error);
    const auto translated = translate(*config);
    return give(resource->object->modify_allocation(*buffer->object, size, &translated), out,
                error);
  });
}

vmmcts_status buffer_info(vmmcts_buffer* buffer, vmmcts_buffer_info* out, vmmcts_error* error) {
  return guarded(error, [&] {
    auto pointer = buffer->object->pointer();
    if (!pointer) return fail(pointer.error(), error);
    *out = {*pointer, buffer->object->size(), buffer->object->is_mapped()};
    return VMMCTS_OK;
  });
}

vmmcts_status buffer_close(vmmcts_buffer* buffer, vmmcts_error*) {
  buffer->object->close();
  return VMMCTS_OK;
}

vmmcts_status buffer_write(vmmcts_buffer* buffer, uint64_t offset, const void* data, uint64_t size,
                           vmmcts_error* error) {
  return guarded(error, [&] { return finish(buffer->object->write(offset, data, size), error); });
}

vmmcts_status buffer_read(vmmcts_buffer* buffer, uint64_t offset, void* data, uint64_t size,
                          vmmcts_error* error) {
  return guarded(error, [&] { return finish(buffer->object->read(offset, data, size), error); });
}

vmmcts_status buffer_export(vmmcts_buffer* buffer, vmmcts_descriptor** out, vmmcts_error* error) {
  return guarded(error, [&] { return give(buffer->object->ipc_descriptor(), out, error); });
}

vmmcts_status buffer_import(vmmcts_resource* resource, vmmcts_descriptor* descriptor,
                            vmmcts_buffer** out, vmmcts_error* error) {
  return guarded(error, [&] {
    return give(resource->object->from_ipc_descriptor(*descriptor->object), out, error);
  });
}

vmmcts_status descriptor_from_fds(const vmmcts_fd_or_handle* fds, size_t fd_count,
                                  const int64_t* sizes, size_t size_count, int32_t handle_type,
                                  const int64_t* size, vmmcts_descriptor** out,
                                  vmmcts_error* error) {
  return guarded(error, [&] {
    std::vector<std::variant<vmm::BorrowedFd, vmm::IPCHandle>> items;
    for (size_t i = 0; i < fd_count; ++i) {
      if (fds[i].handle)
        items.emplace_back(fds[i].handle->object);
      else
        items.emplace_back(vmm::BorrowedFd{fds[i].fd});
    }
    return give(vmm::VirtualMemoryIPCBufferDescriptor::from_fds(
                    items, {sizes, size_count}, static_cast<CUmemAllocationHandleType>(handle_type),
                    size ? std::optional(*size) : std::nullopt),
                out, error);
  });
}

vmmcts_status descriptor_info(vmmcts_descriptor* descriptor, vmmcts_descriptor_info* out,
                              vmmcts_error*) {
  const auto& object = *descriptor->object;
  *out = {static_cast<int32_t>(object.handle_type()), object.size(), object.sizes().size()};
  return VMMCTS_OK;
}

vmmcts_status descriptor_sizes(vmmcts_descriptor* descriptor, uint64_t* out, size_t capacity,
                               vmmcts_error* error) {
  return guarded(error, [&] {
    return list<uint64_t>(vmm::Result(descriptor->object->sizes()), out, capacity, error);
  });
}

vmmcts_status descriptor_fds(vmmcts_descriptor* descriptor, int32_t* out, size_t capacity,
                             vmmcts_error* error) {
  return guarded(error, [&] { return list(descriptor->object->fds(), out, capacity, error); });
}

vmmcts_status descriptor_handle(vmmcts_descriptor* descriptor, size_t index, vmmcts_handle** out,
                                vmmcts_error* error) {
  return guarded(error, [&] {
    auto handles = descriptor->object->handles();
    if (!handles) return fail(handles.error(), error);
    if (index >= handles->size())
      return fail(vmm::value_error("no handle " + std::to_string(index)), error);
    *out = new vmmcts_handle{(*handles)[index]};
    return VMMCTS_OK;
  });
}

void descriptor_close(vmmcts_descriptor* descriptor) { descriptor->object->close(); }

vmmcts_status handle_fd(vmmcts_handle* handle, int32_t* out, vmmcts_error* error) {
  return guarded(error, [&] {
    auto fd = handle->object->fd();
    if (!fd) return fail(fd.error(), error);
    *out = *fd;
    return VMMCTS_OK;
  });
}

void handle_close(vmmcts_handle* handle) { handle->object->close(); }

template <class Opaque>
void release(Opaque* object) {
  delete object;
}

// Buffers alone say `close` before they go: another holder of the object must not keep the memory.
void release_buffer(vmmcts_buffer* buffer) {
  if (buffer) buffer->object->close();
  delete buffer;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const vmmcts_implementation*
vmmcts_implementation_get(void) {
  static const vmmcts_implementation table = {
      VMMCTS_ABI_VERSION,
      sizeof(vmmcts_implementation),
      "reference",
      "0.1.0",
      "core rawfd",
      resource_create,
      resource_is_ipc_enabled,
      release<vmmcts_resource>,
      buffer_allocate,
      buffer_modify,
      buffer_info,
      buffer_close,
      release_buffer,
      buffer_write,
      buffer_read,
      buffer_export,
      buffer_import,
      descriptor_from_fds,
      descriptor_info,
      descriptor_sizes,
      descriptor_fds,
      descriptor_handle,
      descriptor_close,
      release<vmmcts_descriptor>,
      handle_fd,
      handle_close,
      release<vmmcts_handle>,
  };
  return &table;
}
