// What a table mutant is written with: a wrong implementation made of a right one.
//
//   // The sizes come in reverse order.
//   VMMCTS_MUTANT(reversed_sizes) {
//     table.descriptor_sizes = [](Descriptor* d, std::uint64_t* out, std::size_t capacity,
//                                 Error* error) { ... base().descriptor_sizes(...) ... };
//   }
//
// `table` starts as a copy of the library under VMMCTS_MUTANT_BASE; the mutant replaces what it
// breaks and reaches the rest through base(). The functions of a table carry no state, so a mutant
// keeps its own in Notes, static in the file. mutants.toml says which clause each one breaks.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <vmmcts/implementation.h>

namespace mutants {

using Table = vmmcts_implementation;
using Status = vmmcts_status;
using Error = vmmcts_error;
using Options = vmmcts_options;
using Resource = vmmcts_resource;
using Buffer = vmmcts_buffer;
using Descriptor = vmmcts_descriptor;
using Handle = vmmcts_handle;
using BufferInfo = vmmcts_buffer_info;
using DescriptorInfo = vmmcts_descriptor_info;
using FdOrHandle = vmmcts_fd_or_handle;

// The table that is wrapped. Set before a mutant is installed.
const Table& base();

// Fills in `error` and returns `status`.
Status fail(Error* error, Status status, const std::string& message, int cuda_result = 0,
            int system_errno = 0);

// What a mutant knows of an object, by its address. Safe from every thread.
template <class Value>
class Notes {
 public:
  void set(const void* object, Value value) {
    const std::lock_guard lock(mutex_);
    notes_.insert_or_assign(object, std::move(value));
  }
  std::optional<Value> get(const void* object) const {
    const std::lock_guard lock(mutex_);
    const auto found = notes_.find(object);
    return found == notes_.end() ? std::nullopt : std::optional<Value>(found->second);
  }
  // Forgets the object and returns what was known of it.
  std::optional<Value> take(const void* object) {
    const std::lock_guard lock(mutex_);
    const auto found = notes_.find(object);
    if (found == notes_.end()) return std::nullopt;
    std::optional<Value> value(std::move(found->second));
    notes_.erase(found);
    return value;
  }
  // Forgets everything and returns it.
  std::map<const void*, Value> take_all() {
    const std::lock_guard lock(mutex_);
    return std::exchange(notes_, {});
  }
  std::map<const void*, Value> all() const {
    const std::lock_guard lock(mutex_);
    return notes_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, Value> notes_;
};

// Of the base; zeros and empty where it answers with an error.
BufferInfo info_of(Buffer* buffer);
DescriptorInfo info_of(Descriptor* descriptor);
std::vector<std::uint64_t> sizes_of(Descriptor* descriptor);
std::vector<int> fds_of(Descriptor* descriptor);

// What base() was asked for: the options of a resource, without its peers, and the resource that a
// buffer is of.
std::optional<Options> options_of(const Resource* resource);
Resource* resource_of(const Buffer* buffer);

// Copies the first bytes of one buffer over those of another, through the host.
void copy_bytes(Buffer* from, Buffer* to, std::uint64_t size);
// Writes zeros over `size` bytes at `offset`.
void scrub(Buffer* buffer, std::uint64_t offset, std::uint64_t size);
// An own buffer with the same bytes, null when there is no memory.
Buffer* own_copy(Resource* resource, Buffer* of);
// The descriptor of an own copy of a buffer; the copy lives as long as the descriptor.
Status export_own_copy(Resource* resource, Buffer* buffer, Descriptor** out, Error* error);
// A descriptor rebuilt from descriptors' fds, which stay the caller's.
Status rebuild(const std::vector<int>& fds, const std::vector<std::uint64_t>& sizes,
               std::uint64_t size, Descriptor** out, Error* error);

// A close-on-exec duplicate, or a negative number.
inline int duplicate(int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 3); }
void close_all(const std::vector<int>& fds);

// The entry point of the driver that the base uses too; null when there is none.
void* driver_symbol(const char* name);
template <class Function, class... Arguments>
int driver_call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<Function>(driver_symbol(name));
  return function == nullptr ? 3 : function(arguments...);  // CUDA_ERROR_NOT_INITIALIZED
}
// Takes one more reference to the allocation behind a device pointer; 0 on failure.
std::uint64_t retain_allocation(std::uint64_t pointer);
void release_allocation(std::uint64_t allocation);
// Gives device 0 the access (VMMCTS_ACCESS_*) to a mapped range.
void set_access(std::uint64_t pointer, std::uint64_t size, int access);

// How a buffer came out of another one.
enum class Path { alias, in_place, moved };
Path path_between(Buffer* input, Buffer* result);

struct Mutant {
  const char* name;
  void (*install)(Table& table);
};
int add_mutant(const Mutant& mutant);

}  // namespace mutants

#define VMMCTS_MUTANT(name)                                                                  \
  static void install_##name(mutants::Table& table);                                         \
  [[maybe_unused]] static const int registered_##name =                                      \
      mutants::add_mutant({#name, install_##name});                                          \
  static void install_##name(mutants::Table& table)
