// What a simulated machine looks like (SOFTCUDA_PROFILE) and which legal variants of behaviour it
// shows (SOFTCUDA_VARIANT).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace softcuda {

inline constexpr int kMaxDevices = 16;

// A machine. The defaults are the measured one: one NVIDIA H200 under driver 580.159.04.
struct Profile {
  int devices = 1;
  std::string name = "NVIDIA H200";
  int driver_version = 13000;
  uint64_t total_bytes = 150109880320;  // per device, what cuMemGetInfo reports
  uint64_t driver_bytes = 552402944;    // of these, taken by the driver before any allocation
  size_t granularity = size_t{2} << 20;
  size_t recommended_granularity = size_t{2} << 20;
  bool peer_access = true;
  bool reserve_backing = false;         // claim the file's blocks at create, not at first touch
  std::map<int, int> attributes;        // CUdevice_attribute -> value, over the built-in ones
};

// Behaviours that the API allows and the measured driver does not show.
struct Variants {
  enum class Hints { kMeasured, kNever, kAlways };
  enum class Values { kMeasured, kReused, kNeverReused };
  Hints hints = Hints::kMeasured;
  Values handle_values = Values::kMeasured;
  bool descending_addresses = false;
  bool fds_without_cloexec = false;
  bool other_error_codes = false;
  int slow_call_us = 0;
};

// Reads SOFTCUDA_PROFILE (a path, or the name of a built-in profile) and SOFTCUDA_VARIANT. On an
// error answers false with one line that names the key and the source.
bool load_profile(Profile* profile, std::string* error);
bool load_variants(Profile* profile, Variants* variants, std::string* error);

// The parsers behind them, for tests. `source` is named in errors.
bool parse_profile(const std::string& text, const std::string& source, Profile* profile,
                   std::string* error);
bool parse_variants(const std::string& list, Profile* profile, Variants* variants,
                    std::string* error);

}  // namespace softcuda
