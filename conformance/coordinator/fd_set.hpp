// Witness: the set of descriptors that a process has open, seen from outside.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cts {

// What one number of a process refers to: enough to tell a number that was closed and used again
// for something else. Two opens of one file look alike here; same_open_file tells them apart.
struct OpenFile {
  std::string target;  // what /proc/PID/fd/N links to
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  auto operator<=>(const OpenFile&) const = default;
};

class FdSet {
 public:
  // The open descriptors of a process. Throws std::runtime_error when /proc does not tell.
  static FdSet of(pid_t pid);

  std::size_t size() const { return files_.size(); }
  bool contains(int number) const { return files_.contains(number); }
  std::vector<int> numbers() const;
  // How many numbers refer to a file of this name.
  std::size_t count_of(const std::string& target) const;
  const std::string& target_of(int number) const { return files_.at(number).target; }

  // Numbers here that are not in `before`, or that refer to something else there.
  std::vector<int> added_since(const FdSet& before) const;

  // "+7 /dev/nvidiactl, -5 pipe:[123]": what changed from `before` to here; empty when nothing did.
  std::string changes_since(const FdSet& before) const;

  bool operator==(const FdSet&) const = default;

 private:
  std::map<int, OpenFile> files_;
};

// Whether a descriptor of a process is close-on-exec, as /proc/PID/fdinfo tells.
bool is_close_on_exec(pid_t pid, int fd);

// Whether two descriptors of this process share one open file (one file offset and status flags),
// as dup makes them. It flips a status flag of `a` and looks at `b`, then puts it back.
bool same_open_file(int a, int b);

}  // namespace cts
