// The virtual memory management group. Every check stands in the order that the H200 showed; the
// ids of truth/ that pin it are in SOFTCUDA.md.
#include <cstring>

#include "driver.hpp"

using namespace softcuda;

namespace {

constexpr unsigned int kWin32Types = CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT;

bool is_host(int location_type) {
  return location_type == CU_MEM_LOCATION_TYPE_HOST ||
         location_type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

bool is_zero(const void* bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (static_cast<const unsigned char*>(bytes)[i] != 0) return false;
  }
  return true;
}

// What cuMemCreate answers for a description, before it looks for memory.
CUresult check_properties(const Driver& d, const CUmemAllocationProp& prop) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (!is_zero(prop.allocFlags.reserved, sizeof prop.allocFlags.reserved)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto handle_types = static_cast<unsigned int>(prop.requestedHandleTypes);
  switch (static_cast<int>(prop.location.type)) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (prop.location.id < 0 || prop.location.id >= d.profile.devices) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      if (handle_types != 0) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (prop.location.id != 0) return CUDA_ERROR_INVALID_VALUE;  // the host has one node
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if ((handle_types & kWin32Types) != 0 || prop.win32HandleMetaData != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    return d.code(CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED);
  }
  return CUDA_SUCCESS;
}

CUresult check_access(const Driver& d, const CUmemAccessDesc& desc,
                      const std::vector<Mapping*>& mappings) {
  if (desc.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (desc.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (desc.location.id < 0 || desc.location.id >= d.profile.devices) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (d.profile.peer_access) return CUDA_SUCCESS;
    for (const Mapping* m : mappings) {
      bool foreign = m->extent.location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
                     m->extent.location_id != desc.location.id;
      if (foreign) return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
  }
  if (!is_host(desc.location.type)) return CUDA_ERROR_INVALID_VALUE;
  for (const Mapping* m : mappings) {
    if (!is_host(m->extent.location_type)) {
      return d.code(CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (option) {
    case CU_MEM_ALLOC_GRANULARITY_MINIMUM: *granularity = d->profile.granularity; break;
    case CU_MEM_ALLOC_GRANULARITY_RECOMMENDED:
      *granularity = d->profile.recommended_granularity;
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (handle == nullptr || prop == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0 || size % d->profile.granularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = check_properties(*d, *prop)) return r;
  Extent extent;
  extent.size = size;
  extent.location_type = static_cast<int>(prop->location.type);
  extent.location_id = is_host(extent.location_type) ? 0 : prop->location.id;
  extent.handle_types = static_cast<uint32_t>(prop->requestedHandleTypes);
  extent.flags = prop->allocFlags.gpuDirectRDMACapable | prop->allocFlags.compressionType << 8 |
                 static_cast<uint32_t>(prop->allocFlags.usage) << 16;
  Exclusive lock(d->mutex);
  if (CUresult r = d->books->create(&extent)) return r;
  *handle = d->make_handle(extent, false)->value;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle value) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Exclusive lock(d->mutex);
  Handle* handle = d->find_handle(value);
  if (handle == nullptr || handle->references == 0) return CUDA_ERROR_INVALID_VALUE;
  handle->references--;
  d->destroy_if_unused(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle value) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  Handle* handle = d->find_handle(value);
  const Extent* extent = handle != nullptr ? &handle->extent : d->find_dead_handle(value);
  if (extent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memset(prop, 0, sizeof *prop);
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->location.type = static_cast<CUmemLocationType>(extent->location_type);
  prop->location.id = extent->location_id;
  bool imported = handle != nullptr && handle->imported;
  prop->requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(imported ? 0 : extent->handle_types);
  prop->allocFlags.gpuDirectRDMACapable = extent->flags & 0xff;
  prop->allocFlags.compressionType = extent->flags >> 8 & 0xff;
  prop->allocFlags.usage = static_cast<unsigned short>(extent->flags >> 16);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* value, void* address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (value == nullptr || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  Mapping* m = d->space.find(reinterpret_cast<CUdeviceptr>(address));
  if (m == nullptr || m->handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  m->handle->references++;
  *value = m->handle->value;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* base, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (base == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  return d->space.reserve(base, size, alignment, hint);
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t size) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Exclusive lock(d->mutex);
  return d->space.free_reservation(base, size);
}

CUresult cuMemMap(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle value,
                  unsigned long long flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  size_t unit = d->profile.granularity;
  if (base == 0 || size == 0 || flags != 0 || value == 0) return CUDA_ERROR_INVALID_VALUE;
  if (base % unit != 0 || size % unit != 0 || offset % unit != 0) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  Handle* handle = d->find_handle(value);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0 || size != handle->extent.size) {
    return d->code(CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE);
  }
  if (!d->space.can_map(base, size)) return CUDA_ERROR_INVALID_VALUE;
  Mapping m;
  m.base = base;
  m.size = m.span = size;
  m.handle = handle;
  m.extent = handle->extent;
  d->space.add(m);
  d->count_extent(m.extent.id);
  handle->mappings++;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr base, size_t size) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  size_t unit = d->profile.granularity;
  if (base == 0 || size == 0 || base % unit != 0 || size % unit != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (base + size < base) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  if (!d->space.can_unmap(base, size)) return CUDA_ERROR_INVALID_VALUE;
  for (Mapping* m : d->space.mappings_in(base, size)) d->unmap(m);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc* descs, size_t count) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (base == 0 || size == 0 || descs == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  std::vector<Mapping*> mappings = d->space.whole_mappings(base, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (Mapping* m : mappings) {
    if (m->origin != Origin::kMap) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; i++) {
    if (CUresult r = check_access(*d, descs[i], mappings)) return r;
  }
  for (Mapping* m : mappings) {
    for (size_t i = 0; i < count; i++) {
      auto flags = static_cast<uint8_t>(descs[i].flags);
      if (descs[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        m->access[descs[i].location.id] = flags;
      } else if (!d->set_cpu_access(*m, flags)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!on_device && !is_host(location->type)) return CUDA_ERROR_INVALID_VALUE;
  if (on_device && (location->id < 0 || location->id >= d->profile.devices)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  Shared lock(d->mutex);
  Mapping* m = d->space.find(address);
  if (m == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (on_device) {
    *flags = m->access[location->id];
  } else {
    // Of device memory the H200 reports the device's own access for the host (access.get_host).
    *flags = is_host(m->extent.location_type) ? m->host_access : m->access[m->extent.location_id];
  }
  return CUDA_SUCCESS;
}
