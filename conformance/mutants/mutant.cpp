#include "mutant.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mutants {
namespace {

const Table* library = nullptr;  // as it came
Table wrapped;                  // the same, taking notes

std::vector<Mutant>& registry() {
  static std::vector<Mutant> mutants;
  return mutants;
}

// cuda.h's CUmemAccessDesc: location {type, id} and flags.
struct AccessDescription {
  int location_type, location_id, flags;
};

Notes<Options> resource_options;
Notes<Resource*> buffer_resources;

// The table of the library, taking notes.
Table taking_notes() {
  Table table = *library;
  table.resource_create = [](const Options* options, Resource** out, Error* error) {
    const Status status = library->resource_create(options, out, error);
    if (status != VMMCTS_OK) return status;
    Options noted = *options;
    noted.peers = nullptr;
    noted.peer_count = 0;
    resource_options.set(*out, noted);
    return status;
  };
  table.resource_release = [](Resource* resource) {
    resource_options.take(resource);
    library->resource_release(resource);
  };
  table.buffer_allocate = [](Resource* resource, std::uint64_t size, Buffer** out, Error* error) {
    const Status status = library->buffer_allocate(resource, size, out, error);
    if (status == VMMCTS_OK) buffer_resources.set(*out, resource);
    return status;
  };
  table.buffer_import = [](Resource* resource, Descriptor* descriptor, Buffer** out,
                           Error* error) {
    const Status status = library->buffer_import(resource, descriptor, out, error);
    if (status == VMMCTS_OK) buffer_resources.set(*out, resource);
    return status;
  };
  table.buffer_modify = [](Resource* resource, Buffer* buffer, std::uint64_t size,
                           const Options* config, Buffer** out, Error* error) {
    const Status status = library->buffer_modify(resource, buffer, size, config, out, error);
    if (status == VMMCTS_OK) buffer_resources.set(*out, resource);
    return status;
  };
  table.buffer_release = [](Buffer* buffer) {
    buffer_resources.take(buffer);
    library->buffer_release(buffer);
  };
  return table;
}

// The table of the mutant, or null with one line that says what is missing.
const Table* make_table() {
  const char* name = std::getenv("VMMCTS_MUTANT");
  const char* path = std::getenv("VMMCTS_MUTANT_BASE");
  const auto mutant = std::find_if(registry().begin(), registry().end(), [&](const Mutant& m) {
    return name != nullptr && std::strcmp(m.name, name) == 0;
  });
  if (mutant == registry().end()) {
    std::string known;
    for (const Mutant& each : registry()) known += std::string(" ") + each.name;
    std::fprintf(stderr, "VMMCTS_MUTANT is %s; known:%s\n", name ? name : "not set",
                 known.c_str());
    return nullptr;
  }
  void* opened = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const auto entry = opened == nullptr ? nullptr
                                       : reinterpret_cast<vmmcts_implementation_get_fn>(
                                             ::dlsym(opened, VMMCTS_ENTRY_POINT));
  library = entry == nullptr ? nullptr : entry();
  if (library == nullptr || library->abi_version != VMMCTS_ABI_VERSION ||
      library->table_size != sizeof(Table)) {
    std::fprintf(stderr, "VMMCTS_MUTANT_BASE is %s: not an implementation to wrap\n",
                 path ? path : "not set");
    return nullptr;
  }
  wrapped = taking_notes();
  static Table table = wrapped;
  table.name = mutant->name;
  mutant->install(table);
  return &table;
}

}  // namespace

const Table& base() { return wrapped; }

int add_mutant(const Mutant& mutant) {
  registry().push_back(mutant);
  return static_cast<int>(registry().size());
}

Status fail(Error* error, Status status, const std::string& message, int cuda_result,
            int system_errno) {
  error->cuda_result = cuda_result;
  error->system_errno = system_errno;
  std::snprintf(error->message, sizeof(error->message), "%s", message.c_str());
  return status;
}

BufferInfo info_of(Buffer* buffer) {
  BufferInfo info{};
  Error ignored{};
  base().buffer_info(buffer, &info, &ignored);
  return info;
}

DescriptorInfo info_of(Descriptor* descriptor) {
  DescriptorInfo info{};
  Error ignored{};
  base().descriptor_info(descriptor, &info, &ignored);
  return info;
}

