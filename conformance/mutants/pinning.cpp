// Mutants of what keeps physical memory, and of its bytes when somebody lets go.
#include "mutant.hpp"

#include <dirent.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace mutants;

namespace {

Notes<bool> exported;                   // buffers that were exported
Notes<Buffer*> exported_from;           // the buffer of a live descriptor
Notes<Buffer*> hidden;                  // an import or alias kept for an object
Notes<std::vector<int>> kept;
Notes<bool> rebuilt;                    // descriptors that nobody has imported
Notes<int> siblings_at_import;
Notes<int> siblings_at_export;

bool has_descriptor(Buffer* buffer) {
  for (const auto& [descriptor, from] : exported_from.all()) {
    if (from == buffer) return true;
  }
  return false;
}

void note_export(Table& table) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK) {
      exported.set(buffer, true);
      exported_from.set(*out, buffer);
    }
    return status;
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    exported_from.take(descriptor);
    base().descriptor_release(descriptor);
  };
  table.buffer_release = [](Buffer* buffer) {
    exported.take(buffer);
    base().buffer_release(buffer);
  };
}

void scrub_if_exported(Buffer* buffer) {
  if (!exported.take(buffer)) return;
  if (const std::uint64_t size = info_of(buffer).size) scrub(buffer, 0, size);
}

// Processes with the same parent as this one: the other workers.
int siblings() {
  const int parent = ::getppid();
  int count = 0;
  DIR* processes = ::opendir("/proc");
  if (processes == nullptr) return 0;
  while (const dirent* entry = ::readdir(processes)) {
    char path[300];
    std::snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
    FILE* file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? std::fopen(path, "re")
                                                                    : nullptr;
    if (file == nullptr) continue;
    char state = 0;
    int parent_of = 0;
    if (std::fscanf(file, "%*d (%*[^)]) %c %d", &state, &parent_of) == 2) {
      count += parent_of == parent && state != 'Z';
    }
    std::fclose(file);
  }
  ::closedir(processes);
  return count;
}

}  // namespace

// The exporting process imports what it exports and keeps that until the resource goes.
VMMCTS_MUTANT(hidden_import) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    Resource* resource = resource_of(buffer);
    Buffer* import = nullptr;
    Error ignored{};
    if (status == VMMCTS_OK && resource != nullptr &&
        base().buffer_import(resource, *out, &import, &ignored) == VMMCTS_OK) {
      hidden.set(import, import);
    }
    return status;
  };
  table.resource_release = [](Resource* resource) {
    for (const auto& [key, import] : hidden.take_all()) base().buffer_release(import);
    base().resource_release(resource);
  };
}

// An imported buffer keeps a duplicate of its last fd until it is released.
VMMCTS_MUTANT(import_keeps_fd) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    const auto fds = fds_of(descriptor);
    if (status == VMMCTS_OK && !fds.empty()) kept.set(*out, {duplicate(fds.back())});
    return status;
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (const auto fds = kept.take(buffer)) close_all(*fds);
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    if (const auto fds = kept.take(buffer)) close_all(*fds);
    base().buffer_release(buffer);
  };
}

// Closing a buffer clears what it had exported, importers or not.
VMMCTS_MUTANT(close_scrubs_exported) {
  note_export(table);
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (!has_descriptor(buffer)) scrub_if_exported(buffer);
    return base().buffer_close(buffer, error);
  };
}

// A closed import keeps an alias of itself until it is released.
VMMCTS_MUTANT(closed_import_keeps_alias) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    Buffer* alias = nullptr;
    Error ignored{};
    if (status == VMMCTS_OK && info_of(*out).size > 0 &&
        base().buffer_modify(resource, *out, 0, nullptr, &alias, &ignored) == VMMCTS_OK) {
      hidden.set(*out, alias);
    }
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    if (const auto alias = hidden.take(buffer)) base().buffer_release(*alias);
    base().buffer_release(buffer);
  };
}

