#include "allocation.hpp"

#include <algorithm>

#include "driver.hpp"

namespace vmm {

bool same_access(const Access& a, const Access& b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.flags == y.flags && x.location.type == y.location.type &&
           x.location.id == y.location.id;
  });
}

// In both: the box comes before the driver call, so that no exception can lose what it made [I2].
Result<AllocationHandle> Allocation::create(std::size_t size, const CUmemAllocationProp& properties,
                                            Access access) {
  auto box = std::make_shared<Allocation>(Key{}, size, std::move(access), false);
  if (CUresult result = driver().cuMemCreate(&box->handle_, size, &properties, 0))
    return cuda_error("cuMemCreate", result, "allocating " + std::to_string(size) + " bytes");
  box->live_ = true;
  return AllocationHandle(std::move(box));
}

Result<AllocationHandle> Allocation::import(BorrowedFd fd, std::size_t size, Access access) {
  auto box = std::make_shared<Allocation>(Key{}, size, std::move(access), true);
  void* os_handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.number));
  if (CUresult result = driver().cuMemImportFromShareableHandle(
          &box->handle_, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return cuda_error("cuMemImportFromShareableHandle", result, "importing the allocation");
  box->live_ = true;
  return AllocationHandle(std::move(box));
}

Allocation::~Allocation() {
  if (!live_ || forked_after_load()) return;
  if (CUresult result = driver().cuMemRelease(handle_))
    report_cleanup_failure("cuMemRelease", result, 0);
}

}  // namespace vmm
