#include "resource.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "driver.hpp"

namespace vmm {
namespace {

Result<std::size_t> round_up(std::size_t size, std::size_t granularity) {
  const std::size_t rest = size % granularity;
  if (rest == 0) return size;
  if (size > std::numeric_limits<std::size_t>::max() - (granularity - rest))
    return value_error("size " + std::to_string(size) +
                       " cannot be rounded up to the granularity, " + std::to_string(granularity));
  return size - rest + granularity;
}

// The fields of a descriptor that can be checked without the driver [IMP-15]. On success, what
// keeps the fds open while they are imported [I6].
Result<std::vector<std::shared_ptr<const UniqueFd>>> check_descriptor(
    const VirtualMemoryIPCBufferDescriptor& descriptor, std::size_t granularity) {
  auto handles = descriptor.handles();
  if (!handles) return handles.error();
  const auto& sizes = descriptor.sizes();
  if (sizes.size() != handles->size())
    return value_error("the descriptor has " + std::to_string(sizes.size()) + " sizes and " +
                       std::to_string(handles->size()) + " handles");
  std::uint64_t sum = 0;
  for (std::uint64_t size : sizes) {
    if (size == 0 || size % granularity != 0)
      return value_error("the descriptor has a chunk of " + std::to_string(size) +
                         " bytes, not a positive multiple of the granularity, " +
                         std::to_string(granularity));
    if (size > std::numeric_limits<std::uint64_t>::max() - sum)
      return value_error("the sum of the descriptor's sizes overflows");
    sum += size;
  }
  if (descriptor.size() > sum || (descriptor.size() == 0 && sum > 0))
    return value_error("the descriptor's size is " + std::to_string(descriptor.size()) +
                       ", but its allocations have " + std::to_string(sum) + " bytes");
  std::vector<std::shared_ptr<const UniqueFd>> leases;
  leases.reserve(handles->size());
  for (const auto& handle : *handles) {
    leases.push_back(handle->lease());
    if (!leases.back()) return value_error("a handle of the descriptor is closed");
  }
  return leases;
}

}  // namespace

Result<VirtualMemoryResource::Recipe> VirtualMemoryResource::recipe(
    int device, const VirtualMemoryResourceOptions& options) {
  if (options.location_type != CU_MEM_LOCATION_TYPE_DEVICE &&
      options.location_type != CU_MEM_LOCATION_TYPE_HOST &&
      options.location_type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return value_error("location type " + std::to_string(options.location_type) + " is unknown");
  if (options.location_type == CU_MEM_LOCATION_TYPE_HOST &&
      options.handle_type != CU_MEM_HANDLE_TYPE_NONE)
    return value_error("host-located memory cannot be exported: use handle_type 'none', or a "
                       "location of the device or of a host NUMA node");
  Recipe made;
  made.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.properties.requestedHandleTypes = options.handle_type;
  made.properties.location.type = options.location_type;
  made.properties.location.id = options.location_type == CU_MEM_LOCATION_TYPE_DEVICE ? device : 0;
  if (options.location_type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    int node = 0;
    if (CUresult result =
            driver().cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device))
      return cuda_error("cuDeviceGetAttribute", result, "asking for the device's NUMA node");
    made.properties.location.id = node < 0 ? 0 : node;  // a host of one node answers -1
  }
  if (CUresult result = driver().cuMemGetAllocationGranularity(
          &made.granularity, &made.properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    return cuda_error("cuMemGetAllocationGranularity", result, "asking for the granularity");
  auto grant = [&](int ordinal, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = ordinal;
    access.flags = flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) made.access.push_back(access);
  };
  grant(device, options.self_access);
  for (int peer : options.peers) grant(peer, options.peer_access);
  return made;
}

Result<ResourceHandle> VirtualMemoryResource::create(int device,
                                                     VirtualMemoryResourceOptions options) {
  if (Status loaded = load_driver(); !loaded) return loaded.error();
  for (int ordinal : options.peers) {
    CUdevice found;
    if (CUresult result = driver().cuDeviceGet(&found, ordinal))
      return cuda_error("cuDeviceGet", result, "looking for peer " + std::to_string(ordinal));
  }
  CUdevice found;
  if (CUresult result = driver().cuDeviceGet(&found, device))
    return cuda_error("cuDeviceGet", result, "looking for device " + std::to_string(device));
  auto made = recipe(device, options);
  if (!made) return made.error();
  auto resource = std::make_shared<VirtualMemoryResource>(Key{}, device, std::move(options));
  resource->recipe_ = std::move(*made);
  return ResourceHandle(std::move(resource));
}

Result<BufferHandle> VirtualMemoryResource::allocate(std::size_t size) const {
  auto rounded = round_up(size, recipe_.granularity);
  if (!rounded) return rounded.error();
  Range range;
  if (*rounded > 0) {
    auto chunk = Allocation::create(*rounded, recipe_.properties, recipe_.access);
    if (!chunk) return chunk.error();
    auto reservation = Reservation::reserve(*rounded, 0);
    if (!reservation) return reservation.error();
    auto mapped = Range::map(*reservation, {*chunk}, handle_type_name(options_.handle_type));
    if (!mapped) return mapped.error();
    range = std::move(*mapped);
  }
  return std::make_shared<VirtualMemoryBuffer>(shared_from_this(), std::move(range), *rounded,
                                               false);
}

Result<BufferHandle> VirtualMemoryResource::modify_allocation(
    const VirtualMemoryBuffer& buffer, std::size_t size,
    const VirtualMemoryResourceOptions* config) const {
  if (buffer.resource().get() != this)
    return type_error("the buffer belongs to another resource; modify it through its own");
  auto held = buffer.range();
  if (!held) return held.error();
  if (config && config->handle_type != options_.handle_type)
    return value_error("the config has handle_type '" + handle_type_name(config->handle_type) +
                       "', but every chunk must keep the resource's, '" +
                       handle_type_name(options_.handle_type) + "'");
  const Range& old = **held;
  if (size <= old.size())
    return std::make_shared<VirtualMemoryBuffer>(shared_from_this(), old,
                                                 std::max(size, buffer.size()),
                                                 buffer.is_mapped());

  Recipe override_recipe;
  if (config) {
    auto made = recipe(device_, *config);
    if (!made) return made.error();
    override_recipe = std::move(*made);
  }
  const Recipe& chosen = config ? override_recipe : recipe_;
  auto chunk_size = round_up(size - old.size(), chosen.granularity);
  if (!chunk_size) return chunk_size.error();
  if (*chunk_size > std::numeric_limits<std::size_t>::max() - old.size())
    return value_error("size " + std::to_string(size) + " cannot be rounded up");
  const std::size_t total = old.size() + *chunk_size;

  auto chunk = Allocation::create(*chunk_size, chosen.properties, chosen.access);
  if (!chunk) return chunk.error();
  const std::string kind = handle_type_name(options_.handle_type);
  const CUdeviceptr end = old.size() ? old.pointer() + old.size() : 0;
  auto reservation = Reservation::reserve(*chunk_size, end);
  if (!reservation) return reservation.error();
  Range range;
  if (end == 0 || (*reservation)->pointer() == end) {
    auto mapped = Range::map(*reservation, {*chunk}, kind);
    if (!mapped) return mapped.error();
    range = old.followed_by(*mapped);
  } else {
    reservation = Reservation::reserve(total, 0);
    if (!reservation) return reservation.error();
    auto allocations = old.allocations();
    allocations.push_back(*chunk);
    auto mapped = Range::map(*reservation, allocations, kind);
    if (!mapped) return mapped.error();
    range = std::move(*mapped);
  }
  return std::make_shared<VirtualMemoryBuffer>(shared_from_this(), std::move(range), total,
                                               buffer.is_mapped());
}

Result<AllocationHandle> VirtualMemoryResource::import_chunk(const UniqueFd& fd, std::size_t size,
                                                             const std::string& chunk) const {
  auto imported = Allocation::import(fd.borrow(), size, recipe_.access);
  if (!imported) {
    imported.error().detail = "importing " + chunk;
    return imported;
  }
  CUmemAllocationProp properties = {};
  if (CUresult result = driver().cuMemGetAllocationPropertiesFromHandle(&properties,
                                                                       (*imported)->handle()))
    return cuda_error("cuMemGetAllocationPropertiesFromHandle", result, "checking " + chunk);
  if (properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id != device_)
    return value_error("the memory lives on device " + std::to_string(properties.location.id) +
                       ", but the resource is of device " + std::to_string(device_) +
                       "; import it through a resource of device " +
                       std::to_string(properties.location.id));
  return imported;
}

Result<BufferHandle> VirtualMemoryResource::from_ipc_descriptor(
    const VirtualMemoryIPCBufferDescriptor& descriptor) const {
  if (!is_ipc_enabled())
    return runtime_error("the resource cannot import: it has handle_type '" +
                         handle_type_name(options_.handle_type) +
                         "'; make it with handle_type 'posix_fd'");
  if (descriptor.handle_type() != options_.handle_type)
    return value_error("the descriptor has handle_type '" +
                       handle_type_name(descriptor.handle_type()) + "' and the resource '" +
                       handle_type_name(options_.handle_type) + "'");
  auto leases = check_descriptor(descriptor, recipe_.granularity);
  if (!leases) return leases.error();

  const std::string kind = handle_type_name(descriptor.handle_type());
  std::vector<AllocationHandle> allocations;
  allocations.reserve(leases->size());
  std::size_t sum = 0;
  for (const auto& fd : *leases) {
    const std::size_t k = allocations.size();
    auto chunk = import_chunk(*fd, descriptor.sizes()[k],
                              "chunk " + std::to_string(k + 1) + " of " +
                                  std::to_string(leases->size()) + " (" + kind + ")");
    if (!chunk) return chunk.error();
    sum += (*chunk)->size();
    allocations.push_back(std::move(*chunk));
  }
  Range range;
  if (sum > 0) {
    auto reservation = Reservation::reserve(sum, 0);
    if (!reservation) return reservation.error();
    auto mapped = Range::map(*reservation, allocations, kind);
    if (!mapped) return mapped.error();
    range = std::move(*mapped);
  }
  return std::make_shared<VirtualMemoryBuffer>(shared_from_this(), std::move(range),
                                               descriptor.size(), true);
}

Result<CUcontext> primary_context(int device) {
  static std::mutex mutex;
  static std::map<int, CUcontext> retained;
  std::lock_guard lock(mutex);
  if (auto found = retained.find(device); found != retained.end()) return found->second;
  CUcontext context = nullptr;
  if (CUresult result = driver().cuDevicePrimaryCtxRetain(&context, device))
    return cuda_error("cuDevicePrimaryCtxRetain", result, "preparing to copy");
  return retained.emplace(device, context).first->second;
}

}  // namespace vmm
