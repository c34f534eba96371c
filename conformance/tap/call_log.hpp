// The record of driver calls, in a file that the tap, the coordinator and the tools map at once.
//
// The tap appends a record for each traced call; whoever else maps the file reads it while the
// program runs, and puts the next failure to inject into it. A killed process loses nothing.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tap {

struct LogHeader;  // log_layout.hpp
struct Record;

constexpr std::size_t kArguments = 6;
constexpr std::size_t kInjections = 8;
// Recorded as if it were a call, when a process ends with an exported descriptor still open.
constexpr std::string_view kDescriptorOpenAtExit = "descriptor open at exit";

// One driver call. Arguments are numbers as passed; an output is the value that came back (0 when
// the call failed). `result` is the CUresult, kUnfinished when the process died inside the call.
struct Call {
  static constexpr int kUnfinished = -1;

  std::uint64_t sequence = 0;  // 1 for the first call of the log
  std::string_view name;       // as cuGetProcAddress knows it
  int result = 0;
  bool injected = false;       // the result was injected and the driver was not called
  std::array<std::uint64_t, kArguments> arguments{};
  int fd_in = -1;              // descriptor that an import was given
  int fd_out = -1;             // descriptor that an export returned
  pid_t pid = 0;
  pid_t tid = 0;
  std::uint64_t start_ns = 0;  // CLOCK_MONOTONIC
  std::uint64_t duration_ns = 0;

  // The argument with this name (traced.inc). Throws std::out_of_range for a name it has not.
  std::uint64_t argument(std::string_view argument_name) const;
  // The arguments with their names, in order.
  std::vector<std::pair<std::string, std::uint64_t>> named_arguments() const;
  // "cuMemUnmap(ptr=0x7f.., size=2097152) = 0"
  std::string to_string() const;
};

// A call that makes, changes and undoes nothing: granularity, access, properties, memory info.
bool is_query(std::string_view name);

enum class Action : std::uint32_t { fail = 1, delay = 2, kill = 3 };

// What to do to the nth call of a kind, counted from when it is added.
struct Injection {
  std::string call = "*";     // a name of traced.inc; "*" is every one that is no query
  std::uint64_t nth = 1;
  Action action = Action::fail;
  int code = 0;               // CUresult to answer with, for fail
  std::uint64_t delay_ns = 0; // how long the call is held back, for delay
};

class CallLog {
 public:
  // A new log for `capacity` records at `path`; the file is sparse. Throws std::runtime_error.
  static CallLog create(const std::string& path, std::size_t capacity);
  // An existing log. Throws std::runtime_error when the file is not one of this version.
  static CallLog open(const std::string& path);

  CallLog(CallLog&& other) noexcept;
  CallLog& operator=(CallLog&&) = delete;
  ~CallLog();

  // Where the next call will be recorded.
  std::uint64_t position() const;
  // The calls recorded from a position on, in the order in which they started.
  std::vector<Call> calls_since(std::uint64_t position) const;
  // Calls that the log has room for; later ones are not recorded.
  std::size_t capacity() const;
  bool overflowed() const { return position() > capacity(); }

  // Adds to what is injected, in every process that writes this log. Each injection counts the calls
  // of its kind from now on and is carried out once; where two fall on one call, the earlier one is.
  // Throws std::invalid_argument for an unknown call, std::length_error for more than
  // kInjections at once.
  void inject(const Injection& injection);
  // Takes every injection back.
  void clear_injections();
  // How many have been carried out since they were last cleared.
  std::uint64_t injections_fired() const;

 private:
  CallLog(LogHeader* header, std::size_t bytes) : header_(header), bytes_(bytes) {}
  LogHeader* header_;
  std::size_t bytes_;
};

}  // namespace tap
