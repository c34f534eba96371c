#include "reservation.hpp"

#include "driver.hpp"

namespace vmm {

Result<ReservationHandle> Reservation::reserve(std::size_t size, CUdeviceptr hint) {
  auto box = std::make_shared<Reservation>(Key{}, size);  // before the driver call [I2]
  if (CUresult result = driver().cuMemAddressReserve(&box->pointer_, size, 0, hint, 0))
    return cuda_error("cuMemAddressReserve", result,
                      "reserving " + std::to_string(size) + " bytes of addresses");
  box->live_ = true;
  return ReservationHandle(std::move(box));
}

Reservation::~Reservation() {
  if (!live_ || forked_after_load()) return;
  if (CUresult result = driver().cuMemAddressFree(pointer_, size_))
    report_cleanup_failure("cuMemAddressFree", result, 0);
}

}  // namespace vmm
