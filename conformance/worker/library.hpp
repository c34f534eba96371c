// The library under test, loaded by path.
#pragma once

#include <string>

#include "vmmcts/implementation.h"

namespace cts {

struct LoadedLibrary {
  const vmmcts_implementation* table = nullptr;
  std::string problem;  // one line, empty when the table is usable
};

// Loads `path` and checks the entry point, the version and that no member is missing. The library
// stays loaded for the life of the process.
LoadedLibrary load_library(const std::string& path);

}  // namespace cts
