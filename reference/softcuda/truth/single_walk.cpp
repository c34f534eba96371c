// Random sequences of VMM calls in one process, one token per call: its letter and CUresult.
//   C create, L release, R reserve, F address free, M map, U unmap, A set access, Q get access
//   (:flags), W memset, V read a byte, X export, I import (:new or :same value), K close an fd,
//   N units in use, T retain (:which known handle), B address range (:base:size), E units in use at
//   the end, Z after cleaning up.
// Only uses that the API defines: no garbage handles, none whose references and mappings are gone.
#include <cuda.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <vector>

#include "token_walk.hpp"

namespace {

size_t g_unit = 0;
size_t g_total = 0;

struct KnownHandle {
  CUmemGenericAllocationHandle value = 0;
  int references = 0;
  int mappings = 0;
  size_t size = 0;
  bool used = false;
};

struct KnownMapping {
  size_t offset, size;
  int handle;
};

struct KnownRange {
  CUdeviceptr base = 0;
  size_t size = 0;
  std::vector<KnownMapping> mappings;
};

size_t free_bytes() {
  size_t free = 0;
  cuMemGetInfo(&free, &g_total);
  return free;
}

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed, 88172645463325252ull), seed_(seed) {
    fds_.fill(-1);
    free_at_start_ = free_bytes();
  }

  std::string run(int steps) {
    std::string line = std::to_string(seed_) + " ";
    for (int i = 0; i < steps; i++) {
      token_.clear();
      step(random_.below(18));
      if (!token_.empty()) line += token_ + " ";
    }
    line += "E" + std::to_string(units_in_use());
    clean_up();
    return line + " Z" + std::to_string(units_in_use());
  }

 private:
  void step(uint32_t operation) {
    switch (operation) {
      case 0: case 1: return create();
      case 2: return release();
      case 3: return reserve();
      case 4: return free_range();
      case 5: case 6: case 7: return map();
      case 8: return unmap();
      case 9: case 10: return set_access();
      case 11: return get_access();
      case 12: return fill();
      case 13: return read();
      case 14: return export_handle();
      case 15: return import_handle();
      case 16: return close_or_count();
      default: return retain_or_range();
    }
  }

  void say(char letter, CUresult r, const std::string& more = "") {
    token_ = letter + std::to_string(static_cast<int>(r)) + more;
  }
  int any_handle() {
    return random_.pick(8, [&](int i) { return handles_[i].used; });
  }
  int free_handle() {
    return truth::first_of(8, [&](int i) { return !handles_[i].used; });
  }
  int any_range() {
    return random_.pick(4, [&](int i) { return ranges_[i].base != 0; });
  }
  void forget_if_gone(int i) {
    KnownHandle& h = handles_[i];
    if (h.used && h.references == 0 && h.mappings == 0) h = KnownHandle{};
  }
  long units_in_use() {
    return static_cast<long>(static_cast<ssize_t>(free_at_start_ - free_bytes()) /
                             static_cast<ssize_t>(g_unit));
  }

  // A random part of a range, two times of three one whole mapping of it. Draws after `u` and `v`.
  void choose_part(const KnownRange& range, uint32_t u, uint32_t v, size_t* first, size_t* count) {
    size_t units = range.size / g_unit;
    *first = u % units;
    *count = 1 + v % (units - *first);
    if (range.mappings.empty() || random_.below(3) == 0) return;
    const KnownMapping& m =
        range.mappings[random_.below(static_cast<uint32_t>(range.mappings.size()))];
    *first = m.offset / g_unit;
    *count = m.size / g_unit;
  }

  void create() {
    int slot = free_handle();
    uint32_t kind = random_.below(12);
    size_t size = kind == 0   ? 0
                  : kind == 1 ? g_unit / 2
                  : kind == 2 ? g_unit + 4096
                              : (1 + random_.below(3)) * g_unit;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = random_.below(4) != 0 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                      : CU_MEM_HANDLE_TYPE_NONE;
    if (slot < 0) return;
    CUmemGenericAllocationHandle value;
    CUresult r = cuMemCreate(&value, size, &prop, 0);
    if (r == CUDA_SUCCESS) handles_[slot] = {value, 1, 0, size, true};
    say('C', r);
  }

  void release() {
    int i = any_handle();
    if (i < 0) return;
    CUresult r = cuMemRelease(handles_[i].value);
    say('L', r);
    if (r != CUDA_SUCCESS) return;
    handles_[i].references--;
    forget_if_gone(i);
  }

  void reserve() {
    int slot = truth::first_of(4, [&](int i) { return ranges_[i].base == 0; });
    uint32_t kind = random_.below(10);
    size_t size = kind == 0 ? 0 : kind == 1 ? g_unit / 2 : (1 + random_.below(6)) * g_unit;
    if (slot < 0) return;
    CUdeviceptr base = 0;
    CUresult r = cuMemAddressReserve(&base, size, 0, 0, 0);
    say('R', r);
    if (r == CUDA_SUCCESS) ranges_[slot] = {base, size, {}};
  }

  void free_range() {
    int i = any_range();
    if (i < 0) return;
    KnownRange& range = ranges_[i];
    size_t size = random_.below(4) != 0 ? range.size : (1 + random_.below(6)) * g_unit;
    size_t offset = random_.below(8) != 0 ? 0 : (range.size > g_unit ? g_unit : 0);
    CUresult r = cuMemAddressFree(range.base + offset, size);
    say('F', r);
    if (r == CUDA_SUCCESS) range = KnownRange{};
  }

  void map() {
    int i = any_range();
    int k = any_handle();
    uint32_t place = random_.below(1000);
    uint32_t size_kind = random_.below(10);
    uint32_t offset_kind = random_.below(12);
    if (i < 0 || k < 0) return;
    KnownRange& range = ranges_[i];
    size_t size = handles_[k].size;
    if (size_kind == 0) size += g_unit;
    else if (size_kind == 1 && size > g_unit) size -= g_unit;
    if (size > range.size) return;
    size_t at = place % ((range.size - size) / g_unit + 1) * g_unit;
    CUresult r =
        cuMemMap(range.base + at, size, offset_kind == 0 ? g_unit : 0, handles_[k].value, 0);
    say('M', r);
    if (r != CUDA_SUCCESS) return;
    range.mappings.push_back({at, size, k});
    handles_[k].mappings++;
  }

  void unmap() {
    int i = any_range();
    uint32_t u = random_.next();
    uint32_t v = random_.next();
    if (i < 0) return;
    KnownRange& range = ranges_[i];
    size_t first, count;
    choose_part(range, u, v, &first, &count);
    CUresult r = cuMemUnmap(range.base + first * g_unit, count * g_unit);
    say('U', r);
    if (r != CUDA_SUCCESS) return;
    std::vector<KnownMapping> kept;
    for (const KnownMapping& m : range.mappings) {
      bool inside =
          m.offset >= first * g_unit && m.offset + m.size <= (first + count) * g_unit;
      if (!inside) {
        kept.push_back(m);
        continue;
      }
      handles_[m.handle].mappings--;
      forget_if_gone(m.handle);
    }
    range.mappings = kept;
  }

  void set_access() {
    int i = any_range();
    uint32_t u = random_.next();
    uint32_t v = random_.next();
    uint32_t flags = random_.below(3);
    if (i < 0) return;
    size_t first, count;
    choose_part(ranges_[i], u, v, &first, &count);
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = flags == 2 ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (random_.below(12) == 0) access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    say('A', cuMemSetAccess(ranges_[i].base + first * g_unit, count * g_unit, &access, 1));
  }

  void get_access() {
    int i = any_range();
    uint32_t u = random_.next();
    if (i < 0) return;
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    unsigned long long flags = 0;
    CUdeviceptr at = ranges_[i].base + u % (ranges_[i].size / g_unit) * g_unit + 17;
    CUresult r = cuMemGetAccess(&flags, &location, at);
    say('Q', r, ":" + std::to_string(r == CUDA_SUCCESS ? flags : 0));
  }

  void fill() {
    int i = any_range();
    uint32_t u = random_.next();
    uint32_t v = random_.next();
    uint32_t value = 1 + random_.below(250);
    if (i < 0) return;
    size_t first, count;
    choose_part(ranges_[i], u, v, &first, &count);
    say('W', cuMemsetD8(ranges_[i].base + first * g_unit, static_cast<unsigned char>(value),
                        count * g_unit));
  }

  void read() {
    int i = any_range();
    uint32_t u = random_.next();
    if (i < 0) return;
    unsigned char byte = 0;
    CUdeviceptr at = ranges_[i].base + u % (ranges_[i].size / g_unit) * g_unit + 5;
    say('V', cuMemcpyDtoH(&byte, at, 1));
  }

  void export_handle() {
    int i = any_handle();
    if (i < 0) return;
    int slot = truth::first_of(6, [&](int k) { return fds_[k] < 0; });
    if (slot < 0) return;
    int fd = -1;
    CUresult r = cuMemExportToShareableHandle(&fd, handles_[i].value,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    say('X', r);
    if (r == CUDA_SUCCESS) fds_[slot] = fd;
  }

  void import_handle() {
    int k = static_cast<int>(random_.below(6));
    int slot = free_handle();
    if (slot < 0 || fds_[k] < 0) return;
    CUmemGenericAllocationHandle value = 0;
    CUresult r = cuMemImportFromShareableHandle(
        &value, reinterpret_cast<void*>(static_cast<uintptr_t>(fds_[k])),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    say('I', r);
    if (r != CUDA_SUCCESS) return;
    bool same = known_handle(value) >= 0;
    // The walk does not know the size behind an fd and guesses it: wrong sizes are among the uses.
    handles_[slot] = {value, 1, 0, (1 + random_.below(3)) * g_unit, true};
    say('I', r, same ? ":same" : ":new");
  }

  void close_or_count() {
    int k = static_cast<int>(random_.below(6));
    if (fds_[k] < 0) return;
    if (random_.below(2) != 0) {
      close(fds_[k]);
      fds_[k] = -1;
      token_ = "K";
    } else {
      token_ = "N" + std::to_string(units_in_use());
    }
  }

  void retain_or_range() {
    int i = any_range();
    uint32_t u = random_.next();
    if (i < 0) return;
    CUdeviceptr at = ranges_[i].base + u % (ranges_[i].size / g_unit) * g_unit + 3;
    if (random_.below(2) != 0) {
      CUmemGenericAllocationHandle value = 0;
      CUresult r = cuMemRetainAllocationHandle(&value, reinterpret_cast<void*>(at));
      int known = r == CUDA_SUCCESS ? last_known_handle(value) : -1;
      if (known >= 0) handles_[known].references++;
      say('T', r, ":" + std::to_string(known));
      return;
    }
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult r = cuMemGetAddressRange(&base, &size, at);
    bool ok = r == CUDA_SUCCESS;
    long first = ok ? static_cast<long>((base - ranges_[i].base) / g_unit) : -1;
    say('B', r, ":" + std::to_string(first) + ":" + std::to_string(ok ? size / g_unit : 0));
  }

  int known_handle(CUmemGenericAllocationHandle value) {
    return truth::first_of(8, [&](int i) { return handles_[i].used && handles_[i].value == value; });
  }
  int last_known_handle(CUmemGenericAllocationHandle value) {
    int found = -1;
    for (int i = 0; i < 8; i++) {
      if (handles_[i].used && handles_[i].value == value) found = i;
    }
    return found;
  }

  void clean_up() {
    for (KnownRange& range : ranges_) {
      if (range.base == 0) continue;
      for (const KnownMapping& m : range.mappings) {
        cuMemUnmap(range.base + m.offset, m.size);
        handles_[m.handle].mappings--;
      }
      cuMemAddressFree(range.base, range.size);
    }
    for (KnownHandle& h : handles_) {
      for (; h.used && h.references > 0; h.references--) cuMemRelease(h.value);
    }
    for (int fd : fds_) {
      if (fd >= 0) close(fd);
    }
  }

  truth::Generator random_;
  uint64_t seed_;
  size_t free_at_start_;
  std::array<KnownHandle, 8> handles_;
  std::array<KnownRange, 4> ranges_;
  std::array<int, 6> fds_;
  std::string token_;
};

}  // namespace

int main(int argc, char** argv) {
  truth::WalkOptions options;
  if (!truth::parse_walk_options(argc, argv, &options)) return 2;
  CUcontext context;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) {
    fprintf(stderr, "no device\n");
    return 2;
  }
  cuCtxSetCurrent(context);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemGetAllocationGranularity(&g_unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return truth::run_walks(options, [&](uint64_t seed) { return Walk(seed).run(options.steps); });
}
