// Plays a walk on a system, and says where the system is not what the model is.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "walk_model.hpp"

namespace cts::walk {

// What a system answered.
struct Reply {
  bool ok = true;
  std::string kind = {};     // of the error
  std::string message = {};
  std::uint64_t pointer = 0;
  std::uint64_t size = 0;
  bool is_mapped = false;
  std::vector<std::uint64_t> sizes = {};
  std::int64_t mismatch = -1;  // verify: offset of the first wrong byte
  std::vector<std::string> calls = {};  // of the driver, queries aside; none where nobody watches
};

struct OpenFds {
  std::size_t added = 0;   // more than the process had at its start
  std::string text = {};   // which, for the reader
  std::string wrong = {};  // not empty: other ones than the answers told, or some of the first ones lost
};

// A process can no longer be talked to. `cause` is what the system threw, to be thrown on.
struct Lost : std::runtime_error {
  Lost(const std::string& text, std::exception_ptr thrown)
      : std::runtime_error(text), cause(std::move(thrown)) {}
  std::exception_ptr cause;
};

// Something that walks are played on, in its clean state at first. Every function may throw Lost.
class System {
 public:
  virtual ~System() = default;
  virtual std::uint64_t granule() = 0;
  virtual Reply apply(const Action& action) = 0;
  virtual OpenFds fds(int process) = 0;
  // Bytes of physical memory that are held more than at the start.
  virtual std::uint64_t held() = 0;
  // Drops everything. Returns which descriptors were left, empty if none.
  virtual std::string finish() = 0;
};

// Where a system is not what the model is.
struct Difference {
  std::size_t step = 0;       // index; the number of steps: at the end
  std::string witness = {};   // as in the event log
  std::string clauses = {};
  std::string text = {};
  std::exception_ptr lost = nullptr;  // what ended a process, if that is it

  // Whether it is another sight of one fault. Wrong bytes are seen through any buffer, and an error
  // is one by its area of clauses.
  bool same_fault(const Difference& other) const {
    if (witness != other.witness) return false;
    if (witness == "error") return clauses.substr(0, 4) == other.clauses.substr(0, 4);
    return witness == "bytes" || clauses == other.clauses;
  }
};

// What walks came across, for who reads a report.
struct Seen {
  int steps = 0;
  int refused = 0;
  int grown_in_place = 0;
  int moved = 0;
  int imported_and_moved = 0;
  int killed = 0;
};

// Plays the steps and drops everything. Steps that the model
// cannot apply are skipped. None: no difference.
std::optional<Difference> play(const Walk& walk, System& system, Seen* seen = nullptr);

}  // namespace cts::walk
