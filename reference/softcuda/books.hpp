// The books of the simulated devices: which extents of memory live, and who holds them.
//
// The kernel decides who is alive. A process holds extents by a bit in a shared table, valid while
// the process keeps its lock on one byte of the table's file. An exported fd holds its extent by
// its own lock, so a dup, an fd in flight and an fd in a stranger's hands count too. What nobody
// holds is free; it is noticed by whoever looks next ("settling").
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "books_format.hpp"
#include "store.hpp"

namespace softcuda {

// Names an extent in every process of a directory: table index and generation. 0 is none.
using ExtentId = uint64_t;

struct Extent {
  ExtentId id = 0;
  ExtentKind kind = ExtentKind::kAllocation;
  uint64_t size = 0;
  uint64_t offset = 0;
  int location_type = 0;
  int location_id = 0;
  uint32_t handle_types = 0;
  uint32_t flags = 0;
};

class Books {
 public:
  // Opens the devices in `directory`, creating them for the first process. On failure answers the
  // code for cuInit, and has said why in the log.
  static CUresult open(const std::string& directory, const Profile& profile,
                       std::unique_ptr<Books>* books);
  ~Books();
  Books(const Books&) = delete;
  Books& operator=(const Books&) = delete;

  // Makes an extent that this process holds. OUT_OF_MEMORY when the device, the file system or the
  // table has no room for it.
  CUresult create(Extent* extent);

  // Adds this process to the holders (once, however often it is called). False when the extent is
  // gone. On success fills `extent`.
  bool hold(ExtentId id, Extent* extent);

  // This process holds the extent no more. The last one to let go gives its blocks back.
  void drop(ExtentId id);

  // Opens an fd that holds the extent. OPERATING_SYSTEM when there is no fd to be had.
  CUresult export_fd(ExtentId id, bool close_on_exec, int* fd);

  // Which extent an fd names, or 0 when it is not an export of this directory.
  ExtentId identify(int fd) const;

  // Looks an extent up without holding it. False when it is gone.
  bool look_up(ExtentId id, Extent* extent);

  // Bytes of a device in use by living holders.
  uint64_t used_bytes(int device);

  // For a forked child: closes what it shares with its parent, without a trace in the books.
  void abandon_in_child() noexcept;

  Store& store() { return store_; }

 private:
  explicit Books(std::string directory) : directory_(std::move(directory)) {}

  class Lock;
  friend class Lock;

  // Opening (books_open.cpp).
  CUresult open_files(const Profile& profile);
  CUresult open_file(const char* name, int* fd);
  CUresult set_up(const Profile& profile);
  CUresult check_header(const Profile& profile);
  CUresult write_header(const Profile& profile);
  CUresult claim_process_slot();

  // Under the lock (books.cpp).
  ExtentEntry* find(ExtentId id);
  uint32_t take_entry();
  void give_entry_back(uint32_t index);
  void free_extent(uint32_t index);
  void release_if_unheld(uint32_t index);
  bool has_open_export(uint32_t index) const;
  void settle();
  void reap_process(uint32_t slot);
  void forget_slot_of_the_dead(uint32_t slot);
  void recover();
  bool fits(const Extent& extent);
  bool has_backing(uint64_t size);
  bool has_length(uint64_t end);
  static bool any_lock(int fd, int64_t start, int64_t length);
  std::string export_path(uint32_t index) const;

  ExtentEntry& entry(uint32_t index) { return entries_[index]; }
  Extent describe(uint32_t index) const;

  std::string directory_;
  int books_fd_ = -1;
  std::array<int, kNearShards> near_fds_{};
  Store store_;
  BooksHeader* header_ = nullptr;
  ExtentEntry* entries_ = nullptr;
  uint32_t slot_ = kNone;
};

// The directory of the devices: SOFTCUDA_DIR, or one of the user's own on a tmpfs.
std::string device_directory();

}  // namespace softcuda
