// Opening and creating the devices' directory. Models no measured fact but the file descriptors:
// the H200 holds 16 after cuInit and 36 with a context (env.fd.*), softcuda 10 in both.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "books.hpp"
#include "log.hpp"

namespace softcuda {
namespace {

// An exclusive lock on the set-up byte; the kernel drops it when the fd or the process goes.
bool lock_byte(int fd, int64_t byte, short type, bool wait) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  while (fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

std::string boot_id() {
  char text[37] = "";
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t n = read(fd, text, 36);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
  }
  return text;
}

bool is_private_directory(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

// Makes the directory, private from its first moment, unless it is there.
CUresult make_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    log_trouble("%s: cannot be made: %s", path.c_str(), strerror(errno));
    return errno == ENOSPC ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (is_private_directory(path)) return CUDA_SUCCESS;
  log_trouble("%s: must be a directory of this user with mode 0700", path.c_str());
  return CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace

std::string device_directory() {
  if (const char* chosen = getenv("SOFTCUDA_DIR"); chosen != nullptr && *chosen != '\0') {
    if (*chosen == '/') return chosen;
    char here[4096];
    return getcwd(here, sizeof here) == nullptr ? chosen : std::string(here) + "/" + chosen;
  }
  if (const char* runtime = getenv("XDG_RUNTIME_DIR");
      runtime != nullptr && *runtime == '/' && is_private_directory(runtime)) {
    return std::string(runtime) + "/softcuda";
  }
  const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  return std::string(base) + "/softcuda-" + std::to_string(geteuid());
}

CUresult Books::open(const std::string& directory, const Profile& profile,
                     std::unique_ptr<Books>* books) {
  if (CUresult r = make_directory(directory)) return r;
  std::unique_ptr<Books> made(new Books(directory));
  if (CUresult r = made->open_files(profile)) return r;
  *books = std::move(made);
  return CUDA_SUCCESS;
}

CUresult Books::open_files(const Profile& profile) {
  if (CUresult r = open_file("books", &books_fd_)) return r;
  int data = -1;
  if (CUresult r = open_file("memory", &data)) return r;
  store_.adopt(data, profile.reserve_backing);
  for (uint32_t shard = 0; shard < kNearShards; shard++) {
    std::string name = "exports-" + std::to_string(shard);
    if (CUresult r = open_file(name.c_str(), &near_fds_[shard])) return r;
  }
  if (!lock_byte(books_fd_, kSetupLock, F_WRLCK, true)) {
    log_trouble("%s: cannot be locked: %s", directory_.c_str(), strerror(errno));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  CUresult r = set_up(profile);
  lock_byte(books_fd_, kSetupLock, F_UNLCK, false);
  return r;
}

// Opens one of the directory's files, making it with mode 0600. Refuses what is not a plain file
// of this user.
CUresult Books::open_file(const char* name, int* fd) {
  std::string path = directory_ + "/" + name;
  *fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (*fd < 0) {
    log_trouble("%s: cannot be opened: %s", path.c_str(), strerror(errno));
    return errno == ENOSPC ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
  }
  struct stat status {};
  if (fstat(*fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
      (status.st_mode & 077) == 0) {
    return CUDA_SUCCESS;
  }
  log_trouble("%s: must be a file of this user with mode 0600", path.c_str());
  return CUDA_ERROR_OPERATING_SYSTEM;
}

// Under the set-up lock: maps the table, starts it when it is new or from before a reboot, and
// takes a process slot.
CUresult Books::set_up(const Profile& profile) {
  struct stat status {};
  if (fstat(books_fd_, &status) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  bool fresh = status.st_size == 0;
  if (!fresh && static_cast<uint64_t>(status.st_size) != kBooksBytes) {
    log_trouble("%s/books: has %lld bytes instead of %zu: truncated, or of another version",
                directory_.c_str(), static_cast<long long>(status.st_size), kBooksBytes);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (fresh && (fallocate(books_fd_, FALLOC_FL_KEEP_SIZE, 0, kEntriesOffset) != 0 ||
                ftruncate(books_fd_, kBooksBytes) != 0)) {
    log_trouble("%s/books: cannot be made: %s", directory_.c_str(), strerror(errno));
    return errno == ENOSPC ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
  }
  void* table =
      mmap(nullptr, kBooksBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, books_fd_, 0);
  if (table == MAP_FAILED) {
    log_trouble("%s/books: cannot be mapped: %s", directory_.c_str(), strerror(errno));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  madvise(table, kBooksBytes, MADV_DONTFORK);
  header_ = static_cast<BooksHeader*>(table);
  entries_ = reinterpret_cast<ExtentEntry*>(static_cast<char*>(table) + kEntriesOffset);
  if (CUresult r = check_header(profile)) return r;
  return claim_process_slot();
}

CUresult Books::check_header(const Profile& profile) {
  if (header_->magic == 0) return write_header(profile);
  if (header_->magic != kBooksMagic) {
    log_trouble("%s/books: is of another version of softcuda", directory_.c_str());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  bool in_use = any_lock(books_fd_, kProcessLocks, kMaxProcesses);
  for (uint32_t index = 0; !in_use && index < header_->high_water; index++) {
    in_use = entry(index).state == ExtentState::kLive && has_open_export(index);
  }
  if (boot_id() != header_->boot_id) {
    if (in_use) {
      log_trouble("%s/books: is in use on another machine", directory_.c_str());
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    log_line("%s: is from before a reboot; starting anew", directory_.c_str());
    return write_header(profile);
  }
  uint64_t usable = profile.total_bytes - profile.driver_bytes;
  if (static_cast<int>(header_->devices) == profile.devices && header_->total_bytes == usable) {
    return CUDA_SUCCESS;
  }
  if (!in_use) return write_header(profile);
  log_trouble("%s: has %u devices of %llu bytes in use, and the profile wants %d of %llu",
              directory_.c_str(), header_->devices,
              static_cast<unsigned long long>(header_->total_bytes), profile.devices,
              static_cast<unsigned long long>(usable));
  return CUDA_ERROR_OPERATING_SYSTEM;
}

// Starts the table with everything free. Nobody else uses it.
CUresult Books::write_header(const Profile& profile) {
  header_->magic = 0;
  std::string boot = boot_id();
  *header_ = BooksHeader{};
  header_->devices = static_cast<uint32_t>(profile.devices);
  header_->total_bytes = profile.total_bytes - profile.driver_bytes;
  header_->page_entries = 64;
  memcpy(header_->boot_id, boot.c_str(), boot.size() + 1);
  header_->next_generation = 1;
  header_->free_head = header_->orphan_head = kNone;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&header_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  store_.discard_all();
  header_->magic = kBooksMagic;
  return CUDA_SUCCESS;
}

// A slot nobody's lock is on. A slot left by a dead process is reaped before it is reused.
CUresult Books::claim_process_slot() {
  for (uint32_t slot = 0; slot < kMaxProcesses; slot++) {
    if (!lock_byte(books_fd_, kProcessLocks + slot, F_WRLCK, false)) continue;
    slot_ = slot;
    forget_slot_of_the_dead(slot);
    return CUDA_SUCCESS;
  }
  log_trouble("%s: has %u processes already", directory_.c_str(), kMaxProcesses);
  return CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace softcuda
