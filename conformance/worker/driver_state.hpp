// What the driver worker holds of the driver: the objects that scenarios made and have not undone.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "protocol/channel.hpp"
#include "worker/driver_table.hpp"

namespace cts {

class DriverState {
 public:
  // The entry points as the resolver gives them; loaded when first asked for.
  const DriverTable& table(Resolver resolver = Resolver::dlsym);

  // cuInit, primary contexts on the first `devices` devices with device 0's current, and one whole
  // share on each, so that what the driver opens lazily is open. Done once.
  void warm_up(int devices);

  // Undoes everything that is noted here, in an order that any driver allows, and makes the first
  // device's context current. Throws OperationError with the first call that failed.
  void reset();

  // A value that the driver gave, under the number that the coordinator chose; or {"value": n}.
  std::uint64_t value_of(const Json& slot) const;
  void put(int slot, std::uint64_t value) { slots_[slot] = value; }

  // What calls that succeeded made and undid.
  void referenced(CUmemGenericAllocationHandle handle) { ++references_[handle]; }
  void released(CUmemGenericAllocationHandle handle);
  void reserved(CUdeviceptr pointer, std::size_t size) { reservations_[pointer] = size; }
  void freed(CUdeviceptr pointer) { reservations_.erase(pointer); }
  void mapped(CUdeviceptr pointer, std::size_t size) { mappings_[pointer] = size; }
  void unmapped(CUdeviceptr pointer, std::size_t size);
  void stream_made(CUstream stream) { streams_.insert(stream); }
  void stream_gone(CUstream stream) { streams_.erase(stream); }
  void pool_made(CUmemoryPool pool) { pools_.insert(pool); }
  void pool_gone(CUmemoryPool pool) { pools_.erase(pool); }
  void allocated(CUdeviceptr pointer) { plain_.insert(pointer); }
  void plain_freed(CUdeviceptr pointer) { plain_.erase(pointer); }

  // The device's primary context, retained once for the life of this process.
  CUcontext context(int device);
  // Takes the retained context for given up, as after cuDevicePrimaryCtxReset.
  void forget_context(int device) { contexts_.erase(device); }

 private:
  std::map<Resolver, DriverTable> tables_;
  bool warm_ = false;
  std::map<int, std::uint64_t> slots_;
  std::map<CUmemGenericAllocationHandle, int> references_;
  std::map<CUdeviceptr, std::size_t> reservations_;
  std::map<CUdeviceptr, std::size_t> mappings_;
  std::set<CUstream> streams_;
  std::set<CUmemoryPool> pools_;
  std::set<CUdeviceptr> plain_;
  std::map<int, CUcontext> contexts_;
};

// Properties of pinned memory on a device that can be exported as a file descriptor.
CUmemAllocationProp shareable_memory(int device);

}  // namespace cts
