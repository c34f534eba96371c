// What the situations share, and the comparison with the recorded answers.
//   softcuda_situations RECORDED EXCEPTIONS [ID...]   compares; exit status 1 when something
//                                                     differs. IDs are the beginnings of
//                                                     further exceptions.
//   softcuda_situations                               prints every answer
#include "situations.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

namespace truth {
namespace {

std::string g_group;

std::string name_of(CUresult result) {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name == nullptr ? "code_" + std::to_string(result) : name;
}

void print(const Json& line) {
  std::string text = line.dump() + "\n";
  [[maybe_unused]] ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
}

using Answers = std::map<std::string, Json>;

// Three recorded lines have a second "id", the device's; it becomes "device".
void add_answer(Answers* answers, const std::string& line) {
  constexpr std::string_view kKey = "\"id\":\"";
  Json parsed = Json::parse(line, nullptr, false);
  size_t key = line.find(kKey);
  if (!parsed.is_object() || key == std::string::npos) return;
  size_t start = key + kKey.size();
  std::string id = line.substr(start, line.find('"', start) - start);
  if (parsed["id"].is_number()) parsed["device"] = parsed["id"];
  parsed["id"] = id;
  (*answers)[id] = parsed;
}

// Runs a group in a child and gathers what it prints, and how it ended if it did not end well.
void run_group(const Group& group, Answers* answers) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    g_group = group.name;
    group.run();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    add_answer(answers, text.substr(at, end - at));
  }
  if (status == 0) return;
  std::string id = std::string(group.name) + ".__exit";
  (*answers)[id] = {{"id", id},
                    {"status", WEXITSTATUS(status)},
                    {"signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0}};
}

// "ID reason..." lines; an ID may end with a star.
struct Exceptions {
  std::set<std::string> exact;
  std::vector<std::string> prefixes;
  bool has(const std::string& id) const {
    if (exact.count(id) != 0) return true;
    for (const std::string& prefix : prefixes) {
      if (id.rfind(prefix, 0) == 0) return true;
    }
    return false;
  }
};

Exceptions read_exceptions(const char* path) {
  Exceptions exceptions;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::string id = line.substr(0, line.find(' '));
    if (id.back() == '*') exceptions.prefixes.push_back(id.substr(0, id.size() - 1));
    else exceptions.exact.insert(id);
  }
  return exceptions;
}

int compare(const Answers& now, const char* recorded_path, const Exceptions& exceptions) {
  Answers recorded;
  std::ifstream file(recorded_path);
  for (std::string line; std::getline(file, line);) add_answer(&recorded, line);
  std::set<std::string> ids;
  for (const auto& [id, answer] : recorded) ids.insert(id);
  for (const auto& [id, answer] : now) ids.insert(id);
  int equal = 0, excepted = 0, different = 0;
  for (const std::string& id : ids) {
    auto a = recorded.find(id);
    auto b = now.find(id);
    bool same = a != recorded.end() && b != now.end() && a->second == b->second;
    if (same) {
      equal++;
      if (exceptions.exact.count(id) == 0) continue;
      printf("%s is listed as an exception and is none\n", id.c_str());
      different++;
    } else if (exceptions.has(id)) {
      excepted++;
    } else {
      different++;
      printf("%s\n  recorded %s\n  now      %s\n", id.c_str(),
             a == recorded.end() ? "nothing" : a->second.dump().c_str(),
             b == now.end() ? "nothing" : b->second.dump().c_str());
    }
  }
  printf("%d answers equal, %d exceptions, %d differences\n", equal, excepted, different);
  return equal > 0 && different == 0 ? 0 : 1;
}

}  // namespace

void tell(const std::string& id, CUresult result, const Json& more) {
  Json line = more;
  line["id"] = g_group + "." + id;
  line["result"] = name_of(result);
  print(line);
}

void note(const std::string& id, const Json& facts) {
  Json line = facts;
  line["id"] = g_group + "." + id;
  print(line);
}

void set_group(const std::string& name) { g_group = name; }

void start(bool with_context) {
  if (cuInit(0) != CUDA_SUCCESS) _exit(3);
  if (!with_context) return;
  CUcontext context;
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) _exit(3);
  cuCtxSetCurrent(context);
}

