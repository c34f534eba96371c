// Memory pools, as far as VMM's neighbours need them. Measured facts: mempool.* (a pool's fd is not
// close-on-exec; pool fds and VMM fds do not import as each other; a pool's memory has no VMM
// handle). Each allocation takes whole 2 MiB units, and a freed one is given back at once.
#include "pool.hpp"

#include <algorithm>
#include <cstring>

#include "driver.hpp"
#include "stream.hpp"

using namespace softcuda;

namespace {

// What softcuda puts into the 64 opaque bytes of a CUmemPoolPtrExportData.
struct PointerPayload {
  char mark[8];
  ExtentId pool;
  ExtentId extent;
  uint64_t size;
};
constexpr char kPointerMark[8] = {'s', 'o', 'f', 't', 'p', 'o', 'o', 'l'};

bool device_ok(const Driver& d, CUdevice device) {
  return device >= 0 && device < d.profile.devices;
}

bool on_device(const CUmemPoolProps& props) {
  return props.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         props.allocType != CU_MEM_ALLOCATION_TYPE_MANAGED;
}

CUmemoryPool find_pool(Driver& d, CUmemoryPool pool) {
  auto found = d.pools.find(pool);
  return found == d.pools.end() || pool->destroyed ? nullptr : pool;
}

CUmemoryPool make_pool(Driver& d, const CUmemPoolProps& props) {
  auto pool = std::make_unique<CUmemPoolHandle_st>();
  pool->props = props;
  if (on_device(props)) {
    pool->access[props.location.id] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  } else {
    pool->access.fill(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  CUmemoryPool made = pool.get();
  d.pools[made] = std::move(pool);
  return made;
}

CUmemoryPool default_pool(Driver& d, const CUmemLocation& location, CUmemAllocationType type) {
  auto key = std::make_tuple(static_cast<int>(type), static_cast<int>(location.type),
                             location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : 0);
  CUmemoryPool& pool = d.default_pools[key];
  if (pool == nullptr) {
    CUmemPoolProps props{};
    props.allocType = type;
    props.location = location;
    pool = make_pool(d, props);
  }
  return pool;
}

CUresult check_pool_location(const Driver& d, const CUmemLocation& location,
                             CUmemAllocationType type) {
  switch (static_cast<int>(location.type)) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return device_ok(d, location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_NONE:
      return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult allocate(CUdeviceptr* out, size_t size, CUmemoryPool pool) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext context;
  if (CUresult missing = require_context(&context)) return missing;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  if (pool == nullptr) {
    CUmemLocation here{};
    here.type = CU_MEM_LOCATION_TYPE_DEVICE;
    here.id = context->device;
    CUmemoryPool current = d->current_pools[context->device];
    pool = current != nullptr ? current
                              : default_pool(*d, here, CU_MEM_ALLOCATION_TYPE_PINNED);
  }
  if (find_pool(*d, pool) == nullptr || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (pool->props.maxSize != 0 && pool->used + size > pool->props.maxSize) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  int location = on_device(pool->props) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  int id = on_device(pool->props) ? pool->props.location.id : 0;
  Mapping* m = nullptr;
  CUresult r = d->allocate_plain(size, location, id, Origin::kPoolAlloc, &m);
  if (r != CUDA_SUCCESS) return r;
  m->pool = pool;
  m->access = pool->access;
  pool->live++;
  pool->used += m->size;
  pool->reserved += m->span;
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  *out = m->base;
  return CUDA_SUCCESS;
}

template <typename Action>
CUresult with_pool(CUmemoryPool pool, Action action) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Exclusive lock(d->mutex);
  if (find_pool(*d, pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return action(*d, *pool);
}

}  // namespace

namespace softcuda {

void forget_pool_allocation(Driver& driver, const Mapping& mapping) {
  CUmemoryPool pool = mapping.pool;
  pool->live--;
  if (mapping.origin == Origin::kPoolAlloc) {
    pool->used -= mapping.size;
    pool->reserved -= mapping.span;
  }
  if (pool->destroyed && pool->live == 0) {
    if (pool->anchor.id != 0) driver.drop_extent(pool->anchor.id);
    driver.pools.erase(pool);
  }
}

}  // namespace softcuda

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && !managed) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult r = check_pool_location(*d, props->location, props->allocType)) return r;
  unsigned int types = props->handleTypes;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  if ((types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (types != 0 && (managed || props->location.type == CU_MEM_LOCATION_TYPE_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Exclusive lock(d->mutex);
  Extent anchor;
  if (types != 0) {
    anchor.kind = ExtentKind::kPool;
    anchor.location_type = static_cast<int>(props->location.type);
    anchor.location_id = on_device(*props) ? props->location.id : 0;
    anchor.handle_types = types;
    if (CUresult r = d->books->create(&anchor)) return r;
    d->count_extent(anchor.id);
  }
  *out = make_pool(*d, *props);
  (*out)->anchor = anchor;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return with_pool(pool, [](Driver& d, CUmemPoolHandle_st& p) {
    for (auto& [key, other] : d.default_pools) {
      if (other == &p) return CUDA_ERROR_INVALID_VALUE;
    }
    for (auto& [device, current] : d.current_pools) {
      if (current == &p) current = nullptr;
    }
    p.destroyed = true;
    if (p.live > 0) return CUDA_SUCCESS;
    if (p.anchor.id != 0) d.drop_extent(p.anchor.id);
    d.pools.erase(&p);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  return with_pool(pool, [](Driver&, CUmemPoolHandle_st&) { return CUDA_SUCCESS; });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return with_pool(pool, [&](Driver&, CUmemPoolHandle_st& p) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t number = 0;
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(&p.reuse[attribute - 1], value, sizeof(int));
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&p.release_threshold, value, sizeof p.release_threshold);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        memcpy(&number, value, sizeof number);
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) p.used_high = p.used;
        else p.reserved_high = p.reserved;
        return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return with_pool(pool, [&](Driver&, CUmemPoolHandle_st& p) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t number = 0;
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(value, &p.reuse[attribute - 1], sizeof(int));
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: number = p.release_threshold; break;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: number = p.reserved; break;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: number = p.reserved_high; break;
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: number = p.used; break;
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH: number = p.used_high; break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* descs, size_t count) {
  return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st& p) {
    if (descs == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
      if (descs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (!device_ok(d, descs[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
      bool owner = on_device(p.props) && descs[i].location.id == p.props.location.id;
      if (owner && descs[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    for (size_t i = 0; i < count; i++) {
      p.access[descs[i].location.id] = static_cast<uint8_t>(descs[i].flags);
    }
    for (Mapping* m : d.space.mappings_if([&](const Mapping& x) { return x.pool == &p; })) {
      m->access = p.access;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st& p) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!device_ok(d, location->id)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = static_cast<CUmemAccess_flags>(p.access[location->id]);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location,
                                CUmemAllocationType type) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = check_pool_location(*d, *location, type)) return r;
  Exclusive lock(d->mutex);
  *out = default_pool(*d, *location, type);
  return CUDA_SUCCESS;
}

CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  if (location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
      type == CU_MEM_ALLOCATION_TYPE_PINNED) {
    return cuDeviceGetMemPool(out, location->id);
  }
  return cuMemGetDefaultMemPool(out, location, type);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return cuMemGetDefaultMemPool(out, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!device_ok(*d, device)) return CUDA_ERROR_INVALID_DEVICE;
  {
    Shared lock(d->mutex);
    auto current = d->current_pools.find(device);
    if (current != d->current_pools.end() && current->second != nullptr) {
      *out = current->second;
      return CUDA_SUCCESS;
    }
  }
  return cuDeviceGetDefaultMemPool(out, device);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st& p) {
    if (!device_ok(d, device)) return CUDA_ERROR_INVALID_DEVICE;
    if (p.imported || !on_device(p.props) || p.props.location.id != device) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    d.current_pools[device] = &p;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t size, CUstream stream) {
  if (CUresult r = check_work_stream(stream, "cuMemAllocAsync")) return r;
  return allocate(out, size, nullptr);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t size, CUmemoryPool pool,
                                 CUstream stream) {
  if (CUresult r = check_work_stream(stream, "cuMemAllocFromPoolAsync")) return r;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate(out, size, pool);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  if (CUresult r = check_work_stream(stream, "cuMemFreeAsync")) return r;
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  return cuMemFree(address);
}

CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st& p) {
    if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (p.anchor.id == 0) return CUDA_ERROR_INVALID_VALUE;
    int fd = -1;
    CUresult r = d.books->export_fd(p.anchor.id, false, &fd);
    memcpy(out, &fd, sizeof fd);
    return r;
  });
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* os_handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  ExtentId id = d->books->identify(static_cast<int>(reinterpret_cast<uintptr_t>(os_handle)));
  if (id == 0) return CUDA_ERROR_INVALID_VALUE;
  Exclusive lock(d->mutex);
  Extent anchor;
  if (!d->books->look_up(id, &anchor)) return CUDA_ERROR_INVALID_VALUE;
  if (anchor.kind != ExtentKind::kPool) return CUDA_ERROR_NOT_SUPPORTED;
  if (!d->books->hold(id, &anchor)) return CUDA_ERROR_INVALID_VALUE;
  d->count_extent(id);
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = static_cast<CUmemLocationType>(anchor.location_type);
  props.location.id = anchor.location_id;
  *out = make_pool(*d, props);
  (*out)->anchor = anchor;
  (*out)->imported = true;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  Mapping* m = d->space.find(address);
  if (m == nullptr || m->base != address || m->pool == nullptr || m->pool->anchor.id == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  PointerPayload payload{};
  memcpy(payload.mark, kPointerMark, sizeof kPointerMark);
  payload.pool = m->pool->anchor.id;
  payload.extent = m->extent.id;
  payload.size = m->size;
  memset(out, 0, sizeof *out);
  memcpy(out->reserved, &payload, sizeof payload);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st& p) {
    if (out == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    PointerPayload payload;
    memcpy(&payload, data->reserved, sizeof payload);
    if (memcmp(payload.mark, kPointerMark, sizeof kPointerMark) != 0 || !p.imported ||
        payload.pool != p.anchor.id) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Mapping m;
    if (!d.books->hold(payload.extent, &m.extent)) return CUDA_ERROR_INVALID_VALUE;
    d.count_extent(payload.extent);
    m.size = payload.size;
    m.span = m.extent.size;
    m.origin = Origin::kPoolImport;
    m.pool = &p;
    m.access = p.access;
    if (m.extent.kind != ExtentKind::kPlain || m.size > m.span ||
        !d.place_plain(&m)) {
      d.drop_extent(payload.extent);
      return CUDA_ERROR_INVALID_VALUE;
    }
    p.live++;
    *out = d.space.add(m).base;
    return CUDA_SUCCESS;
  });
}
