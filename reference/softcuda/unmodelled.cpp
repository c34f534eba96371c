// Entry points that softcuda exports without modelling them, and further names of those it models.
// No cuda.h here: the symbols are defined without their types. A call of one, whatever its
// arguments, answers CUDA_ERROR_NOT_SUPPORTED with one line in the log.
#include "log.hpp"

namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED

int not_modelled(const char* name) {
  softcuda::log_line("%s: not modelled", name);
  return kNotSupported;
}

}  // namespace

#define UNMODELLED(symbol) \
  extern "C" int symbol() { return not_modelled(#symbol); }
#include "unmodelled.inc"
#undef UNMODELLED

// A jump keeps every argument where it is.
#if defined(__x86_64__)
#define JUMP_TO(target) "jmp " target "@PLT\n"
#elif defined(__aarch64__)
#define JUMP_TO(target) "b " target "\n"
#else
#error "softcuda needs a jump instruction for this architecture"
#endif
#define FORWARD(symbol, target)                        \
  __asm__(".text\n.globl " #symbol "\n.type " #symbol \
          ", @function\n" #symbol ":\n" JUMP_TO(#target) ".size " #symbol ", . - " #symbol "\n");
#include "forwarded.inc"
#undef FORWARD
