#include "worker/fd_operations.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

namespace cts {
namespace {

// The highest number that is open in this process.
int highest_open_fd() {
  std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir("/proc/self/fd"), ::closedir);
  if (!listing) throw system_error("opendir /proc/self/fd");
  int highest = -1;
  while (const dirent* entry = ::readdir(listing.get())) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != ::dirfd(listing.get())) {
      highest = std::max(highest, number);
    }
  }
  return highest;
}

UniqueFd checked(int fd, const char* call) {
  if (fd < 0) throw system_error(call);
  return UniqueFd(fd);
}

}  // namespace

int FdOperations::keep(UniqueFd fd) {
  const int number = fd.get();
  if (auto stale = owned_.find(number); stale != owned_.end()) stale->second.release();
  owned_[number] = std::move(fd);
  return number;
}

Reply FdOperations::open_fd(const std::string& kind) {
  UniqueFd fd;
  if (kind == "pipe") {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw system_error("pipe2");
    UniqueFd write_end(ends[1]);
    fd.reset(ends[0]);
  } else if (kind == "socket") {
    fd = checked(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  } else if (kind == "memfd") {
    fd = checked(::memfd_create("vmmcts", MFD_CLOEXEC), "memfd_create");
  } else if (kind == "file") {
    fd = checked(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), "open O_TMPFILE");
  } else {
    const char* path = kind == "null" ? "/dev/null" : kind.c_str();
    fd = checked(::open(path, O_RDONLY | O_CLOEXEC), path);
  }
  return {{{"fd", keep(std::move(fd))}}};
}

void FdOperations::lower_limit(int free_slots) {
  restore_limit();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw system_error("getrlimit");
  original_limit_ = limit;
  limit.rlim_cur = static_cast<rlim_t>(highest_open_fd() + 1 + free_slots);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw system_error("setrlimit");
  for (;;) {
    const int filler = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (filler < 0) break;
    fillers_.emplace_back(filler);
  }
  if (errno != EMFILE) throw system_error("open /dev/null");
  fillers_.resize(fillers_.size() - std::min<std::size_t>(fillers_.size(), free_slots));
}

void FdOperations::restore_limit() {
  fillers_.clear();
  if (!original_limit_) return;
  if (::setrlimit(RLIMIT_NOFILE, &*original_limit_) != 0) throw system_error("setrlimit");
  original_limit_.reset();
}

void FdOperations::reset() {
  restore_limit();
  owned_.clear();
}

void FdOperations::add_to(Server& server) {
  server.add("send_fds", [](Message& m) {
    return Reply{Json::object(), m.body.at("fds").get<std::vector<int>>()};
  });
  server.add("receive_fds", [this](Message& m) {
    Json numbers = Json::array();
    for (UniqueFd& fd : m.fds) numbers.push_back(keep(std::move(fd)));
    return Reply{{{"received", numbers}, {"truncated", m.truncated}}};
  });
  server.add("dup", [this](Message& m) {
    const int fd = m.body.at("fd");
    return Reply{{{"fd", keep(checked(::fcntl(fd, F_DUPFD_CLOEXEC, 0), "dup"))}}};
  });
  server.add("pidfd_getfd", [this](Message& m) {
    const UniqueFd process = checked(
        static_cast<int>(::syscall(SYS_pidfd_open, m.body.at("pid").get<int>(), 0)), "pidfd_open");
    const int fd = static_cast<int>(
        ::syscall(SYS_pidfd_getfd, process.get(), m.body.at("fd").get<int>(), 0));
    return Reply{{{"fd", keep(checked(fd, "pidfd_getfd"))}}};
  });
  server.add("close_fd", [this](Message& m) {
    const int fd = m.body.at("fd");
    if (auto owned = owned_.find(fd); owned != owned_.end()) {
      owned->second.release();
      owned_.erase(owned);
    }
    if (::close(fd) != 0) throw system_error("close");
    return Reply{};
  });
  server.add("open_fd", [this](Message& m) { return open_fd(m.body.at("kind")); });
  server.add("socketpair", [this](Message&) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw system_error("socketpair");
    }
    return Reply{{{"fds", {keep(UniqueFd(ends[0])), keep(UniqueFd(ends[1]))}}}};
  });
  server.add("sendmsg", [](Message& m) {
    const auto fds = m.body.at("fds").get<std::vector<int>>();
    const std::vector<std::byte> one_a_batch(fds.empty() ? 1 : (fds.size() - 1) / kMaxFdsPerMessage + 1);
    send_with_fds(m.body.at("socket"), one_a_batch, fds, Deadline::in(std::chrono::seconds(5)));
    return Reply{};
  });
  server.add("recvmsg", [this](Message& m) {
    std::array<std::byte, 1> byte{};
    std::vector<UniqueFd> fds;
    bool truncated = false;
    const auto got = receive_with_fds(m.body.at("socket"), byte, fds, truncated,
                                      Deadline::in(std::chrono::seconds(5)));
    Json numbers = Json::array();
    for (UniqueFd& fd : fds) numbers.push_back(keep(std::move(fd)));
    return Reply{{{"received", numbers}, {"truncated", truncated}, {"end", got == 0}}};
  });
  server.add("nofile_free", [this](Message& m) {
    lower_limit(m.body.at("slots"));
    return Reply{};
  });
  server.add("nofile_restore", [this](Message&) {
    restore_limit();
    return Reply{};
  });
  server.add("exit", [](Message& m) -> Reply {
    const std::string how = m.body.at("how");
    if (how == "abort") std::abort();
    if (how == "_exit") ::_exit(0);
    if (how == "exec") ::execlp("true", "true", static_cast<char*>(nullptr));
    std::exit(0);
  });
}

}  // namespace cts
