// What goes wrong around the simulated devices: deaths, full and damaged directories, strangers.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>

#include <cuda.h>

#include "books_format.hpp"
#include "catch2_compat.hpp"
#include "process.hpp"

using softcuda_test::ask_worker;
using softcuda_test::free_memory;
using softcuda_test::PrivateDirectory;
using softcuda_test::Worker;

namespace {

constexpr size_t kUnit = size_t{2} << 20;
const std::string kOk = "0";
const std::string kOutOfMemory = std::to_string(CUDA_ERROR_OUT_OF_MEMORY);
const std::string kOperatingSystem = std::to_string(CUDA_ERROR_OPERATING_SYSTEM);

// cuInit in a fresh process: its result, and the lines that it wrote to stderr.
struct InitOutcome {
  std::string result;
  int lines = 0;
};

InitOutcome try_init() {
  Worker worker({"init"});
  InitOutcome outcome{worker.read_line(), 0};
  worker.wait();
  for (char c : worker.errors()) outcome.lines += c == '\n';
  return outcome;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A moment that differs each time, without giving the processor away.
void spin(std::chrono::microseconds time) {
  auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

void write_at(const std::string& path, off_t offset, const void* bytes, size_t size) {
  int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(pwrite(fd, bytes, size, offset) == static_cast<ssize_t>(size));
  close(fd);
}

// Runs `action` in a child in a mount namespace with a tmpfs of `bytes` as SOFTCUDA_DIR. False when
// the kernel does not let us.
template <typename Action>
bool with_small_tmpfs(const std::string& path, size_t bytes, Action action, int* status) {
  pid_t pid = fork();
  if (pid == 0) {
    std::string options = "mode=0700,size=" + std::to_string(bytes);
    bool mounted = (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
                   mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
    _exit(mounted ? action() : 99);
  }
  waitpid(pid, status, 0);
  *status = WIFEXITED(*status) ? WEXITSTATUS(*status) : 128;
  return *status != 99;
}

// A child that takes the books, leaves every sum and list in them half written, and dies. 0 when it
// got that far.
int die_in_the_books(const std::string& path) {
  pid_t pid = fork();
  if (pid == 0) {
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* mapped = mmap(nullptr, sizeof(softcuda::BooksHeader), PROT_READ | PROT_WRITE, MAP_SHARED,
                        fd, 0);
    if (mapped == MAP_FAILED) _exit(1);
    auto* header = static_cast<softcuda::BooksHeader*>(mapped);
    if (pthread_mutex_lock(&header->mutex) != 0) _exit(2);
    header->free_head = header->orphan_head = 0;
    header->live_count += 7;
    header->committed += 7 * kUnit;
    header->used[0] += 7 * kUnit;
    header->data_end = 0;
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("a process that exits without releasing leaves all memory free") {
  PrivateDirectory directory;
  size_t before = free_memory();
  REQUIRE(ask_worker({"leave", "32"}) == kOk);
  CHECK(free_memory() == before);
}

TEST_CASE("memory is taken while its process lives and free once it is killed") {
  PrivateDirectory directory;
  size_t before = free_memory();
  Worker worker({"hold", "32"});
  REQUIRE(worker.read_line() == kOk);
  CHECK(before - free_memory() == 32 * kUnit);
  worker.kill_now();
  CHECK(free_memory() == before);
}

TEST_CASE("200 processes killed at random moments leave all memory free") {
  PrivateDirectory directory;
  size_t before = free_memory();
  std::mt19937 random(20260101);
  for (int round = 0; round < 25; round++) {
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < 8; i++) {
      workers.push_back(std::make_unique<Worker>(
          std::vector<std::string>{"churn", std::to_string(round * 8 + i)}));
    }
    for (auto& worker : workers) {
      REQUIRE(worker->read_line() == "churning");
      spin(std::chrono::microseconds(random() % 1500));
      worker->kill_now();
    }
  }
  CHECK(free_memory() == before);
  CHECK(ask_worker({"zeros", "16"}) == kOk);
}

TEST_CASE("a killed process does not disturb one that works beside it") {
  PrivateDirectory directory;
  Worker survivor({"hold", "8"});
  REQUIRE(survivor.read_line() == kOk);
  for (int i = 0; i < 10; i++) {
    Worker victim({"churn", std::to_string(i)});
    REQUIRE(victim.read_line() == "churning");
    victim.kill_now();
  }
  survivor.end_input();
  CHECK(survivor.wait() == 0);
}

TEST_CASE("no process reads bytes that another one freed") {
  PrivateDirectory directory;
  for (int i = 0; i < 3; i++) {
    REQUIRE(ask_worker({"leave", "8"}) == kOk);
    CHECK(ask_worker({"zeros", "8"}) == kOk);
  }
}

TEST_CASE("a forked child keeps nothing of its dead parent's memory") {
  PrivateDirectory directory;
  size_t before = free_memory();
  Worker worker({"fork-and-die", "16"});
  REQUIRE(worker.read_line() == "child");
  REQUIRE(worker.wait() == 0);  // the parent; its child still waits
  CHECK(free_memory() == before);
}

TEST_CASE("a full file system is out of memory at create and nothing else") {
  PrivateDirectory directory;
  int status = 0;
  auto fill_up = [] {
    std::istringstream answer(ask_worker({"fill-up"}));
    size_t count = 0;
    std::string create, write;
    answer >> count >> create >> write;
    if (create != kOutOfMemory) return 1;
    if (write != kOk) return 2;
    if (count < 24 || count > 32) return 3;
    return ask_worker({"leave", "8"}) == kOk ? 0 : 4;
  };
  if (!with_small_tmpfs(directory.path(), 32 * kUnit, fill_up, &status)) {
    WARN("not exercised: no tmpfs can be mounted here");
    return;
  }
  CHECK(status == 0);
}

TEST_CASE("a file system that others filled is out of memory at create") {
  PrivateDirectory directory;
  int status = 0;
  auto action = [&] {
    if (ask_worker({"init"}) != kOk) return 1;
    std::string path = directory.path() + "/filler";
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t at = 0; fallocate(fd, 0, at, 4096) == 0; at += 4096) {
    }
    return ask_worker({"fill-up"}) == "0 " + kOutOfMemory + " 0" ? 0 : 2;
  };
  if (!with_small_tmpfs(directory.path(), 8 * kUnit, action, &status)) {
    WARN("not exercised: no tmpfs can be mounted here");
    return;
  }
  CHECK(status == 0);
}

TEST_CASE("a directory that others may enter is refused with one line") {
  PrivateDirectory directory;
  REQUIRE(chmod(directory.path().c_str(), 0755) == 0);
  InitOutcome outcome = try_init();
  CHECK(outcome.result == kOperatingSystem);
  CHECK(outcome.lines == 1);
}

TEST_CASE("a truncated table is refused with one line and not touched") {
  PrivateDirectory directory;
  REQUIRE(ask_worker({"init"}) == kOk);
  std::string books = directory.path() + "/books";
  REQUIRE(truncate(books.c_str(), 100) == 0);
  InitOutcome outcome = try_init();
  CHECK(outcome.result == kOperatingSystem);
  CHECK(outcome.lines == 1);
  struct stat status {};
  REQUIRE(stat(books.c_str(), &status) == 0);
  CHECK(status.st_size == 100);
}

TEST_CASE("a table of another version is refused with one line") {
  PrivateDirectory directory;
  REQUIRE(ask_worker({"init"}) == kOk);
  uint64_t other = softcuda::kBooksMagic + 1;
  write_at(directory.path() + "/books", 0, &other, sizeof other);
  InitOutcome outcome = try_init();
  CHECK(outcome.result == kOperatingSystem);
  CHECK(outcome.lines == 1);
}

TEST_CASE("a table from before a reboot is started anew") {
  PrivateDirectory directory;
  REQUIRE(ask_worker({"leave", "4"}) == kOk);
  write_at(directory.path() + "/books", offsetof(softcuda::BooksHeader, boot_id), "older", 6);
  CHECK(ask_worker({"zeros", "4"}) == kOk);
}

TEST_CASE("a process that died with the books in its hands wedges nobody") {
  PrivateDirectory directory;
  std::string log = directory.path() + "/log";
  setenv("SOFTCUDA_LOG", log.c_str(), 1);
  size_t before = free_memory();
  Worker holder({"hold", "4"});
  REQUIRE(holder.read_line() == kOk);
  CHECK(die_in_the_books(directory.path() + "/books") == 0);
  CHECK(before - free_memory() == 4 * kUnit);
  CHECK(file_text(log).find("died inside the books") != std::string::npos);
  CHECK(ask_worker({"zeros", "4"}) == kOk);
  holder.end_input();
  CHECK(holder.wait() == 0);
  unsetenv("SOFTCUDA_LOG");
  CHECK(free_memory() == before);
}

TEST_CASE("another profile is refused while the devices are in use, and taken afterwards") {
  PrivateDirectory directory;
  Worker holder({"hold", "1"});
  REQUIRE(holder.read_line() == kOk);
  setenv("SOFTCUDA_PROFILE", "small", 1);
  InitOutcome refused = try_init();
  holder.kill_now();
  InitOutcome taken = try_init();
  unsetenv("SOFTCUDA_PROFILE");
  CHECK(refused.result == kOperatingSystem);
  CHECK(refused.lines == 1);
  CHECK(taken.result == kOk);
}

TEST_CASE("the driver starts and works with 64 fds in total") {
  PrivateDirectory directory;
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit low{64, old.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::string result = ask_worker({"leave", "4"});
  REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(result == kOk);
}

TEST_CASE("another user is kept out, and has devices of their own") {
  if (geteuid() != 0) {
    WARN("not exercised: only root can become another user");
    return;
  }
  PrivateDirectory directory;
  REQUIRE(ask_worker({"init"}) == kOk);
  pid_t pid = fork();
  if (pid == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
    if (access(SOFTCUDA_WORKER, X_OK) != 0) _exit(77);
    if (ask_worker({"init"}) != kOperatingSystem) _exit(1);
    std::string own = directory.path() + "-other";
    setenv("SOFTCUDA_DIR", own.c_str(), 1);
    bool works = ask_worker({"leave", "2"}) == kOk;
    std::error_code ignored;
    std::filesystem::remove_all(own, ignored);
    _exit(works ? 0 : 2);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (WEXITSTATUS(status) == 77) {
    WARN("not exercised: the build directory is closed to other users");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}
