// The log. Models nothing of the measured driver: it is how softcuda says what it does not model.
#include "log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace softcuda {
namespace {

void write_line(const char* target, const char* format, va_list args) noexcept {
  char line[1024];
  int head = snprintf(line, sizeof line, "softcuda[%d]: ", static_cast<int>(getpid()));
  int body = vsnprintf(line + head, sizeof line - head - 1, format, args);
  size_t length = std::min(sizeof line - 1, static_cast<size_t>(head + std::max(body, 0)));
  line[length++] = '\n';
  bool to_stderr = strcmp(target, "stderr") == 0;
  int fd = to_stderr ? STDERR_FILENO
                     : open(target, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  [[maybe_unused]] ssize_t written = write(fd, line, length);
  if (!to_stderr) close(fd);
}

}  // namespace

void log_line(const char* format, ...) noexcept {
  const char* target = getenv("SOFTCUDA_LOG");
  if (target == nullptr || *target == '\0') return;
  va_list args;
  va_start(args, format);
  write_line(target, format, args);
  va_end(args);
}

void log_trouble(const char* format, ...) noexcept {
  const char* target = getenv("SOFTCUDA_LOG");
  va_list args;
  va_start(args, format);
  write_line(target == nullptr || *target == '\0' ? "stderr" : target, format, args);
  va_end(args);
}

}  // namespace softcuda