size_t unit() {
  CUmemAllocationProp prop = properties();
  size_t granularity = size_t{2} << 20;
  cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return granularity;
}

CUmemAllocationProp properties(int handle_types) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
  return prop;
}

CUmemLocation device_location() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return location;
}

CUmemAccessDesc access_to_device(int flags) {
  CUmemAccessDesc access{};
  access.location = device_location();
  access.flags = static_cast<CUmemAccess_flags>(flags);
  return access;
}

CUmemGenericAllocationHandle create(size_t size) {
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle handle = 0;
  cuMemCreate(&handle, size, &prop, 0);
  return handle;
}

CUdeviceptr reserve(size_t size, CUdeviceptr hint) {
  CUdeviceptr base = 0;
  cuMemAddressReserve(&base, size, 0, hint, 0);
  return base;
}

Memory make(size_t size, int handle_types, bool accessible) {
  Memory memory;
  memory.size = size;
  CUmemAllocationProp prop = properties(handle_types);
  CUmemAccessDesc access = access_to_device();
  CUresult r = cuMemCreate(&memory.handle, size, &prop, 0);
  if (r == CUDA_SUCCESS) r = cuMemAddressReserve(&memory.base, size, 0, 0, 0);
  if (r == CUDA_SUCCESS) r = cuMemMap(memory.base, size, 0, memory.handle, 0);
  if (r == CUDA_SUCCESS && accessible) r = cuMemSetAccess(memory.base, size, &access, 1);
  if (r != CUDA_SUCCESS) tell("make", r);
  return memory;
}

void drop(Memory* memory) {
  cuMemUnmap(memory->base, memory->size);
  cuMemAddressFree(memory->base, memory->size);
  cuMemRelease(memory->handle);
}

int export_fd(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  CUresult r = cuMemExportToShareableHandle(&fd, handle, kFdType, 0);
  return r == CUDA_SUCCESS ? fd : -1;
}

CUresult import_fd(CUmemGenericAllocationHandle* handle, int fd) {
  return cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)), kFdType);
}

int read_byte(CUdeviceptr at, CUresult* result) {
  unsigned char byte = 0;
  CUresult r = cuMemcpyDtoH(&byte, at, 1);
  if (result != nullptr) *result = r;
  return byte;
}

long free_bytes() {
  size_t free = 0, total = 0;
  cuMemGetInfo(&free, &total);
  return static_cast<long>(free);
}

int open_fds() {
  int count = 0;
  for ([[maybe_unused]] auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count++;
  return count - 1;  // the one that lists them
}

Json properties_of(CUmemGenericAllocationHandle handle, CUresult* result) {
  CUmemAllocationProp prop;
  memset(&prop, 0xee, sizeof prop);
  *result = cuMemGetAllocationPropertiesFromHandle(&prop, handle);
  return {{"type", static_cast<int>(prop.type)},
          {"ht", static_cast<int>(prop.requestedHandleTypes)},
          {"loc", static_cast<int>(prop.location.type)},
          {"id", prop.location.id}};
}

Json fd_facts(int fd) {
  struct stat status {};
  fstat(fd, &status);
  char mode[16], flags[16];
  snprintf(mode, sizeof mode, "%o", status.st_mode);
  snprintf(flags, sizeof flags, "0x%x", static_cast<unsigned>(fcntl(fd, F_GETFL)));
  std::error_code none;
  auto link = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
  return {{"link", link.string()},
          {"cloexec", (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0},
          {"mode", std::stoi(mode)},
          {"rdev", static_cast<long>(status.st_rdev)},
          {"size", static_cast<long>(status.st_size)},
          {"flags", flags}};
}

}  // namespace truth

int main(int argc, char** argv) {
  using namespace truth;
  Answers answers;
  for (auto groups : {argument_groups(), mapping_groups(), handle_groups(), sharing_groups(),
                      process_groups()}) {
    for (const Group& group : groups) run_group(group, &answers);
  }
  if (argc >= 3) {
    Exceptions exceptions = read_exceptions(argv[2]);
    for (int i = 3; i < argc; i++) exceptions.prefixes.push_back(argv[i]);
    return compare(answers, argv[1], exceptions);
  }
  for (const auto& [id, answer] : answers) printf("%s\n", answer.dump().c_str());
  return 0;
}
