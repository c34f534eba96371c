// A small executable model of what a process holds of the driver: it reads driver calls in order and
// tells what was undone twice, in the wrong order, with other numbers, or never.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tap/call_log.hpp"

namespace tap {

// What a rule is about. Only `order` is the suite's own [TEAR-01]: the driver allows to release an
// allocation while it is mapped.
enum class Rule { undone_twice, dead_handle, wrong_range, mapped_when_freed, order, leak, fd_open };
std::string_view name_of(Rule rule);

struct Finding {
  Rule rule;
  Call call;         // the call that is wrong; for a leak, the one that made what is left
  std::string text;  // one line that names the call
};

// How many of each a process holds.
struct Held {
  std::size_t references = 0;
  std::size_t mappings = 0;
  std::size_t reservations = 0;
  std::size_t others = 0;  // pools and plain allocations
  bool operator==(const Held&) const = default;
  std::string to_string() const;
};

class Oracle {
 public:
  // Takes in calls that were made after those of earlier calls of this function. A call that failed
  // changes nothing; an undoing call that was made to fail excuses what it left.
  void enter(std::vector<Call> calls);

  // Findings since the last time they were taken, in order.
  std::vector<Finding> take_findings() { return std::exchange(findings_, {}); }
  Held held(pid_t pid) const;
  // What is still held, each with the call that made it, in the order in which it was made.
  std::vector<Finding> leaks() const;

 private:
  struct Reference {
    int count = 0;
    Call made;
  };
  struct Span {
    std::uint64_t size = 0;
    std::uint64_t handle = 0;
    Call made;
  };
  struct Process {
    std::map<std::uint64_t, Reference> references;  // by handle
    std::map<std::uint64_t, Span> mappings;         // by address
    std::map<std::uint64_t, Span> reservations;     // by address
    std::map<std::uint64_t, Call> others;           // by handle or address
    std::set<std::uint64_t> released;               // handles whose last reference went
    std::set<std::pair<std::string_view, std::uint64_t>> excused;  // undoing call, what of
  };

  void enter(const Call& call);
  void release(Process& process, const Call& call);
  void unmap(Process& process, const Call& call);
  void free_address(Process& process, const Call& call);
  void use(const Process& process, const Call& call);
  static bool is_dead(const Process& process, const Call& call);
  void find(Rule rule, const Call& call, const std::string& text);

  std::map<pid_t, Process> processes_;
  std::vector<Finding> findings_;
};

}  // namespace tap
