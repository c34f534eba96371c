#include "mapping.hpp"

#include "driver.hpp"

namespace vmm {

Result<MappingHandle> Mapping::map(ReservationHandle reservation, std::size_t offset,
                                   AllocationHandle allocation) {
  auto box = std::make_shared<Mapping>(Key{}, std::move(reservation), offset,
                                       std::move(allocation));  // before the driver call [I2]
  if (CUresult result = driver().cuMemMap(box->pointer_, box->size(), 0,
                                          box->allocation_->handle(), 0))
    return cuda_error("cuMemMap", result, "mapping " + std::to_string(box->size()) + " bytes");
  box->live_ = true;
  return MappingHandle(std::move(box));
}

Mapping::~Mapping() {
  if (!live_ || forked_after_load()) return;
  if (CUresult result = driver().cuMemUnmap(pointer_, size()))
    report_cleanup_failure("cuMemUnmap", result, 0);
}

}  // namespace vmm
