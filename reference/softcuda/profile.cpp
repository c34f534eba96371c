// Profiles and legal variants. The defaults are the H200's measured answers (truth/README.md); a
// profile changes only what differs between machines, a variant only what the API leaves open.
#include "profile.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

namespace softcuda {
namespace {

std::string trimmed(const std::string& text) {
  size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string unquoted(const std::string& text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

// A whole number, with underscores as TOML allows and an optional unit KiB, MiB, GiB.
bool parse_number(const std::string& text, int64_t* out) {
  std::string digits;
  for (char c : unquoted(text)) {
    if (c != '_' && c != ' ') digits += c;
  }
  errno = 0;
  char* end = nullptr;
  long long value = strtoll(digits.c_str(), &end, 0);
  if (end == digits.c_str() || errno != 0) return false;
  int shift = 0;
  if (strcmp(end, "KiB") == 0) shift = 10;
  else if (strcmp(end, "MiB") == 0) shift = 20;
  else if (strcmp(end, "GiB") == 0) shift = 30;
  else if (*end != '\0') return false;
  if (value > (INT64_MAX >> shift) || value < (INT64_MIN >> shift)) return false;
  *out = value * (int64_t{1} << shift);
  return true;
}

bool parse_bool(const std::string& text, bool* out) {
  if (text == "true" || text == "1") return *out = true, true;
  if (text == "false" || text == "0") return *out = false, true;
  return false;
}

bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

// Sets one key; false when the value does not fit it or the key is not known.
bool set_key(const std::string& key, const std::string& value, Profile* p) {
  int64_t number = 0;
  if (key == "name") return p->name = unquoted(value), true;
  if (key == "peer_access") return parse_bool(value, &p->peer_access);
  if (key == "reserve_backing") return parse_bool(value, &p->reserve_backing);
  if (!parse_number(value, &number) || number < INT64_MIN) return false;
  if (key.rfind("attribute.", 0) == 0) {
    int64_t attribute = 0;
    if (!parse_number(key.substr(strlen("attribute.")), &attribute)) return false;
    p->attributes[static_cast<int>(attribute)] = static_cast<int>(number);
    return true;
  }
  if (number < 0) return false;
  if (key == "devices") return p->devices = static_cast<int>(number), number <= kMaxDevices;
  if (key == "driver_version") return p->driver_version = static_cast<int>(number), true;
  if (key == "memory") return p->total_bytes = static_cast<uint64_t>(number), true;
  if (key == "driver_memory") return p->driver_bytes = static_cast<uint64_t>(number), true;
  if (key == "granularity") {
    p->granularity = p->recommended_granularity = static_cast<size_t>(number);
    return is_power_of_two(number) && number >= 4096;
  }
  if (key == "recommended_granularity") {
    p->recommended_granularity = static_cast<size_t>(number);
    return is_power_of_two(number);
  }
  return false;
}

// Profiles that need no file.
const char* built_in(const std::string& name) {
  static const std::map<std::string, const char*> kProfiles = {
      {"h200", ""},
      {"h200x2", "devices = 2\n"},
      {"h200x8", "devices = 8\n"},
      {"small", "memory = 1GiB\ndriver_memory = 16MiB\n"},
      {"no-gpu", "devices = 0\n"},
  };
  auto found = kProfiles.find(name);
  return found == kProfiles.end() ? nullptr : found->second;
}

}  // namespace

bool parse_profile(const std::string& text, const std::string& source, Profile* profile,
                   std::string* error) {
  std::istringstream lines(text);
  std::string line;
  std::string section;
  for (int number = 1; std::getline(lines, line); number++) {
    bool quoted = false;
    for (size_t i = 0; i < line.size(); i++) {
      if (line[i] == '"') quoted = !quoted;
      if (line[i] == '#' && !quoted) line.resize(i);
    }
    line = trimmed(line);
    if (line.empty()) continue;
    if (line.front() == '[' && line.back() == ']') {
      section = trimmed(line.substr(1, line.size() - 2));
      section = section == "attributes" ? "attribute." : "";
      continue;
    }
    size_t equals = line.find('=');
    std::string key = section + trimmed(line.substr(0, equals));
    if (equals == std::string::npos ||
        !set_key(key, trimmed(line.substr(equals + 1)), profile)) {
      *error = source + ":" + std::to_string(number) + ": cannot use '" + line + "'";
      return false;
    }
  }
  if (profile->driver_bytes > profile->total_bytes) profile->driver_bytes = 0;
  if (profile->recommended_granularity < profile->granularity) {
    profile->recommended_granularity = profile->granularity;
  }
  return true;
}

bool parse_variants(const std::string& list, Profile* profile, Variants* variants,
                    std::string* error) {
  const std::map<std::string, std::function<void()>> kVariants = {
      {"granularity-64k",
       [&] { profile->granularity = profile->recommended_granularity = 64 << 10; }},
      {"granularity-16m",
       [&] { profile->granularity = profile->recommended_granularity = 16 << 20; }},
      {"hints-never", [&] { variants->hints = Variants::Hints::kNever; }},
      {"hints-always", [&] { variants->hints = Variants::Hints::kAlways; }},
      {"handles-reused", [&] { variants->handle_values = Variants::Values::kReused; }},
      {"handles-never-reused", [&] { variants->handle_values = Variants::Values::kNeverReused; }},
      {"addresses-descending", [&] { variants->descending_addresses = true; }},
      {"fds-inherited", [&] { variants->fds_without_cloexec = true; }},
      {"other-errors", [&] { variants->other_error_codes = true; }},
      {"slow-calls", [&] { variants->slow_call_us = 250; }},
  };
  std::istringstream names(list);
  std::string name;
  while (std::getline(names, name, ',')) {
    name = trimmed(name);
    if (name.empty()) continue;
    auto found = kVariants.find(name);
    if (found == kVariants.end()) {
      *error = "SOFTCUDA_VARIANT: no variant '" + name + "'";
      return false;
    }
    found->second();
  }
  return true;
}

bool load_profile(Profile* profile, std::string* error) {
  const char* source = getenv("SOFTCUDA_PROFILE");
  if (source == nullptr || *source == '\0') return true;
  if (const char* text = built_in(source)) return parse_profile(text, source, profile, error);
  std::ifstream file(source);
  if (!file) {
    *error = std::string("SOFTCUDA_PROFILE: cannot read '") + source + "'";
    return false;
  }
  std::stringstream text;
  text << file.rdbuf();
  return parse_profile(text.str(), source, profile, error);
}

bool load_variants(Profile* profile, Variants* variants, std::string* error) {
  const char* list = getenv("SOFTCUDA_VARIANT");
  return list == nullptr || parse_variants(list, profile, variants, error);
}

}  // namespace softcuda
