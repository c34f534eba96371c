// One line of log per noteworthy event, to the file or stream that SOFTCUDA_LOG names.
#pragma once

namespace softcuda {

// Writes "softcuda[PID]: TEXT\n" to SOFTCUDA_LOG ("stderr" or a path that is appended to). Does
// nothing when the variable is unset. Needs no lock: a line is one write().
[[gnu::format(printf, 1, 2)]] void log_line(const char* format, ...) noexcept;

// As log_line(), but goes to stderr when SOFTCUDA_LOG is unset: for what a person must see, such as
// a device directory that cannot be used.
[[gnu::format(printf, 1, 2)]] void log_trouble(const char* format, ...) noexcept;

}  // namespace softcuda
