// What CUDA knows of an address. Measured facts: retain.addr_range, grow.addrrange_two_maps (one
// mapping, not the reservation), retain.attr.* and xproc.importer.attr.allowed_handle_types.
#include <cstring>

#include "driver.hpp"

using namespace softcuda;

namespace {

// Everything that the attributes are answered from.
struct PointerFacts {
  bool known = false;
  bool device_memory = false;
  bool managed = false;
  CUdeviceptr base = 0;
  size_t size = 0;
  CUcontext context = nullptr;
  int ordinal = -2;
  uint64_t buffer_id = 0;
  unsigned int handle_types = 0;
  bool legacy_ipc = false;
  bool readable = true;
  bool writable = true;
  CUmemoryPool pool = nullptr;
};

PointerFacts facts_of(Driver& d, CUdeviceptr address) {
  PointerFacts facts;
  if (Mapping* m = d.space.find(address)) {
    facts.known = true;
    facts.device_memory = m->extent.location_type == CU_MEM_LOCATION_TYPE_DEVICE;
    facts.base = m->base;
    facts.size = m->size;
    facts.context = m->context;
    facts.ordinal = facts.device_memory ? m->extent.location_id : 0;
    facts.buffer_id = m->buffer_id;
    bool imported = m->handle != nullptr && m->handle->imported;
    facts.handle_types = imported ? 0 : m->extent.handle_types;
    facts.legacy_ipc = m->origin == Origin::kAlloc || m->origin == Origin::kIpc;
    uint8_t access = m->access[facts.ordinal];
    facts.readable = (access & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0;
    facts.writable = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    facts.pool = m->pool;
    return facts;
  }
  auto above = d.host_ranges.upper_bound(address);
  if (above == d.host_ranges.begin()) return facts;
  auto& [base, range] = *std::prev(above);
  if (address - base >= range.size) return facts;
  facts.known = true;
  facts.managed = range.managed;
  facts.device_memory = range.managed;
  facts.base = base;
  facts.size = range.size;
  facts.context = range.context;
  facts.ordinal = range.context != nullptr ? range.context->device : 0;
  facts.buffer_id = range.buffer_id;
  return facts;
}

template <typename T>
CUresult give(void* out, T value) {
  memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult reservation_attribute(Driver& d, void* out, CUpointer_attribute attribute,
                               CUdeviceptr address, const PointerFacts& facts) {
  CUdeviceptr base = facts.base;
  size_t size = facts.size;
  d.space.find_reservation(address, &base, &size);
  return attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ? give(out, base) : give(out, size);
}

CUresult attribute_of(Driver& d, void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  PointerFacts f = facts_of(d, address);
  if (!f.known) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return give(out, f.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(out, f.device_memory ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return give(out, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (f.device_memory && !f.managed) return CUDA_ERROR_INVALID_VALUE;
      return give(out, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return give(out, 0u);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(out, static_cast<unsigned long long>(f.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return give(out, f.managed ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return give(out, f.ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return give(out, f.legacy_ipc);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return reservation_attribute(d, out, attribute, address, f);
    case CU_POINTER_ATTRIBUTE_MAPPED: return give(out, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give(out, static_cast<unsigned long long>(f.handle_types));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return give(out, 0u);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give(out, f.writable   ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                       : f.readable ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                                    : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return give(out, f.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return give(out, f.size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return give(out, f.base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return give(out, static_cast<unsigned long long>(f.buffer_id));
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// The size of an attribute's value, for cuPointerGetAttributes, which blanks what it cannot answer.
size_t attribute_size(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED: return sizeof(bool);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return sizeof(int);
    default: return sizeof(uint64_t);
  }
}

}  // namespace

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Shared lock(d->mutex);
  PointerFacts facts = facts_of(*d, address);
  if (!facts.known || !facts.readable) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = facts.base;
  if (size != nullptr) *size = facts.size;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  return attribute_of(*d, out, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** out,
                                CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (attributes == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Shared lock(d->mutex);
  for (unsigned int i = 0; i < count; i++) {
    if (attribute_of(*d, out[i], attributes[i], address) == CUDA_SUCCESS) continue;
    memset(out[i], 0, attribute_size(attributes[i]));
    int no_device = -2;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      memcpy(out[i], &no_device, sizeof no_device);
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr address) {
  Driver* d = ready();
  if (d == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Shared lock(d->mutex);
  return facts_of(*d, address).known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
