// A process of its own group that the coordinator starts, watches and takes down.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/deadline.hpp"
#include "protocol/unique_fd.hpp"

namespace cts {

// How a process ended.
struct ExitStatus {
  int status = 0;  // as waitpid gives it
  std::string to_string() const;  // "signal 9 (Killed)" or "exit status 2"
  bool clean() const { return status == 0; }
};

struct ProcessOptions {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;  // added to, or replacing, this process's own
  std::string log_path;                            // stdout and stderr, appended
  std::vector<int> inherited;  // descriptors of ours that it gets, numbered from kFirstInherited
};

constexpr int kFirstInherited = 10;

// The leader of a new process group, with one end of a socket pair as its fd 3 (VMMCTS_FD=3) and
// every other descriptor of the coordinator closed. It is killed when the coordinator dies. The
// destructor kills the whole group and reaps it.
class Process {
 public:
  // Throws std::runtime_error when the command cannot be started.
  static Process start(const ProcessOptions& options);

  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  const std::string& log_path() const { return log_path_; }

  // Our end of the socket pair; the caller takes it over.
  UniqueFd take_socket() { return std::move(socket_); }

  // A new pidfd of the process: readable once it has ended.
  UniqueFd pidfd() const;

  // Signals the process alone.
  void signal(int number) const;

  // Waits for its end until the deadline; nothing when it still runs.
  std::optional<ExitStatus> wait(const Deadline& deadline);

  // Kills the whole group and reaps every member, orphans included; returns how the leader ended.
  ExitStatus kill_group();

  // Whether any member of the group is left, the leader counted.
  bool group_alive() const;

 private:
  Process(pid_t pid, UniqueFd socket, std::string log_path)
      : pid_(pid), socket_(std::move(socket)), log_path_(std::move(log_path)) {}

  pid_t pid_ = -1;
  UniqueFd socket_;
  std::string log_path_;
  std::optional<ExitStatus> ended_;
};

// Makes orphans of our process groups our children, so that kill_group can reap them.
void become_subreaper();

}  // namespace cts
