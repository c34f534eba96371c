#include "walk_model.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "protocol/pattern.hpp"

namespace cts::walk {
namespace {

// The seed whose pattern begins with `byte` at `offset`. The memory may be at another offset than
// when it was written; within one window the pattern depends on its first byte alone.
int seed_for(std::uint8_t byte, std::uint64_t offset) {
  return static_cast<std::uint8_t>(byte - pattern_byte(0, offset));
}

// Adds a window, to the one before when they touch and have one seed.
void add(std::vector<Window>& windows, const Window& window) {
  if (!windows.empty()) {
    Window& last = windows.back();
    if (last.offset + last.size == window.offset && last.seed == window.seed) {
      last.size += window.size;
      return;
    }
  }
  windows.push_back(window);
}

std::uint64_t sum(const std::vector<std::uint64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

Expected refused(const std::string& clauses, const std::string& kind = {}) {
  Expected expected;
  expected.ok = false;
  expected.kind = kind;
  expected.clauses = clauses;
  expected.fd_clauses = clauses;
  expected.leak_clauses = clauses;
  expected.early_clauses = clauses;
  return expected;
}

}  // namespace

bool Buffer::is_marked(const std::map<int, Allocation>& memory) const {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < allocations.size() && covered < size; ++i) {
    if (imported[i]) return true;
    covered += memory.at(allocations[i]).size;
  }
  return false;
}

Model::Model(int processes, std::uint64_t granule) : processes_(processes), granule_(granule) {}

std::optional<Due> Model::apply(const Step& step) {
  std::optional<Due> due;
  switch (step.op) {
    case Op::allocate: due = allocate(step); break;
    case Op::alias:
    case Op::grow: due = modify(step); break;
    case Op::fill:
    case Op::verify: due = access(step); break;
    case Op::exporting: due = exporting(step); break;
    case Op::send: due = send(step); break;
    case Op::lose:
    case Op::receive: due = receive(step); break;
    case Op::from_fds: due = from_fds(step); break;
    case Op::importing: due = importing(step); break;
    case Op::close:
    case Op::drop: due = close(step); break;
    case Op::kill: due = kill(step); break;
  }
  if (due) due->action.step = step;
  return due;
}

std::uint64_t Model::held() const {
  std::set<int> pinned;
  for (const auto& [id, buffer] : buffers_) {
    if (buffer.open) pinned.insert(buffer.allocations.begin(), buffer.allocations.end());
  }
  for (const auto& [id, fds] : fds_) {
    if (fds.open) pinned.insert(fds.allocations.begin(), fds.allocations.end());
  }
  std::uint64_t bytes = 0;
  for (const int allocation : pinned) bytes += memory_.at(allocation).size;
  return bytes;
}

std::size_t Model::fds(int process) const {
  std::size_t count = 0;
  for (const auto& [id, fds] : fds_) {
    if (fds.what != Fds::What::parcel && fds.process == process && fds.open) {
      count += fds.allocations.size();
    }
  }
  return count;
}

Buffer* Model::buffer_of(const Step& step) {
  const auto found = buffers_.find(step.object);
  if (found == buffers_.end() || found->second.process != step.process) return nullptr;
  return &found->second;
}

Fds* Model::fds_of(const Step& step, Fds::What what) {
  const auto found = fds_.find(step.object);
  if (found == fds_.end() || found->second.what != what) return nullptr;
  if (what != Fds::What::parcel && found->second.process != step.process) return nullptr;
  return &found->second;
}

int Model::new_allocation(std::uint64_t size) {
  const std::vector<std::optional<std::uint8_t>> unwritten(size / granule_);
  memory_[++allocations_] = {size, unwritten, unwritten};
  return allocations_;
}

Due Model::allocate(const Step& step) {
  Due due;
  const std::uint64_t size = step.granules * granule_;
  due.action.bytes = size - std::min<std::uint64_t>(size, step.less);
  Buffer buffer{step.process, Origin::allocated, {}, {}, size, size, true};
  if (size > 0) {
    buffer.allocations.push_back(new_allocation(size));
    buffer.imported.push_back(false);
  }
  buffers_[step.out] = buffer;
  due.expected.clauses = "ALLOC-04";
  due.expected.size = size;
  due.expected.size_clauses = "ALLOC-01";
  due.expected.is_mapped = false;
  due.expected.fd_clauses = "DESC-04";
  due.expected.leak_clauses = due.expected.early_clauses = "ALLOC-04";
  return due;
}

std::optional<Due> Model::modify(const Step& step) {
  const Buffer* input = buffer_of(step);
  if (input == nullptr) return std::nullopt;
  const std::uint64_t more = step.granules * granule_;
  Due due;
  due.action.bytes = (step.op == Op::grow ? input->range : 0) + more;
  due.action.bytes -= std::min<std::uint64_t>(more, step.less);
  if ((due.action.bytes > input->range) != (step.op == Op::grow)) return std::nullopt;
  if (!input->open) {
    due.expected = refused("GROW-10");
    return due;
  }
  Buffer result = *input;
  result.origin = Origin::derived;
  Expected& expected = due.expected;
  if (step.op == Op::grow) {
    result.allocations.push_back(new_allocation(more));
    result.imported.push_back(false);
    result.range = result.size = input->range + more;
    expected.clauses = input->is_marked(memory_) ? "GROW-14" : "GROW-01";
    expected.leak_clauses = expected.early_clauses = "GROW-03";
  } else {
    result.size = std::max(due.action.bytes, input->size);
    expected.clauses = expected.leak_clauses = expected.early_clauses = "GROW-02";
    expected.same_pointer_as = step.object;
    expected.no_driver_calls = true;
  }
  expected.size = result.size;
  expected.size_clauses = expected.clauses;
  expected.fd_clauses = "DESC-04";
  buffers_[step.out] = result;
  return due;
}

std::vector<Window> Model::fill(const Buffer& buffer, int seed) {
  std::vector<Window> windows;
  std::uint64_t offset = 0;
  for (const int id : buffer.allocations) {
    Allocation& allocation = memory_.at(id);
    for (std::size_t g = 0; g < allocation.first.size(); ++g, offset += granule_) {
      const auto write = [&](std::optional<std::uint8_t>& byte, std::uint64_t at) {
        if (at + kWindowBytes > buffer.size) return;
        byte = pattern_byte(seed, at);
        add(windows, {at, kWindowBytes, seed});
      };
      write(allocation.first[g], offset);
      write(allocation.last[g], offset + granule_ - kWindowBytes);
    }
  }
  return windows;
}

std::vector<Window> Model::contents(const Buffer& buffer) const {
  std::vector<Window> windows;
  std::uint64_t offset = 0;
  for (const int id : buffer.allocations) {
    const Allocation& allocation = memory_.at(id);
    for (std::size_t g = 0; g < allocation.first.size(); ++g, offset += granule_) {
      const auto look = [&](const std::optional<std::uint8_t>& byte, std::uint64_t at) {
        if (!byte || at + kWindowBytes > buffer.size) return;
        add(windows, {at, kWindowBytes, seed_for(*byte, at)});
      };
      look(allocation.first[g], offset);
      look(allocation.last[g], offset + granule_ - kWindowBytes);
    }
  }
  return windows;
}

std::optional<Due> Model::access(const Step& step) {
  const Buffer* buffer = buffer_of(step);
  if (buffer == nullptr) return std::nullopt;
  Due due;
  if (!buffer->open) {
    // A window that any buffer would have; a buffer of no bytes has nothing to refuse.
    if (buffer->size < kWindowBytes) return std::nullopt;
    due.action.windows = {{0, kWindowBytes, step.seed}};
    due.expected = refused("ALLOC-08");
    return due;
  }
  due.action.windows = step.op == Op::fill ? fill(*buffer, step.seed % 256) : contents(*buffer);
  // Which promise of bytes it is depends on where the buffer came from.
  due.expected.clauses = buffer->is_marked(memory_)              ? "PIN-04"
                         : buffer->origin == Origin::derived ? "GROW-08"
                                                                 : "ALLOC-06";
  due.expected.fd_clauses = "DESC-04";
  due.expected.leak_clauses = due.expected.early_clauses = due.expected.clauses;
  return due;
}

std::optional<Due> Model::exporting(const Step& step) {
  const Buffer* buffer = buffer_of(step);
  if (buffer == nullptr) return std::nullopt;
  Due due;
  if (!buffer->open) {
    due.expected = refused("ALLOC-08");
    return due;
  }
  if (buffer->is_marked(memory_)) {
    const std::string clauses = buffer->origin == Origin::imported ? "PROV-01" : "PROV-07";
    due.expected = refused(clauses, "RuntimeError");
    due.expected.says = {"imported", "another process", "cannot be exported", "forward", "copy"};
    due.expected.no_driver_calls = true;
    due.expected.fd_clauses = due.expected.leak_clauses = due.expected.early_clauses = "PROV-10";
    return due;
  }
  Fds made{Fds::What::descriptor, step.process, {}, {}, buffer->size, true};
  std::uint64_t covered = 0;
  for (const int id : buffer->allocations) {
    if (covered >= buffer->size) break;
    made.allocations.push_back(id);
    made.sizes.push_back(memory_.at(id).size);
    covered += memory_.at(id).size;
  }
  due.expected.clauses = "PROV-08";
  due.expected.size = made.size;
  due.expected.size_clauses = "DESC-05";
  due.expected.sizes = made.sizes;
  due.expected.fd_clauses = "DESC-02";
  due.expected.leak_clauses = due.expected.early_clauses = "PIN-09";
  fds_[step.out] = made;
  return due;
}

std::optional<Due> Model::send(const Step& step) {
  const Fds* from = fds_of(step, Fds::What::descriptor);
  if (from == nullptr || !from->open) return std::nullopt;
  Fds parcel = *from;
  parcel.what = Fds::What::parcel;
  fds_[step.out] = parcel;
  Due due;
  due.expected.clauses = due.expected.fd_clauses = "DESC-04";
  due.expected.leak_clauses = due.expected.early_clauses = "PIN-07";
  return due;
}

std::optional<Due> Model::receive(const Step& step) {
  const Fds* parcel = fds_of(step, Fds::What::parcel);
  if (parcel == nullptr) return std::nullopt;
  Fds received = *parcel;
  fds_.erase(step.object);
  if (step.op == Op::receive) {
    received.what = Fds::What::raw;
    received.process = step.process;
    fds_[step.out] = received;
  }
  Due due;
  due.expected.clauses = due.expected.fd_clauses = "DESC-04";
  due.expected.leak_clauses = "PIN-07";
  due.expected.early_clauses = why_held(received.allocations, step.process);
  return due;
}

std::optional<Due> Model::from_fds(const Step& step) {
  const Fds* raw = fds_of(step, Fds::What::raw);
  if (raw == nullptr) return std::nullopt;
  Fds made{Fds::What::descriptor, step.process, {}, {}, 0, true};
  for (const int index : step.order) {
    if (index < 0 || static_cast<std::size_t>(index) >= raw->sizes.size()) return std::nullopt;
    made.allocations.push_back(raw->allocations[index]);
    made.sizes.push_back(raw->sizes[index]);
  }
  if (step.flaw != Flaw::none) {
    if (made.sizes.empty()) return std::nullopt;
    if (step.flaw == Flaw::larger) made.sizes.back() += granule_;
    if (step.flaw == Flaw::smaller) made.sizes.back() -= granule_;
    if (step.flaw == Flaw::swapped) std::swap(made.sizes.front(), made.sizes.back());
    if (made.sizes.back() == 0) return std::nullopt;
  }
  made.size = sum(made.sizes);
  made.size -= std::min<std::uint64_t>(made.size, step.less);
  if (made.size == 0 && !made.sizes.empty()) return std::nullopt;
  Due due;
  due.action.size = made.size;
  due.action.sizes = made.sizes;
  due.expected.clauses = due.expected.size_clauses = "DESC-05";
  due.expected.size = made.size;
  due.expected.sizes = made.sizes;
  due.expected.fd_clauses = "DESC-02";
  due.expected.leak_clauses = due.expected.early_clauses = "PIN-09";
  fds_[step.out] = made;
  return due;
}

std::optional<Due> Model::importing(const Step& step) {
  const Fds* descriptor = fds_of(step, Fds::What::descriptor);
  if (descriptor == nullptr) return std::nullopt;
  Due due;
  if (!descriptor->open) {
    due.expected = refused("DESC-09");
    return due;
  }
  for (std::size_t i = 0; i < descriptor->sizes.size(); ++i) {
    if (descriptor->sizes[i] == memory_.at(descriptor->allocations[i]).size) continue;
    due.expected = refused("IMP-06");
    return due;
  }
  Buffer made{step.process,
              Origin::imported,
              descriptor->allocations,
              std::vector<bool>(descriptor->allocations.size(), true),
              sum(descriptor->sizes),
              descriptor->size,
              true};
  buffers_[step.out] = made;
  due.expected.clauses = "IMP-04";
  due.expected.size = made.size;
  due.expected.size_clauses = "IMP-11";
  due.expected.is_mapped = true;
  due.expected.fd_clauses = "PIN-03";
  due.expected.leak_clauses = due.expected.early_clauses = "PIN-05";
  return due;
}

std::string Model::why_held(const std::vector<int>& allocations, int process) const {
  const auto has_one_of = [&](const std::vector<int>& others) {
    return std::find_first_of(others.begin(), others.end(), allocations.begin(),
                              allocations.end()) != others.end();
  };
  for (const auto& [id, fds] : fds_) {
    if (!fds.open || !has_one_of(fds.allocations)) continue;
    return fds.what == Fds::What::descriptor ? "PIN-01"
           : fds.what == Fds::What::raw      ? "PIN-08"
                                             : "PIN-07";
  }
  for (const auto& [id, buffer] : buffers_) {
    if (!buffer.open || !has_one_of(buffer.allocations)) continue;
    return buffer.process == process ? "GROW-08" : "PIN-04";
  }
  return "GROW-08";  // somebody else's memory went
}

std::optional<Due> Model::close(const Step& step) {
  Due due;
  Expected& expected = due.expected;
  if (Buffer* buffer = buffer_of(step)) {
    static const std::map<Origin, std::string> kLeak{{Origin::allocated, "PIN-02"},
                                                     {Origin::imported, "PIN-05"},
                                                     {Origin::derived, "GROW-09"}};
    expected.clauses = "ALLOC-08";
    expected.fd_clauses = "DESC-08";
    expected.leak_clauses = kLeak.at(buffer->origin);
    const Buffer closed = *buffer;
    buffer->open = false;
    if (step.op == Op::drop) buffers_.erase(step.object);
    expected.early_clauses = why_held(closed.allocations, step.process);
    return due;
  }
  Fds* fds = fds_of(step, Fds::What::descriptor);
  if (fds == nullptr && step.op == Op::drop) fds = fds_of(step, Fds::What::raw);
  if (fds == nullptr) return std::nullopt;
  expected.clauses = "DESC-10";
  expected.fd_clauses = "DESC-03";
  expected.leak_clauses = "PIN-09";
  const Fds closed = *fds;
  fds->open = false;
  if (step.op == Op::drop) fds_.erase(step.object);
  expected.early_clauses = why_held(closed.allocations, step.process);
  return due;
}

Due Model::kill(const Step& step) {
  std::erase_if(buffers_, [&](const auto& entry) { return entry.second.process == step.process; });
  std::erase_if(fds_, [&](const auto& entry) {
    return entry.second.what != Fds::What::parcel && entry.second.process == step.process;
  });
  Due due;
  due.expected.clauses = due.expected.fd_clauses = "PIN-10";
  due.expected.leak_clauses = due.expected.early_clauses = "PIN-10";
  return due;
}

}  // namespace cts::walk
