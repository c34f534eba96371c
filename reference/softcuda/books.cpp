// The books' operations. Measured facts behind them: an open fd, its dups, an import, a handle and
// a mapping each keep the memory, and free memory moves exactly when the last of them goes, in any
// process (pin.*, twohandles.*, xproc.*); create, map and import cost no fd (export.fd.*,
// rlimit.*); a process that dies takes its references along.
#include "books.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "log.hpp"

namespace softcuda {
namespace {

constexpr int kIndexBits = 20;
static_assert(kMaxExtents <= (1u << kIndexBits));

ExtentId make_id(uint32_t index, uint64_t generation) {
  return generation << kIndexBits | index;
}
uint32_t index_of(ExtentId id) { return static_cast<uint32_t>(id & ((1u << kIndexBits) - 1)); }
uint64_t generation_of(ExtentId id) { return id >> kIndexBits; }

}  // namespace

// Holds the table. Repairs it when the last owner was killed in the middle of a change.
class Books::Lock {
 public:
  explicit Lock(Books& books) : books_(books) {
    int error = pthread_mutex_lock(&books_.header_->mutex);
    if (error == EOWNERDEAD) {
      pthread_mutex_consistent(&books_.header_->mutex);
      books_.recover();
    }
  }
  ~Lock() { pthread_mutex_unlock(&books_.header_->mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Books& books_;
};

Books::~Books() {
  if (header_ != nullptr) munmap(header_, kBooksBytes);
  for (int fd : near_fds_) {
    if (fd > 0) close(fd);
  }
  if (books_fd_ >= 0) close(books_fd_);
}

CUresult Books::create(Extent* extent) {
  Lock lock(*this);
  if (!fits(*extent)) {
    settle();
    if (!fits(*extent)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (header_->live_count == 0 && header_->next_offset != 0) {
    header_->data_end = 0;  // first: after a kill the file is made longer again
    std::atomic_signal_fence(std::memory_order_seq_cst);
    store_.discard_all();
    header_->next_offset = 0;
  }
  uint64_t offset = header_->next_offset;
  if (!has_length(offset + extent->size)) return CUDA_ERROR_OUT_OF_MEMORY;
  bool claim = extent->location_type != CU_MEM_LOCATION_TYPE_DEVICE || store_.eager();
  if (claim && extent->size > 0 && store_.reserve(offset, extent->size) != 0) {
    store_.discard(offset, extent->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint32_t index = take_entry();
  if (index == kNone) {
    store_.discard(offset, extent->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ExtentEntry& e = entry(index);
  e = ExtentEntry{};
  e.kind = extent->kind;
  e.generation = header_->next_generation++;
  e.size = extent->size;
  e.offset = offset;
  e.location_type = extent->location_type;
  e.location_id = extent->location_id;
  e.handle_types = extent->handle_types;
  e.flags = extent->flags;
  e.next = kNone;
  e.holders[slot_ / 64] = uint64_t{1} << (slot_ % 64);
  e.holder_count = 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // a kill here must leave the entry free
  e.state = ExtentState::kLive;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header_->next_offset += e.size;
  header_->live_count++;
  header_->committed += e.size;
  if (e.location_type == CU_MEM_LOCATION_TYPE_DEVICE) header_->used[e.location_id] += e.size;
  *extent = describe(index);
  return CUDA_SUCCESS;
}

bool Books::hold(ExtentId id, Extent* extent) {
  Lock lock(*this);
  ExtentEntry* e = find(id);
  if (e == nullptr) return false;
  uint64_t bit = uint64_t{1} << (slot_ % 64);
  if ((e->holders[slot_ / 64] & bit) == 0) {
    e->holders[slot_ / 64] |= bit;
    e->holder_count++;
  }
  *extent = describe(index_of(id));
  return true;
}

void Books::drop(ExtentId id) {
  Lock lock(*this);
  ExtentEntry* e = find(id);
  uint64_t bit = uint64_t{1} << (slot_ % 64);
  if (e == nullptr || (e->holders[slot_ / 64] & bit) == 0) return;
  e->holders[slot_ / 64] &= ~bit;
  e->holder_count--;
  release_if_unheld(index_of(id));
}

bool Books::look_up(ExtentId id, Extent* extent) {
  Lock lock(*this);
  if (find(id) == nullptr) return false;
  *extent = describe(index_of(id));
  return true;
}

CUresult Books::export_fd(ExtentId id, bool close_on_exec, int* fd) {
  {
    Lock lock(*this);
    ExtentEntry* e = find(id);
    if (e == nullptr) return CUDA_ERROR_INVALID_VALUE;
    e->exported = 1;  // before the fd exists: an fd that nobody looks for would lose its memory
  }
  uint32_t index = index_of(id);
  int opened =
      ::open(export_path(index).c_str(), O_RDWR | O_CREAT | (close_on_exec ? O_CLOEXEC : 0), 0600);
  if (opened < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  struct flock lock {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = index;
  lock.l_len = 1;
  if (fcntl(opened, F_OFD_SETLK, &lock) != 0 ||
      lseek(opened, static_cast<off_t>(id), SEEK_SET) < 0) {
    close(opened);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *fd = opened;
  return CUDA_SUCCESS;
}

// The position names an extent, and the extent's lock file must be the file behind the fd.
ExtentId Books::identify(int fd) const {
  off_t position = lseek(fd, 0, SEEK_CUR);
  if (position <= 0) return 0;
  ExtentId id = static_cast<ExtentId>(position);
  struct stat given {};
  struct stat own {};
  if (fstat(fd, &given) != 0 || stat(export_path(index_of(id)).c_str(), &own) != 0) return 0;
  return given.st_dev == own.st_dev && given.st_ino == own.st_ino ? id : 0;
}

std::string Books::export_path(uint32_t index) const {
  bool near = index < kNearExtents;
  return directory_ + (near ? "/exports-" : "/exports-far-") +
         std::to_string(index % (near ? kNearShards : kFarShards));
}

uint64_t Books::used_bytes(int device) {
  Lock lock(*this);
  settle();
  return header_->used[device];
}

void Books::abandon_in_child() noexcept {
  // The parent keeps the same open files, so closing takes nothing from it; not closing would keep
  // a dead parent's memory for as long as the child runs.
  for (int& fd : near_fds_) {
    if (fd > 0) close(fd);
    fd = -1;
  }
  if (books_fd_ >= 0) close(books_fd_);
  books_fd_ = -1;
  store_.close_fd();
}

ExtentEntry* Books::find(ExtentId id) {
  uint32_t index = index_of(id);
  if (id == 0 || index >= header_->high_water) return nullptr;
  ExtentEntry& e = entry(index);
  bool same = e.state == ExtentState::kLive && e.generation == generation_of(id);
  return same ? &e : nullptr;
}

Extent Books::describe(uint32_t index) const {
  const ExtentEntry& e = entries_[index];
  return {make_id(index, e.generation), e.kind,         e.size,  e.offset, e.location_type,
          e.location_id,                e.handle_types, e.flags};
}

// An entry from the free list, else the next unused one, whose pages it allocates. kNone when the
// table or the file system is full.
uint32_t Books::take_entry() {
  if (header_->free_head != kNone) {
    uint32_t index = header_->free_head;
    header_->free_head = entry(index).next;
    return index;
  }
  uint32_t index = header_->high_water;
  if (index == kMaxExtents) return kNone;
  if (index % header_->page_entries == 0) {
    off_t start = static_cast<off_t>(kEntriesOffset + sizeof(ExtentEntry) * index);
    off_t length = static_cast<off_t>(sizeof(ExtentEntry) * header_->page_entries);
    if (fallocate(books_fd_, FALLOC_FL_KEEP_SIZE, start, length) != 0 && errno != EOPNOTSUPP) {
      return kNone;
    }
  }
  header_->high_water++;
  return index;
}

void Books::give_entry_back(uint32_t index) {
  ExtentEntry& e = entry(index);
  e.state = ExtentState::kFree;
  e.next = header_->free_head;
  header_->free_head = index;
}

void Books::free_extent(uint32_t index) {
  ExtentEntry& e = entry(index);
  e.state = ExtentState::kFreeing;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  store_.discard(e.offset, e.size);
  header_->live_count--;
  header_->committed -= e.size;
  if (e.location_type == CU_MEM_LOCATION_TYPE_DEVICE) header_->used[e.location_id] -= e.size;
  give_entry_back(index);
}

// What no process holds is freed, or waits in the list of orphans while an fd still holds it.
void Books::release_if_unheld(uint32_t index) {
  ExtentEntry& e = entry(index);
  if (e.holder_count != 0 || e.orphaned != 0) return;
  if (!has_open_export(index)) {
    free_extent(index);
    return;
  }
  e.orphaned = 1;
  e.next = header_->orphan_head;
  header_->orphan_head = index;
}

bool Books::has_open_export(uint32_t index) const {
  if (entries_[index].exported == 0) return false;
  if (index < kNearExtents) return any_lock(near_fds_[index % kNearShards], index, 1);
  int fd = ::open(export_path(index).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT;  // no fd to be had: held, until somebody can look
  bool held = any_lock(fd, index, 1);
  close(fd);
  return held;
}

bool Books::any_lock(int fd, int64_t start, int64_t length) {
  struct flock probe {};
  probe.l_type = F_WRLCK;
  probe.l_whence = SEEK_SET;
  probe.l_start = start;
  probe.l_len = length;
  if (fcntl(fd, F_OFD_GETLK, &probe) != 0) return true;
  return probe.l_type != F_UNLCK;
}

// Finds out who has died and which fds were closed since the last look.
void Books::settle() {
  for (uint32_t slot = 0; slot < header_->process_high_water; slot++) {
    if (slot == slot_ || header_->process_used[slot] == 0) continue;
    if (!any_lock(books_fd_, kProcessLocks + slot, 1)) reap_process(slot);
  }
  uint32_t* link = &header_->orphan_head;
  while (*link != kNone) {
    uint32_t index = *link;
    ExtentEntry& e = entry(index);
    bool held = e.holder_count != 0;
    if (!held && has_open_export(index)) {
      link = &e.next;
      continue;
    }
    *link = e.next;
    e.orphaned = 0;
    e.next = kNone;
    if (!held) free_extent(index);
  }
}

void Books::reap_process(uint32_t slot) {
  uint64_t bit = uint64_t{1} << (slot % 64);
  for (uint32_t index = 0; index < header_->high_water; index++) {
    ExtentEntry& e = entry(index);
    if (e.state != ExtentState::kLive || (e.holders[slot / 64] & bit) == 0) continue;
    e.holders[slot / 64] &= ~bit;
    e.holder_count--;
    release_if_unheld(index);
  }
  header_->process_used[slot] = 0;
}

// Takes over a process slot: its last owner's references end here, and everybody's who died.
void Books::forget_slot_of_the_dead(uint32_t slot) {
  Lock lock(*this);
  if (header_->process_used[slot] != 0) reap_process(slot);
  header_->process_used[slot] = 1;
  if (header_->process_high_water <= slot) header_->process_high_water = slot + 1;
  settle();
}

// Makes the table whole from what every step leaves true: an entry's state, sizes and bits.
void Books::recover() {
  log_line("a process died inside the books; they were put in order");
  header_->free_head = header_->orphan_head = kNone;
  header_->live_count = 0;
  header_->committed = 0;
  header_->data_end = 0;
  memset(header_->used, 0, sizeof header_->used);
  for (uint32_t index = 0; index < header_->high_water; index++) {
    ExtentEntry& e = entry(index);
    if (e.state != ExtentState::kLive) {
      if (e.state == ExtentState::kFreeing) store_.discard(e.offset, e.size);
      give_entry_back(index);
      continue;
    }
    uint32_t count = 0;
    for (uint64_t word : e.holders) count += static_cast<uint32_t>(__builtin_popcountll(word));
    e.holder_count = count;
    e.orphaned = 0;
    e.next = kNone;
    header_->live_count++;
    header_->committed += e.size;
    if (e.location_type == CU_MEM_LOCATION_TYPE_DEVICE) header_->used[e.location_id] += e.size;
    if (header_->next_offset < e.offset + e.size) header_->next_offset = e.offset + e.size;
    if (header_->next_generation <= e.generation) header_->next_generation = e.generation + 1;
  }
  for (uint32_t index = 0; index < header_->high_water; index++) {
    if (entry(index).state == ExtentState::kLive) release_if_unheld(index);
  }
}

bool Books::fits(const Extent& extent) {
  if (extent.size > INT64_MAX - header_->next_offset) return false;
  if (extent.location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
      extent.size > header_->total_bytes - header_->used[extent.location_id]) {
    return false;
  }
  return extent.size == 0 || has_backing(extent.size);
}

// Whether the file system can hold everything promised so far and this.
bool Books::has_backing(uint64_t size) {
  uint64_t available = store_.available_bytes();
  return available >= header_->committed && available - header_->committed >= size;
}

// Lengthens the data file when it must be, in steps that make it rare.
bool Books::has_length(uint64_t end) {
  constexpr uint64_t kStep = uint64_t{1} << 30;
  if (end <= header_->data_end) return true;
  uint64_t longer = (end + kStep - 1) / kStep * kStep;
  if (store_.extend_to(longer) != 0) return false;
  header_->data_end = longer;
  return true;
}

}  // namespace softcuda
