// The bytes that workers write and look for (PROTOCOL.md, "The pattern of a seed").
#pragma once

#include <cstdint>
#include <span>

namespace cts {

inline std::uint8_t pattern_byte(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<std::uint8_t>(seed + offset + (offset >> 8) * 7 + (offset >> 16) * 13 +
                                   (offset >> 21) * 31);
}

inline void write_pattern(std::span<std::uint8_t> bytes, std::uint64_t seed, std::uint64_t offset) {
  for (std::uint8_t& byte : bytes) byte = pattern_byte(seed, offset++);
}

// Offset in the buffer of the first byte that differs, -1 if none does.
inline std::int64_t find_mismatch(std::span<const std::uint8_t> bytes, std::uint64_t seed,
                                  std::uint64_t offset) {
  for (const std::uint8_t byte : bytes) {
    if (byte != pattern_byte(seed, offset)) return static_cast<std::int64_t>(offset);
    ++offset;
  }
  return -1;
}

}  // namespace cts
