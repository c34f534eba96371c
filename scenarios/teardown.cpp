// Teardown and reservations, on the call trace.
#include <map>

#include "shares.hpp"

using namespace cts;

namespace {

// Replays the driver calls of a run and tells what was undone in the wrong order, twice or never.
class Books {
 public:
  explicit Books(Scenario& s) : s_(s) {}

  void enter(const tap::Call& call) {
    if (call.result != 0) return;
    if (call.name == "cuMemCreate" || call.name == "cuMemImportFromShareableHandle") {
      ++references_[call.argument("handle")];
    } else if (call.name == "cuMemRelease") {
      release(call);
    } else if (call.name == "cuMemAddressReserve") {
      reservations_[call.argument("ptr")] = call.argument("size");
    } else if (call.name == "cuMemAddressFree") {
      const auto found = reservations_.find(call.argument("ptr"));
      s_.check("TEAR-01", found != reservations_.end() && found->second == call.argument("size"),
               "a reservation is freed with its exact pointer and size: " + call.to_string());
      if (found != reservations_.end()) reservations_.erase(found);
      for (const auto& [pointer, mapped] : mappings_) {
        s_.check("TEAR-01",
                 pointer < call.argument("ptr") ||
                     pointer >= call.argument("ptr") + call.argument("size"),
                 "nothing is mapped in a reservation that is freed: " + call.to_string());
      }
    } else if (call.name == "cuMemMap") {
      mappings_[call.argument("ptr")] = {call.argument("size"), call.argument("handle")};
    } else if (call.name == "cuMemUnmap") {
      const auto found = mappings_.find(call.argument("ptr"));
      s_.check("TEAR-01", found != mappings_.end() && found->second.size == call.argument("size"),
               "a mapping is unmapped whole and once: " + call.to_string());
      if (found != mappings_.end()) mappings_.erase(found);
    }
  }

  void check_closed() {
    s_.check_equal("TEAR-01", "mappings left", mappings_.size(), std::size_t{0});
    s_.check_equal("TEAR-01", "reservations left", reservations_.size(), std::size_t{0});
    s_.check_equal("TEAR-01", "allocations left", references_.size(), std::size_t{0});
  }

 private:
  struct Mapped {
    std::uint64_t size;
    std::uint64_t handle;
  };

  void release(const tap::Call& call) {
    const std::uint64_t handle = call.argument("handle");
    const auto found = references_.find(handle);
    s_.check("TEAR-01", found != references_.end(), "a release has its reference: " + call.to_string());
    if (found == references_.end() || --found->second > 0) return;
    references_.erase(found);
    for (const auto& [pointer, mapped] : mappings_) {
      s_.check("TEAR-01", mapped.handle != handle,
               "an allocation is unmapped before its last release: " + call.to_string());
    }
  }

  Scenario& s_;
  std::map<std::uint64_t, int> references_;
  std::map<std::uint64_t, std::uint64_t> reservations_;
  std::map<std::uint64_t, Mapped> mappings_;
};

}  // namespace

VMMCTS_SCENARIO("core", "teardown: unmap then release then free and each exactly once", "[TEAR-01]") {
  if (!s.plan().tap) throw NotExercised("the driver calls are not traced (no tap)");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t start = worker.call_log()->position();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  const Grown grown = grow_along(worker, resource, GrowPath::moved,
                                 [&] { return worker.modify(resource, buffer, 1).value(); });
  const Descriptor descriptor = worker.export_descriptor(grown.result).value();
  const Buffer imported = worker.import(resource, descriptor).value();
  for (const int id : {buffer.id, descriptor.id, grown.input.id, imported.id, grown.result.id}) {
    worker.drop(id).value();
  }
  Books books(s);
  for (const tap::Call& call : worker.calls_since(start)) books.enter(call);
  books.check_closed();
}

VMMCTS_SCENARIO("core", "import: one reservation of the sum of the sizes", "[IMP-09]") {
  if (!s.plan().tap) throw NotExercised("the driver calls are not traced (no tap)");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  for (const Layout& layout : std::vector<Layout>{{1}, {1, 2, 1}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(worker, resource, layout);
    const Descriptor descriptor = worker.export_descriptor(buffer).value();
    const auto imported = worker.import(resource, descriptor);
    s.check("IMP-09", imported.ok(), "the import works");
    std::vector<std::uint64_t> reserved;
    for (const tap::Call& call : only(imported.calls, "cuMemAddressReserve")) {
      reserved.push_back(call.argument("size"));
    }
    s.check_equal("IMP-09", "bytes reserved", reserved, std::vector<std::uint64_t>{buffer.size});
  }
}

VMMCTS_SCENARIO("core", "export: the allocations are exported in address order", "[EXP-01]") {
  if (!s.plan().tap) throw NotExercised("the driver calls are not traced (no tap)");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t unit = granule(worker, resource);
  const std::uint64_t start = worker.call_log()->position();
  Buffer buffer = worker.allocate(resource, unit).value();
  for (int chunk = 2; chunk <= 4; ++chunk) {
    buffer = worker.modify(resource, buffer, chunk * unit).value();
  }
  std::vector<std::uint64_t> created;
  for (const tap::Call& call : only(worker.calls_since(start), "cuMemCreate")) {
    created.push_back(call.argument("handle"));
  }
  const auto exported = worker.export_descriptor(buffer);
  std::vector<std::uint64_t> handles;
  for (const tap::Call& call : only(exported.calls, "cuMemExportToShareableHandle")) {
    handles.push_back(call.argument("handle"));
  }
  s.check_equal("EXP-01", "allocations exported", handles, created);
}

VMMCTS_SCENARIO("core", "endurance: a hundred rounds of everything in one process", "[TEAR-03]") {
  constexpr int kRounds = 100;
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const FdSet before = worker.fds();
  const std::uint64_t free = s.free_memory();
  for (int round = 0; round < kRounds; ++round) {
    const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
    const Descriptor descriptor = worker.export_descriptor(buffer).value();
    const Buffer imported = worker.import(resource, descriptor).value();
    for (const int id : {buffer.id, descriptor.id, imported.id}) worker.drop(id).value();
  }
  s.check_fds("TEAR-03", worker, before, "after all rounds");
  s.check_free_memory("TEAR-03", free, "after all rounds");
}
