// Allocation handles. Measured facts: references and mappings are counted apart, a handle lives
// while either is left (release.*, retain.rel*), every import is a new value (import.*), and the
// properties of a handle released just now can still be read (release.props_after_release).
#include "driver.hpp"

namespace softcuda {
namespace {

// Values look like the driver's, which are addresses of its own heap.
constexpr CUmemGenericAllocationHandle kFirstValue = 0x5c0d'0000'0000;
constexpr CUmemGenericAllocationHandle kValueStep = 0x100;

}  // namespace

CUmemGenericAllocationHandle Driver::next_handle_value() {
  if (variants.handle_values == Variants::Values::kReused && !reusable_values_.empty()) {
    CUmemGenericAllocationHandle value = reusable_values_.back();
    reusable_values_.pop_back();
    return value;
  }
  return kFirstValue + kValueStep * handle_counter_++;
}

Handle* Driver::make_handle(const Extent& extent, bool imported) {
  auto handle = std::make_unique<Handle>();
  handle->value = next_handle_value();
  handle->extent = extent;
  handle->references = 1;
  handle->imported = imported;
  count_extent(extent.id);
  Handle* made = handle.get();
  handles_[made->value] = std::move(handle);
  return made;
}

Handle* Driver::find_handle(CUmemGenericAllocationHandle value) {
  auto found = handles_.find(value);
  return found == handles_.end() ? nullptr : found->second.get();
}

const Extent* Driver::find_dead_handle(CUmemGenericAllocationHandle value) const {
  for (const DeadHandle& dead : dead_handles_) {
    if (dead.value == value && value != 0) return &dead.extent;
  }
  return nullptr;
}

void Driver::destroy_if_unused(Handle* handle) {
  if (handle->references > 0 || handle->mappings > 0) return;
  dead_handles_[dead_handle_next_++ % dead_handles_.size()] = {handle->value, handle->extent};
  if (variants.handle_values == Variants::Values::kReused) {
    reusable_values_.push_back(handle->value);
  }
  ExtentId extent = handle->extent.id;
  handles_.erase(handle->value);
  drop_extent(extent);
}

}  // namespace softcuda
