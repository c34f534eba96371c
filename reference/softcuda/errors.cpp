// Names and descriptions of the result codes. Both work before cuInit and in a forked child.
#include <cuda.h>

#include <cstddef>

namespace {

struct ErrorCode {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorCode kErrors[] = {
#define ERROR_CODE(code, text) {code, #code, text},
#include "errors_table.inc"
#undef ERROR_CODE
};

const ErrorCode* find_error(CUresult code) {
  for (const ErrorCode& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace

CUresult cuGetErrorName(CUresult code, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorCode* found = find_error(code);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorCode* found = find_error(code);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
