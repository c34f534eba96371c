#include "tap/oracle.hpp"

#include <algorithm>
#include <iterator>

namespace tap {
namespace {

// Calls that undo begin to do so when they start; the others have made something when they end. In
// this order a value that the driver gives out again is free before it is taken.
bool undoes(std::string_view name) {
  return name == "cuMemRelease" || name == "cuMemUnmap" || name == "cuMemAddressFree" ||
         name == "cuMemPoolDestroy" || name == "cuMemFree" || name == "cuMemFreeAsync";
}

std::uint64_t moment(const Call& call) {
  return call.start_ns + (undoes(call.name) ? 0 : call.duration_ns);
}

// The argument that says what an undoing call is about.
std::uint64_t object_of(const Call& call) { return call.arguments[0]; }

}  // namespace

std::string_view name_of(Rule rule) {
  switch (rule) {
    case Rule::undone_twice: return "undone twice";
    case Rule::dead_handle: return "dead handle";
    case Rule::wrong_range: return "wrong range";
    case Rule::mapped_when_freed: return "mapped when freed";
    case Rule::order: return "order";
    case Rule::leak: return "leak";
    case Rule::fd_open: return "descriptor open";
  }
  return "";
}

std::string Held::to_string() const {
  return std::to_string(references) + " references, " + std::to_string(mappings) + " mappings, " +
         std::to_string(reservations) + " reservations, " + std::to_string(others) +
         " pools and plain allocations";
}

void Oracle::enter(std::vector<Call> calls) {
  std::stable_sort(calls.begin(), calls.end(),
                   [](const Call& a, const Call& b) { return moment(a) < moment(b); });
  for (const Call& call : calls) enter(call);
}

void Oracle::enter(const Call& call) {
  Process& process = processes_[call.pid];
  if (call.result == Call::kUnfinished) {
    // A driver may die of a handle that it has forgotten.
    if (call.name == "cuMemExportToShareableHandle" || call.name == "cuMemMap") use(process, call);
    return;
  }
  if (call.injected) {
    if (!undoes(call.name)) return;
    process.excused.emplace(call.name, object_of(call));
    if (call.name == "cuMemRelease") process.references.erase(object_of(call));
    if (call.name == "cuMemUnmap") process.mappings.erase(object_of(call));
    if (call.name == "cuMemAddressFree") process.reservations.erase(object_of(call));
    process.others.erase(object_of(call));
    return;
  }
  if (call.name == "cuMemRelease") return release(process, call);
  if (call.name == "cuMemUnmap") return unmap(process, call);
  if (call.name == "cuMemAddressFree") return free_address(process, call);
  if (call.name == "cuMemExportToShareableHandle") use(process, call);
  if (call.name == "cuMemMap") use(process, call);
  if (undoes(call.name)) {
    // Memory of calls that are not traced is given back too: only the driver knows better.
    if (process.others.erase(object_of(call)) == 0 && call.result == 1 /* INVALID_VALUE */ &&
        !process.excused.contains({call.name, object_of(call)})) {
      find(Rule::undone_twice, call, "gives back what is not held");
    }
    return;
  }
  if (call.result != 0) return;
  if (call.name == "cuMemCreate" || call.name == "cuMemImportFromShareableHandle" ||
      call.name == "cuMemRetainAllocationHandle") {
    process.excused.erase({"cuMemRelease", call.argument("handle")});
    process.released.erase(call.argument("handle"));
    Reference& reference = process.references[call.argument("handle")];
    if (++reference.count == 1) reference.made = call;
  } else if (call.name == "cuMemAddressReserve") {
    process.excused.erase({"cuMemAddressFree", call.argument("ptr")});
    process.reservations[call.argument("ptr")] = {call.argument("size"), 0, call};
  } else if (call.name == "cuMemMap") {
    process.excused.erase({"cuMemUnmap", call.argument("ptr")});
    process.mappings[call.argument("ptr")] = {call.argument("size"), call.argument("handle"), call};
  } else if (call.name == "cuMemPoolCreate" || call.name == "cuMemPoolImportFromShareableHandle" ||
             call.name == "cuMemAlloc" || call.name == "cuMemAllocFromPoolAsync" ||
             call.name == "cuMemPoolImportPointer") {
    process.others[call.arguments[0]] = call;
  } else if (call.name == kDescriptorOpenAtExit) {
    find(Rule::fd_open, call, "an exported descriptor is open when the process ends");
  }
}

void Oracle::release(Process& process, const Call& call) {
  const std::uint64_t handle = call.argument("handle");
  const auto found = process.references.find(handle);
  if (found == process.references.end()) {
    if (is_dead(process, call) && !process.excused.contains({call.name, handle})) {
      find(Rule::undone_twice, call, "releases a reference that is not held");
    }
    return;
  }
  if (call.result != 0 || --found->second.count > 0) return;
  process.references.erase(found);
  process.released.insert(handle);
  for (const auto& [pointer, mapping] : process.mappings) {
    if (mapping.handle == handle) {
      find(Rule::order, call, "the last release of an allocation that is still mapped");
    }
  }
}

void Oracle::unmap(Process& process, const Call& call) {
  const std::uint64_t begin = call.argument("ptr");
  const std::uint64_t end = begin + call.argument("size");
  const auto first = process.mappings.lower_bound(begin);
  auto last = first;
  std::uint64_t covered = begin;
  while (last != process.mappings.end() && last->first == covered && covered < end) {
    covered += last->second.size;
    ++last;
  }
  if (first != last && covered == end) {
    if (call.result == 0) process.mappings.erase(first, last);
    return;
  }
  if (process.excused.contains({call.name, begin})) return;
  const bool inside = first != process.mappings.begin() &&
                      begin < std::prev(first)->first + std::prev(first)->second.size;
  if (first == last && !inside) {
    find(Rule::undone_twice, call, "unmaps what is not mapped");
  } else {
    find(Rule::wrong_range, call, "unmaps other bytes than were mapped");
  }
}

void Oracle::free_address(Process& process, const Call& call) {
  const std::uint64_t begin = call.argument("ptr");
  const auto found = process.reservations.find(begin);
  if (found == process.reservations.end()) {
    if (!process.excused.contains({call.name, begin})) {
      find(Rule::undone_twice, call, "frees addresses that are not reserved");
    }
    return;
  }
  if (found->second.size != call.argument("size")) {
    find(Rule::wrong_range, call, "frees another size than was reserved");
    return;
  }
  const auto mapped = process.mappings.lower_bound(begin);
  if (mapped != process.mappings.end() && mapped->first < begin + found->second.size) {
    find(Rule::mapped_when_freed, call, "frees addresses that have memory mapped");
  }
  if (call.result == 0) process.reservations.erase(found);
}

void Oracle::use(const Process& process, const Call& call) {
  if (is_dead(process, call)) find(Rule::dead_handle, call, "uses a handle that is not held");
}

// Handles come from calls that are not traced as well (multicast objects): what was never seen is
// dead when the driver says so.
bool Oracle::is_dead(const Process& process, const Call& call) {
  const std::uint64_t handle = call.argument("handle");
  if (process.references.contains(handle)) return false;
  const bool refused = call.result == 1 /* INVALID_VALUE */ || call.result == 400 /* INVALID_HANDLE */;
  return refused || process.released.contains(handle);
}

void Oracle::find(Rule rule, const Call& call, const std::string& text) {
  findings_.push_back({rule, call, text + ": " + call.to_string()});
}

Held Oracle::held(pid_t pid) const {
  const auto found = processes_.find(pid);
  if (found == processes_.end()) return {};
  Held held;
  for (const auto& [handle, reference] : found->second.references) {
    held.references += static_cast<std::size_t>(reference.count);
  }
  held.mappings = found->second.mappings.size();
  held.reservations = found->second.reservations.size();
  held.others = found->second.others.size();
  return held;
}

std::vector<Finding> Oracle::leaks() const {
  std::vector<Finding> left;
  const auto add = [&](const Call& call, const std::string& text) {
    left.push_back({Rule::leak, call, text + ": " + call.to_string()});
  };
  for (const auto& [pid, process] : processes_) {
    for (const auto& [handle, reference] : process.references) {
      add(reference.made, std::to_string(reference.count) + " references are left");
    }
    for (const auto& [pointer, mapping] : process.mappings) add(mapping.made, "a mapping is left");
    for (const auto& [pointer, reserved] : process.reservations) {
      add(reserved.made, "a reservation is left");
    }
    for (const auto& [object, made] : process.others) {
      add(made, made.name.starts_with("cuMemPool") ? "a pool is left" : "an allocation is left");
    }
  }
  std::stable_sort(left.begin(), left.end(), [](const Finding& a, const Finding& b) {
    return a.call.sequence < b.call.sequence;
  });
  return left;
}

}  // namespace tap