std::vector<std::uint64_t> sizes_of(Descriptor* descriptor) {
  std::vector<std::uint64_t> sizes(info_of(descriptor).count);
  Error ignored{};
  if (base().descriptor_sizes(descriptor, sizes.data(), sizes.size(), &ignored)) sizes.clear();
  return sizes;
}

std::vector<int> fds_of(Descriptor* descriptor) {
  std::vector<int> fds(info_of(descriptor).count);
  Error ignored{};
  if (base().descriptor_fds(descriptor, fds.data(), fds.size(), &ignored)) fds.clear();
  return fds;
}

std::optional<Options> options_of(const Resource* resource) {
  return resource_options.get(resource);
}

Resource* resource_of(const Buffer* buffer) {
  return buffer_resources.get(buffer).value_or(nullptr);
}

void copy_bytes(Buffer* from, Buffer* to, std::uint64_t size) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  std::vector<std::uint8_t> bytes;
  Error ignored{};
  for (std::uint64_t at = 0; at < size; at += bytes.size()) {
    bytes.resize(std::min(kPiece, size - at));
    if (base().buffer_read(from, at, bytes.data(), bytes.size(), &ignored)) return;
    if (base().buffer_write(to, at, bytes.data(), bytes.size(), &ignored)) return;
  }
}

void scrub(Buffer* buffer, std::uint64_t offset, std::uint64_t size) {
  const std::vector<std::uint8_t> zeros(size);
  Error ignored{};
  base().buffer_write(buffer, offset, zeros.data(), size, &ignored);
}

Buffer* own_copy(Resource* resource, Buffer* of) {
  Buffer* copy = nullptr;
  Error ignored{};
  const std::uint64_t size = info_of(of).size;
  if (base().buffer_allocate(resource, size, &copy, &ignored)) return nullptr;
  copy_bytes(of, copy, size);
  return copy;
}

Status export_own_copy(Resource* resource, Buffer* buffer, Descriptor** out, Error* error) {
  Buffer* copy = own_copy(resource, buffer);
  if (copy == nullptr) return fail(error, VMMCTS_RUNTIME_ERROR, "no memory for a copy");
  const Status status = base().buffer_export(copy, out, error);
  base().buffer_release(copy);
  return status;
}

Status rebuild(const std::vector<int>& fds, const std::vector<std::uint64_t>& sizes,
               std::uint64_t size, Descriptor** out, Error* error) {
  std::vector<FdOrHandle> elements;
  for (const int fd : fds) elements.push_back({fd, nullptr});
  const std::vector<std::int64_t> signed_sizes(sizes.begin(), sizes.end());
  const auto signed_size = static_cast<std::int64_t>(size);
  return base().descriptor_from_fds(elements.data(), elements.size(), signed_sizes.data(),
                                    signed_sizes.size(), VMMCTS_HANDLE_POSIX_FD, &signed_size, out,
                                    error);
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) {
    if (fd >= 0) ::close(fd);
  }
}

void* driver_symbol(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : ::dlsym(library, name);
}

std::uint64_t retain_allocation(std::uint64_t pointer) {
  unsigned long long allocation = 0;
  const int result = driver_call<int (*)(unsigned long long*, void*)>(
      "cuMemRetainAllocationHandle", &allocation, reinterpret_cast<void*>(pointer));
  return result == 0 ? allocation : 0;
}

void release_allocation(std::uint64_t allocation) {
  driver_call<int (*)(unsigned long long)>("cuMemRelease",
                                           static_cast<unsigned long long>(allocation));
}

void set_access(std::uint64_t pointer, std::uint64_t size, int access) {
  const AccessDescription description{VMMCTS_LOCATION_DEVICE, 0, access};
  driver_call<int (*)(unsigned long long, std::size_t, const AccessDescription*, std::size_t)>(
      "cuMemSetAccess", static_cast<unsigned long long>(pointer), static_cast<std::size_t>(size),
      &description, std::size_t{1});
}

Path path_between(Buffer* input, Buffer* result) {
  const BufferInfo before = info_of(input);
  const BufferInfo after = info_of(result);
  if (before.pointer != after.pointer) return Path::moved;
  return after.size == before.size ? Path::alias : Path::in_place;
}

}  // namespace mutants

extern "C" __attribute__((visibility("default"))) const vmmcts_implementation*
vmmcts_implementation_get() {
  static const vmmcts_implementation* const table = mutants::make_table();
  return table;
}
