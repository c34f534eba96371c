// Errors are values. Result<T> holds a T or an Error; failures of clean-up, which have no caller to
// go to, go to one sink.
#pragma once

#include <cuda.h>

#include <string>
#include <utility>
#include <variant>

namespace vmm {

enum class ErrorKind { kRuntime, kValue, kType, kOs };

// A failed or refused operation. `call` is the driver or system call that failed, empty where the
// library refused by itself; `cuda_result` and `system_errno` are 0 where there is none.
struct Error {
  ErrorKind kind = ErrorKind::kRuntime;
  std::string detail;
  std::string call;
  CUresult cuda_result = CUDA_SUCCESS;
  int system_errno = 0;

  // One line: what was being done, the call, and the status by name [EXP-06].
  std::string message() const;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const noexcept { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }
  Error& error() { return std::get<1>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

struct Done {};
using Status = Result<Done>;

Error runtime_error(std::string detail);
Error value_error(std::string detail);
Error type_error(std::string detail);
Error system_error(const char* call, int error_number, std::string detail);
// A driver call failed while `doing`. A forked child learns why nothing works in it [MP-17].
Error cuda_error(const char* call, CUresult result, std::string doing);

// Where failures of clean-up go, beside the first error and never instead of it [ERR-03]. The first
// sink writes a line to stderr. Returns the sink before.
using CleanupSink = void (*)(const char* call, CUresult result, int error_number) noexcept;
CleanupSink set_cleanup_sink(CleanupSink sink) noexcept;
void report_cleanup_failure(const char* call, CUresult result, int error_number) noexcept;

}  // namespace vmm
