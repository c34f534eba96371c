#include "result.hpp"

#include <atomic>
#include <cstdio>
#include <cstring>

#include "driver.hpp"

namespace vmm {
namespace {

void write_to_stderr(const char* call, CUresult result, int error_number) noexcept {
  std::fprintf(stderr, "vmm: %s failed during clean-up: %s\n", call,
               result ? result_name(result) : strerrorname_np(error_number));
}

std::atomic<CleanupSink> cleanup_sink{write_to_stderr};

}  // namespace

std::string Error::message() const {
  std::string text = detail;
  if (cuda_result) text += ": " + call + " failed with " + result_name(cuda_result);
  if (system_errno && !cuda_result)
    text += ": " + call + " failed with " + std::strerror(system_errno);
  return text;
}

Error runtime_error(std::string detail) {
  return {ErrorKind::kRuntime, std::move(detail), {}, CUDA_SUCCESS, 0};
}

Error value_error(std::string detail) {
  return {ErrorKind::kValue, std::move(detail), {}, CUDA_SUCCESS, 0};
}

Error type_error(std::string detail) {
  return {ErrorKind::kType, std::move(detail), {}, CUDA_SUCCESS, 0};
}

Error system_error(const char* call, int error_number, std::string detail) {
  return {ErrorKind::kOs, std::move(detail), call, CUDA_SUCCESS, error_number};
}

Error cuda_error(const char* call, CUresult result, std::string doing) {
  if (forked_after_load())
    doing += " (this process was forked after CUDA was initialized, so CUDA does not work in it; "
             "start processes with spawn or forkserver)";
  return {ErrorKind::kRuntime, std::move(doing), call, result, 0};
}

CleanupSink set_cleanup_sink(CleanupSink sink) noexcept {
  return cleanup_sink.exchange(sink ? sink : write_to_stderr);
}

// A driver that is shutting down with the process has undone everything by itself [DESC-14].
void report_cleanup_failure(const char* call, CUresult result, int error_number) noexcept {
  if (result != CUDA_ERROR_DEINITIALIZED) cleanup_sink.load()(call, result, error_number);
}

}  // namespace vmm
