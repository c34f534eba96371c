#include "worker/library.hpp"

#include <dlfcn.h>

#include <cstring>

namespace cts {
namespace {

// Functions fill the table from resource_create to its end; every one must be there.
bool has_every_function(const vmmcts_implementation& table) {
  using Slot = void (*)();
  const char* bytes = reinterpret_cast<const char*>(&table);
  for (std::size_t at = offsetof(vmmcts_implementation, resource_create); at < sizeof(table);
       at += sizeof(Slot)) {
    Slot slot = nullptr;
    std::memcpy(&slot, bytes + at, sizeof(slot));
    if (slot == nullptr) return false;
  }
  return table.name != nullptr && table.version != nullptr && table.profiles != nullptr;
}

}  // namespace

LoadedLibrary load_library(const std::string& path) {
  LoadedLibrary loaded;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.problem = std::string("cannot load the library: ") + ::dlerror();
    return loaded;
  }
  const auto entry =
      reinterpret_cast<vmmcts_implementation_get_fn>(::dlsym(library, VMMCTS_ENTRY_POINT));
  if (entry == nullptr) {
    loaded.problem = path + " does not export " VMMCTS_ENTRY_POINT
                            ": export it as vmmcts/implementation.h says";
    return loaded;
  }
  const vmmcts_implementation* table = entry();
  if (table == nullptr) {
    loaded.problem = path + ": " VMMCTS_ENTRY_POINT " returned no table";
  } else if (table->abi_version != VMMCTS_ABI_VERSION ||
             table->table_size != sizeof(vmmcts_implementation)) {
    loaded.problem = path + " has version " + std::to_string(table->abi_version) + " (table of " +
                     std::to_string(table->table_size) + " bytes), this suite has version " +
                     std::to_string(VMMCTS_ABI_VERSION) + " (" +
                     std::to_string(sizeof(vmmcts_implementation)) +
                     " bytes): build it against this vmmcts/implementation.h";
  } else if (!has_every_function(*table)) {
    loaded.problem = path + ": the table has an empty member; fill in every one";
  } else {
    loaded.table = table;
  }
  return loaded;
}

}  // namespace cts
