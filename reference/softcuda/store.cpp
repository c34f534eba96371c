// The data file. Measured facts behind it: fresh memory that a process maps holds no bytes of
// others, and copies of bad host addresses do not take the simulated device down.
#include "store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace softcuda {

Store::~Store() { close_fd(); }

void Store::close_fd() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int Store::read(uint64_t offset, void* to, size_t size) const {
  char* target = static_cast<char*>(to);
  while (size > 0) {
    ssize_t n = pread(fd_, target, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    target += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return 0;
}

int Store::write(uint64_t offset, const void* from, size_t size) const {
  const char* source = static_cast<const char*>(from);
  while (size > 0) {
    ssize_t n = pwrite(fd_, source, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    source += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return 0;
}

int Store::fill(uint64_t offset, uint32_t pattern, size_t pattern_size, size_t size) const {
  constexpr size_t kBlock = 64 << 10;
  constexpr size_t kBlocksPerCall = 64;
  size_t block_size = std::min(size, kBlock);
  auto block = std::make_unique_for_overwrite<char[]>(block_size);
  for (size_t i = 0; i + pattern_size <= block_size; i += pattern_size) {
    memcpy(block.get() + i, &pattern, pattern_size);
  }
  while (size > 0) {
    iovec parts[kBlocksPerCall];
    int count = 0;
    for (size_t left = size; left > 0 && count < static_cast<int>(kBlocksPerCall); count++) {
      parts[count] = {block.get(), std::min(left, block_size)};
      left -= parts[count].iov_len;
    }
    ssize_t n = pwritev(fd_, parts, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    // A short write ends anywhere; go on from the last whole pattern.
    size_t done = static_cast<size_t>(n) / pattern_size * pattern_size;
    if (done == 0) return ENOSPC;
    offset += done;
    size -= done;
  }
  return 0;
}

int Store::copy(uint64_t to, uint64_t from, size_t size) const {
  if (size == 0 || to == from) return 0;
  size_t block_size = std::min(size, size_t{1} << 20);
  auto block = std::make_unique_for_overwrite<char[]>(block_size);
  bool backwards = to > from && to < from + size;
  for (size_t done = 0; done < size;) {
    size_t n = std::min(block_size, size - done);
    size_t at = backwards ? size - done - n : done;
    if (int error = read(from + at, block.get(), n)) return error;
    if (int error = write(to + at, block.get(), n)) return error;
    done += n;
  }
  return 0;
}

int Store::extend_to(uint64_t end) const {
  return ftruncate(fd_, static_cast<off_t>(end)) == 0 ? 0 : errno;
}

int Store::reserve(uint64_t offset, uint64_t size) const {
  while (fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(size)) != 0) {
    if (errno == EOPNOTSUPP) return 0;
    if (errno != EINTR) return errno;
  }
  return 0;
}

void Store::discard(uint64_t offset, uint64_t size) const {
  while (size > 0 && fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               static_cast<off_t>(offset), static_cast<off_t>(size)) != 0) {
    if (errno != EINTR) return;
  }
}

void Store::discard_all() const {
  [[maybe_unused]] int result = ftruncate(fd_, 0);
}

uint64_t Store::available_bytes() const {
  struct statvfs fs {};
  struct stat file {};
  if (fstatvfs(fd_, &fs) != 0 || fstat(fd_, &file) != 0) return 0;
  if (fs.f_blocks == 0) return UINT64_MAX;  // a file system without a limit
  return static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize +
         static_cast<uint64_t>(file.st_blocks) * 512;
}

}  // namespace softcuda
