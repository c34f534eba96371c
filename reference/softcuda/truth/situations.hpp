// Situations that a driver is put into, by the ids under which a real driver's answers to them are
// recorded (README.md). A group runs in a process of its own.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace truth {

using Json = nlohmann::json;

inline constexpr auto kFdType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Prints one answer of the running group: {"id": "GROUP.id", "result": NAME, more...}.
void tell(const std::string& id, CUresult result, const Json& more = Json::object());
void note(const std::string& id, const Json& facts);

// Renames the running group, for the two sides of a situation with two processes.
void set_group(const std::string& name);

// cuInit, and a current context on device 0 unless told not to. Ends the process when it fails.
void start(bool with_context = true);

size_t unit();  // the granularity

// A mapped allocation.
struct Memory {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  size_t size = 0;
};
Memory make(size_t size, int handle_types = kFdType, bool accessible = true);
void drop(Memory* memory);  // unmaps, frees the address, releases

CUmemAllocationProp properties(int handle_types = kFdType);
CUmemAccessDesc access_to_device(int flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
CUmemLocation device_location();
CUmemGenericAllocationHandle create(size_t size);
CUdeviceptr reserve(size_t size, CUdeviceptr hint = 0);
int export_fd(CUmemGenericAllocationHandle handle);  // -1 when refused
CUresult import_fd(CUmemGenericAllocationHandle* handle, int fd);
int read_byte(CUdeviceptr at, CUresult* result = nullptr);
long free_bytes();
int open_fds();
Json properties_of(CUmemGenericAllocationHandle handle, CUresult* result);
Json fd_facts(int fd);

struct Group {
  const char* name;
  void (*run)();
};
std::vector<Group> argument_groups();
std::vector<Group> mapping_groups();
std::vector<Group> handle_groups();
std::vector<Group> sharing_groups();
std::vector<Group> process_groups();

}  // namespace truth
