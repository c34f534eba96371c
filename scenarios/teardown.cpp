// Teardown and reservations, on the call trace. That each thing is undone once and in order is what
// the oracle of the trace judges at the end of every scenario.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "teardown: unmap then release then free and each exactly once", "[TEAR-01]") {
  if (!s.plan().tap) throw NotExercised("the driver calls are not traced (no tap)");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const tap::Held before = s.held(worker);
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  const Grown grown = grow_along(worker, resource, GrowPath::moved,
                                 [&] { return worker.modify(resource, buffer, 1).value(); });
  const Descriptor descriptor = worker.export_descriptor(grown.result).value();
  const Buffer imported = worker.import(resource, descriptor).value();
  for (const int id : {buffer.id, descriptor.id, grown.input.id, imported.id, grown.result.id}) {
    worker.drop(id).value();
  }
  s.check_held("TEAR-01", worker, before, "after everything was closed");
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
