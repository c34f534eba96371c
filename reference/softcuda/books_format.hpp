// The layout of the shared table `books` in a device directory. Every process maps it. Pages are
// allocated (fallocate) before they are used, so a full tmpfs is an error at create, not a SIGBUS.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "profile.hpp"

namespace softcuda {

// Bump it when the layout changes: a file of another version is refused, not reinterpreted.
inline constexpr uint64_t kBooksMagic = 0x0005'6164'7563'7366;
inline constexpr uint32_t kMaxProcesses = 1024;
inline constexpr uint32_t kMaxExtents = 1u << 18;
inline constexpr uint32_t kNone = UINT32_MAX;

// An export fd locks the byte of its extent in a lock file. A kernel lock list is walked linearly,
// so there are many: the first extents share a few that every process keeps open, which is all that
// a process with a low limit of fds needs; the others have files that are opened to be looked at.
inline constexpr uint32_t kNearShards = 8;
inline constexpr uint32_t kNearExtents = 256;
inline constexpr uint32_t kFarShards = 1024;

// Bytes of `books` that are locked, far behind its data: one for setting up, one per process.
inline constexpr int64_t kSetupLock = int64_t{1} << 40;
inline constexpr int64_t kProcessLocks = kSetupLock + 1;

enum class ExtentState : uint32_t { kFree = 0, kLive = 1, kFreeing = 2 };

// What an extent is, which decides who may import it and as what.
enum class ExtentKind : uint32_t { kAllocation = 1, kPool = 2, kPlain = 3 };

struct ExtentEntry {
  ExtentState state;
  ExtentKind kind;
  uint64_t generation;  // never used twice in a directory
  uint64_t size;
  uint64_t offset;  // in the data file; 0 bytes of backing for a pool's anchor
  int32_t location_type;
  int32_t location_id;
  uint32_t handle_types;
  uint32_t flags;      // gpuDirectRDMACapable | compressionType << 8
  uint32_t exported;   // an export was ever made: its fd may hold the extent alone
  uint32_t orphaned;   // is in the list of orphans
  uint32_t next;       // in the free list or the list of orphans
  uint32_t holder_count;
  uint64_t holders[kMaxProcesses / 64];  // a bit per process slot
};

struct BooksHeader {
  uint64_t magic;  // written last
  uint32_t devices;
  uint32_t page_entries;
  uint64_t total_bytes;
  char boot_id[40];
  pthread_mutex_t mutex;  // robust: a killed owner wedges nobody
  uint64_t next_generation;
  uint64_t next_offset;  // offsets are handed out once; reset when nothing is live
  uint64_t data_end;     // length of the data file, ahead of next_offset
  uint32_t high_water;   // entries ever used, and allocated in the file
  uint32_t free_head;
  uint32_t orphan_head;
  uint32_t live_count;
  uint64_t committed;  // sum of the sizes of live extents, all devices and the host
  uint64_t used[kMaxDevices];
  uint32_t process_high_water;
  uint32_t reserved;
  uint8_t process_used[kMaxProcesses];
};

inline constexpr size_t kEntriesOffset = 4096;
static_assert(sizeof(BooksHeader) <= kEntriesOffset);
inline constexpr size_t kBooksBytes = kEntriesOffset + sizeof(ExtentEntry) * kMaxExtents;

}  // namespace softcuda
