// What must be true in a random walk: a model of every object, without any process.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "walk_step.hpp"

namespace cts::walk {

// Bytes of a buffer that hold the pattern of a seed. Only the first and the last bytes of each
// granule are written and looked at: memory is mapped by the granule, and long walks stay cheap.
struct Window {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  int seed = 0;
  bool operator==(const Window&) const = default;
};
constexpr std::uint64_t kWindowBytes = 256;

// A step with everything that a system needs to do it.
struct Action {
  Step step = {};
  std::uint64_t bytes = 0;                // allocate, alias, grow: what to ask for
  std::uint64_t size = 0;                 // from_fds: the size of the buffer
  std::vector<std::uint64_t> sizes = {};  // from_fds: of the allocations
  std::vector<Window> windows = {};       // fill, verify
};

// What must come of an action, and which clauses break when something else does.
struct Expected {
  bool ok = true;
  std::string kind = {};                  // of the error that is due; empty: any
  std::vector<std::string> says = {};     // statements of its message, case aside
  bool no_driver_calls = false;           // queries aside
  std::string clauses = {};
  std::optional<std::uint64_t> size = {};
  std::string size_clauses = {};
  std::optional<bool> is_mapped = {};
  std::optional<std::vector<std::uint64_t>> sizes = {};
  int same_pointer_as = 0;                // object; 0: any address
  std::string fd_clauses = {};
  std::string leak_clauses = {};          // more memory is held than must be
  std::string early_clauses = {};         // less is
};

struct Due {
  Action action = {};
  Expected expected = {};
};

// Physical memory. A byte is what the pattern of some seed began with there; none: never written.
struct Allocation {
  std::uint64_t size = 0;
  std::vector<std::optional<std::uint8_t>> first = {};  // of each granule's first window
  std::vector<std::optional<std::uint8_t>> last = {};   // of each granule's last window
};

enum class Origin { allocated, imported, derived };

struct Buffer {
  int process = 0;
  Origin origin = Origin::allocated;
  std::vector<int> allocations = {};  // in address order
  std::vector<bool> imported = {};    // the mark, for each of them
  std::uint64_t range = 0;            // bytes mapped
  std::uint64_t size = 0;             // bytes of the buffer
  bool open = true;

  // Whether an allocation that covers the size is marked.
  bool is_marked(const std::map<int, Allocation>& memory) const;
};

// Something that has one fd per allocation, and the sizes that go with them.
struct Fds {
  enum class What { descriptor, raw, parcel };
  What what = What::descriptor;
  int process = 0;  // of a parcel: none
  std::vector<int> allocations = {};
  std::vector<std::uint64_t> sizes = {};  // as told, right or wrong
  std::uint64_t size = 0;
  bool open = true;
};

class Model {
 public:
  // The granule is the driver's, in bytes.
  Model(int processes, std::uint64_t granule);

  // Does the step. None when it cannot be meant: an object of it is not there, or is another kind.
  std::optional<Due> apply(const Step& step);

  // Bytes of physical memory that something pins.
  std::uint64_t held() const;
  // Descriptors that a process must have open beyond those of its start.
  std::size_t fds(int process) const;

  int processes() const { return processes_; }
  std::uint64_t granule() const { return granule_; }
  const std::map<int, Buffer>& buffers() const { return buffers_; }
  const std::map<int, Fds>& fd_holders() const { return fds_; }
  const std::map<int, Allocation>& memory() const { return memory_; }

 private:
  Due allocate(const Step& step);
  std::optional<Due> modify(const Step& step);
  std::optional<Due> access(const Step& step);
  std::optional<Due> exporting(const Step& step);
  std::optional<Due> send(const Step& step);
  std::optional<Due> receive(const Step& step);
  std::optional<Due> from_fds(const Step& step);
  std::optional<Due> importing(const Step& step);
  std::optional<Due> close(const Step& step);
  Due kill(const Step& step);

  Buffer* buffer_of(const Step& step);
  Fds* fds_of(const Step& step, Fds::What what);
  int new_allocation(std::uint64_t size);
  std::vector<Window> fill(const Buffer& buffer, int seed);
  std::vector<Window> contents(const Buffer& buffer) const;
  // The clause that says why one of these is still held, given who holds it.
  std::string why_held(const std::vector<int>& allocations, int process) const;

  int processes_;
  std::uint64_t granule_;
  std::map<int, Allocation> memory_;
  std::map<int, Buffer> buffers_;
  std::map<int, Fds> fds_;
  int allocations_ = 0;
};

}  // namespace cts::walk
