#include "coordinator/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <stdexcept>

extern char** environ;

namespace cts {
namespace {

constexpr int kWorkerSocket = 3;

// The present environment with `extra` laid over it, as execve takes it.
std::vector<std::string> merged_environment(const std::map<std::string, std::string>& extra) {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : extra) all[name] = value;
  all["VMMCTS_FD"] = std::to_string(kWorkerSocket);
  std::vector<std::string> merged;
  for (const auto& [name, value] : all) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Runs in the forked child: only async-signal-safe calls. Reports errno through `failure` and ends.
[[noreturn]] void become(char** command, char** environment, int socket, int log, int failure,
                         std::span<const int> inherited, pid_t coordinator) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool orphaned = ::getppid() != coordinator;
  const int null = ::open("/dev/null", O_RDONLY);
  bool inheriting = true;
  for (std::size_t i = 0; i < inherited.size(); ++i) {
    inheriting = inheriting && ::dup2(inherited[i], kFirstInherited + static_cast<int>(i)) >= 0;
  }
  // The numbers that the worker gets are below every one used here: see Process::start.
  if (!orphaned && inheriting && null >= 0 && ::dup2(null, 0) == 0 && ::dup2(log, 1) == 1 &&
      ::dup2(log, 2) == 2 && ::dup2(socket, kWorkerSocket) == kWorkerSocket) {
    ::close(null);
    ::execvpe(command[0], command, environment);
  }
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(failure, &error, sizeof(error));
  ::_exit(127);
}

// A copy of `fd` at a number above those that a worker gets.
UniqueFd out_of_the_way(int fd, std::size_t inherited) {
  UniqueFd moved(
      ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstInherited + static_cast<int>(inherited)));
  if (!moved) throw std::runtime_error(std::string("fcntl: ") + std::strerror(errno));
  return moved;
}

}  // namespace

std::string ExitStatus::to_string() const {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return "signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
  }
  return "exit status " + std::to_string(WEXITSTATUS(status));
}

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

Process Process::start(const ProcessOptions& options) {
  const auto fail = [&](const std::string& what, int error) -> std::runtime_error {
    return std::runtime_error("cannot start " + options.command.at(0) + ": " + what + ": " +
                              std::strerror(error));
  };
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw fail("socketpair", errno);
  }
  const auto aside = [&](UniqueFd fd) { return out_of_the_way(fd.get(), options.inherited.size()); };
  UniqueFd ours = aside(UniqueFd(ends[0]));
  const UniqueFd theirs = aside(UniqueFd(ends[1]));
  const UniqueFd log = aside(
      UniqueFd(::open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)));
  std::vector<UniqueFd> copies;
  std::vector<int> inherited;
  for (const int fd : options.inherited) {
    copies.push_back(out_of_the_way(fd, options.inherited.size()));
    inherited.push_back(copies.back().get());
  }
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) throw fail("pipe2", errno);
  const UniqueFd failure_read(failure[0]);
  UniqueFd failure_write = aside(UniqueFd(failure[1]));

  std::vector<std::string> command = options.command;
  std::vector<std::string> environment = merged_environment(options.environment);
  const auto command_pointers = pointers(command);
  const auto environment_pointers = pointers(environment);
  const pid_t coordinator = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw fail("fork", errno);
  if (pid == 0) {
    become(const_cast<char**>(command_pointers.data()),
           const_cast<char**>(environment_pointers.data()), theirs.get(), log.get(),
           failure_write.get(), inherited, coordinator);
  }
  ::setpgid(pid, pid);
  Process process(pid, std::move(ours), options.log_path);
  failure_write.reset();
  int error = 0;
  if (::read(failure_read.get(), &error, sizeof(error)) == sizeof(error)) {
    throw fail("exec", error);
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::move(other.socket_)),
      log_path_(std::move(other.log_path_)),
      ended_(other.ended_) {}

Process::~Process() {
  if (pid_ > 0) kill_group();
}

UniqueFd Process::pidfd() const {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

void Process::signal(int number) const {
  if (!ended_) ::kill(pid_, number);
}

std::optional<ExitStatus> Process::wait(const Deadline& deadline) {
  if (ended_) return ended_;
  if (const UniqueFd ended = pidfd()) {
    pollfd entry{ended.get(), POLLIN, 0};
    while (::poll(&entry, 1, deadline.poll_timeout()) < 0 && errno == EINTR) {
    }
  }
  int status = 0;
  const bool ended = ::waitpid(pid_, &status, WNOHANG) == pid_;
  if (ended) ended_ = ExitStatus{status};
  return ended_;
}

ExitStatus Process::kill_group() {
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  int status = 0;
  if (!ended_ && ::waitpid(pid_, &status, 0) == pid_) ended_ = ExitStatus{status};
  // Orphans of the group are our children now (become_subreaper); the wait ends with the last.
  while (::waitpid(-pid_, nullptr, 0) > 0 || errno == EINTR) {
  }
  return ended_.value_or(ExitStatus{});
}

bool Process::group_alive() const { return ::kill(-pid_, 0) == 0; }

}  // namespace cts
