// Mutants of the resource and of per-call configurations.
#include "mutant.hpp"

using namespace mutants;

namespace {

// A resource whose one difference from `options` is that it can share; released by the caller.
Resource* shareable_like(const Options& options) {
  Options changed = options;
  changed.handle_type = VMMCTS_HANDLE_POSIX_FD;
  Resource* made = nullptr;
  Error ignored{};
  return base().resource_create(&changed, &made, &ignored) == VMMCTS_OK ? made : nullptr;
}

Notes<Options> sticky_configs;

}  // namespace

// A device resource with posix_fd says that it cannot share.
VMMCTS_MUTANT(ipc_never_enabled) {
  table.resource_is_ipc_enabled = [](const Resource* resource) {
    const auto options = options_of(resource);
    const bool device = options && options->location_type == VMMCTS_LOCATION_DEVICE;
    return device ? 0 : base().resource_is_ipc_enabled(resource);
  };
}

// Fabric handles count as shareable, which no transport carries.
VMMCTS_MUTANT(fabric_enabled) {
  table.resource_is_ipc_enabled = [](const Resource* resource) {
    const auto options = options_of(resource);
    const bool fabric = options && options->handle_type == VMMCTS_HANDLE_FABRIC;
    return fabric ? 1 : base().resource_is_ipc_enabled(resource);
  };
}

// The export of a buffer that cannot be shared asks the driver before it refuses.
VMMCTS_MUTANT(unshared_asks_driver) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    const auto options = options_of(resource_of(buffer));
    if (status != VMMCTS_OK && options && options->handle_type == VMMCTS_HANDLE_NONE) {
      if (const auto allocation = retain_allocation(info_of(buffer).pointer)) {
        release_allocation(allocation);
      }
    }
    return status;
  };
}

// A buffer that cannot be shared exports a copy instead of an error.
VMMCTS_MUTANT(unshared_exports_copy) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const auto options = options_of(resource_of(buffer));
    if (!options || options->handle_type != VMMCTS_HANDLE_NONE) {
      return base().buffer_export(buffer, out, error);
    }
    Resource* resource = shareable_like(*options);
    if (resource == nullptr) return base().buffer_export(buffer, out, error);
    const Status status = export_own_copy(resource, buffer, out, error);
    base().resource_release(resource);
    return status;
  };
}

// A resource of fabric handles imports posix_fd descriptors.
VMMCTS_MUTANT(fabric_imports_fds) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const auto options = options_of(resource);
    if (!options || options->handle_type != VMMCTS_HANDLE_FABRIC) {
      return base().buffer_import(resource, descriptor, out, error);
    }
    Resource* other = shareable_like(*options);
    if (other == nullptr) return base().buffer_import(resource, descriptor, out, error);
    const Status status = base().buffer_import(other, descriptor, out, error);
    base().resource_release(other);
    return status;
  };
}

// A refused import closes the fds of the descriptor.
VMMCTS_MUTANT(refused_import_closes_descriptor) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status != VMMCTS_OK && base().resource_is_ipc_enabled(resource) == 0) {
      base().descriptor_close(descriptor);
    }
    return status;
  };
}

// Plain host memory with a handle type is accepted.
VMMCTS_MUTANT(host_with_handle_type) {
  table.resource_create = [](const Options* options, Resource** out, Error* error) {
    Options changed = *options;
    if (changed.location_type == VMMCTS_LOCATION_HOST) changed.handle_type = VMMCTS_HANDLE_NONE;
    return base().resource_create(&changed, out, error);
  };
}

// A request that the buffer covers already takes any handle type in its config.
VMMCTS_MUTANT(alias_takes_any_config) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const bool covered = size <= info_of(buffer).size;
    return base().buffer_modify(resource, buffer, size, covered ? nullptr : config, out, error);
  };
}

// A config may make the new chunk of an unshared buffer shareable.
VMMCTS_MUTANT(config_none_to_shareable) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const auto options = options_of(resource);
    if (config == nullptr || !options || options->handle_type != VMMCTS_HANDLE_NONE) {
      return base().buffer_modify(resource, buffer, size, config, out, error);
    }
    Options changed = *config;
    changed.handle_type = VMMCTS_HANDLE_NONE;
    return base().buffer_modify(resource, buffer, size, &changed, out, error);
  };
}

// A config is stored on the resource: a later grow without one has it too.
VMMCTS_MUTANT(config_sticks) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    if (config != nullptr) {
      const Status status = base().buffer_modify(resource, buffer, size, config, out, error);
      if (status == VMMCTS_OK) sticky_configs.set(resource, *config);
      return status;
    }
    const auto stored = sticky_configs.get(resource);
    return base().buffer_modify(resource, buffer, size, stored ? &*stored : nullptr, out, error);
  };
  table.resource_release = [](Resource* resource) {
    sticky_configs.take(resource);
    base().resource_release(resource);
  };
}

// The new chunk has the access of the resource, whatever the config says.
VMMCTS_MUTANT(config_ignored) {
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const auto options = options_of(resource);
    if (config == nullptr || !options) {
      return base().buffer_modify(resource, buffer, size, config, out, error);
    }
    Options changed = *config;
    changed.self_access = options->self_access;
    return base().buffer_modify(resource, buffer, size, &changed, out, error);
  };
}