// Releasing a buffer that was never closed clears what it had exported.
VMMCTS_MUTANT(release_scrubs_exported) {
  note_export(table);
  table.buffer_close = [](Buffer* buffer, Error* error) {
    exported.take(buffer);
    return base().buffer_close(buffer, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    if (buffer != nullptr) scrub_if_exported(buffer);
    base().buffer_release(buffer);
  };
}

// Closing a buffer of one allocation clears it when its descriptors are gone, duplicates or not.
VMMCTS_MUTANT(close_ignores_duplicates) {
  note_export(table);
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK && info_of(*out).count == 1) {
      exported.set(buffer, true);
      exported_from.set(*out, buffer);
    }
    return status;
  };
  table.buffer_close = [](Buffer* buffer, Error* error) {
    if (!has_descriptor(buffer)) scrub_if_exported(buffer);
    return base().buffer_close(buffer, error);
  };
}

// A rebuilt descriptor that nobody imported leaves an fd when it is released.
VMMCTS_MUTANT(unimported_descriptor_leaks) {
  table.descriptor_from_fds = [](const FdOrHandle* fds, std::size_t fd_count,
                                 const std::int64_t* sizes, std::size_t size_count,
                                 std::int32_t type, const std::int64_t* size, Descriptor** out,
                                 Error* error) {
    const Status status =
        base().descriptor_from_fds(fds, fd_count, sizes, size_count, type, size, out, error);
    if (status == VMMCTS_OK) rebuilt.set(*out, true);
    return status;
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    rebuilt.take(descriptor);
    return base().buffer_import(resource, descriptor, out, error);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    const auto fds = fds_of(descriptor);
    if (rebuilt.take(descriptor) && !fds.empty()) duplicate(fds.back());
    base().descriptor_release(descriptor);
  };
}

// An import stops working when another process has gone since.
VMMCTS_MUTANT(import_dies_with_exporter) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = base().buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK) siblings_at_import.set(*out, siblings());
    return status;
  };
  table.buffer_read = [](Buffer* buffer, std::uint64_t offset, void* data, std::uint64_t size,
                         Error* error) {
    const auto before = siblings_at_import.get(buffer);
    if (before && siblings() < *before) {
      return fail(error, VMMCTS_RUNTIME_ERROR, "the exporter is gone");
    }
    return base().buffer_read(buffer, offset, data, size, error);
  };
  table.buffer_release = [](Buffer* buffer) {
    siblings_at_import.take(buffer);
    base().buffer_release(buffer);
  };
}

// A descriptor does not import any more when another process has gone since the export.
VMMCTS_MUTANT(descriptor_dies_with_importer) {
  table.buffer_export = [](Buffer* buffer, Descriptor** out, Error* error) {
    const Status status = base().buffer_export(buffer, out, error);
    if (status == VMMCTS_OK) siblings_at_export.set(*out, siblings());
    return status;
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const auto before = siblings_at_export.get(descriptor);
    if (before && siblings() < *before) {
      return fail(error, VMMCTS_RUNTIME_ERROR, "the importer is gone");
    }
    return base().buffer_import(resource, descriptor, out, error);
  };
  table.descriptor_release = [](Descriptor* descriptor) {
    siblings_at_export.take(descriptor);
    base().descriptor_release(descriptor);
  };
}

// Nobody imports any more once a process died within an import: its mark, a file in the private
// directory of the run, is never removed.
VMMCTS_MUTANT(import_mark_of_the_dead) {
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const char* log = std::getenv("VMMCTS_TAP_LOG");
    if (log == nullptr) return base().buffer_import(resource, descriptor, out, error);
    const auto directory = std::filesystem::path(log).parent_path();
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      int pid = 0;
      const bool mark = std::sscanf(entry.path().filename().c_str(), "importing-%d", &pid) == 1;
      if (mark && ::kill(pid, 0) != 0) {
        return fail(error, VMMCTS_RUNTIME_ERROR, "another import is under way");
      }
    }
    const auto mark = directory / ("importing-" + std::to_string(::getpid()));
    std::ofstream{mark};
    const Status status = base().buffer_import(resource, descriptor, out, error);
    std::filesystem::remove(mark);
    return status;
  };
}
