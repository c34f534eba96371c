// The descriptor: what it owns, when it lets go, and what happens when something goes wrong.
#include <algorithm>

#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "descriptor: a shorter alias covers only the allocations its size needs",
                "[DESC-06][IMP-11]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer first = allocate_chunks(exporter, resource, {1, 2});
  const Buffer whole = exporter.modify(resource, first, first.size + 1).value();
  exporter.fill(whole, 111);
  const FdSet before = exporter.fds();
  const Descriptor descriptor = exporter.export_descriptor(first).value();
  s.check_fds_added("DESC-06", exporter, before, 2, "with the shorter buffer exported");
  s.check_equal("DESC-06", "size", descriptor.size, first.size);
  s.check_equal("DESC-06", "allocations", descriptor.sizes.size(), std::size_t{2});
  const Buffer imported = exporter.import(resource, descriptor).value();
  s.check_equal("DESC-06 IMP-11", "size of the import", imported.size, first.size);
  s.check_bytes("DESC-06", exporter, imported, 111, "of the shorter buffer");
}

VMMCTS_SCENARIO("rawfd", "descriptor: a size below the sum imports as a buffer of that size",
                "[IMP-11][DESC-05]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  worker.fill(buffer, 112);
  const Descriptor exported = worker.export_descriptor(buffer).value();
  const std::uint64_t shorter = exported.sizes[0] + 4096;
  const Descriptor rebuilt =
      worker.from_fds(exported.fds, exported.sizes, {{"size", shorter}}).value();
  s.check_equal("DESC-05", "size of the descriptor", rebuilt.size, shorter);
  const Buffer imported = worker.import(resource, rebuilt).value();
  s.check_equal("IMP-11", "size of the import", imported.size, shorter);
  s.check_bytes("IMP-11", worker, imported, 112, "of the shorter import");
}

VMMCTS_SCENARIO("core", "descriptor: the fds are close-on-exec", "[DESC-07]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  for (const int fd : descriptor.fds) {
    s.check("DESC-07", is_close_on_exec(worker.pid(), fd), "an exported fd is close-on-exec");
  }
}

VMMCTS_SCENARIO("rawfd", "descriptor: the duplicates of from_fds are close-on-exec", "[RAW-18]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  const Descriptor exported = worker.export_descriptor(buffer).value();
  const Descriptor rebuilt = worker.from_fds(exported.fds, exported.sizes).value();
  for (const int fd : rebuilt.fds) {
    s.check("RAW-18", is_close_on_exec(worker.pid(), fd), "a duplicate is close-on-exec");
  }
}

VMMCTS_SCENARIO("core", "descriptor: after release everything asked of it is an error",
                "[DESC-09][DESC-10]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  worker.close(descriptor.id).value();
  s.check("DESC-09", !worker.descriptor(descriptor).ok(), "its fds are not handed out again");
  const auto refused = worker.import(resource, descriptor);
  s.check("DESC-09", !refused.ok(), "it does not import");
  // The numbers go to other files; releasing again must leave those alone.
  std::vector<int> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(worker.call("open_fd", {{"kind", "memfd"}}).value().at("fd"));
  }
  s.check("DESC-10",
          std::find(others.begin(), others.end(), descriptor.fds[0]) != others.end(),
          "the numbers are free for others");
  const FdSet with_others = worker.fds();
  s.check("DESC-10", worker.close(descriptor.id).ok(), "releasing again is a no-op");
  worker.drop(descriptor.id).value();
  s.check_fds("DESC-10", worker, with_others, "after the second release");
}

VMMCTS_SCENARIO("core", "descriptor: one fd closed behind its back does not keep the others open",
                "[DESC-12]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1, 1});
  for (std::size_t stolen = 0; stolen < 3; ++stolen) {
    const auto in_case = s.in_case("fd " + std::to_string(stolen) + " of 3");
    const FdSet before = worker.fds();
    const Descriptor descriptor = worker.export_descriptor(buffer).value();
    worker.call("close_fd", {{"fd", descriptor.fds[stolen]}}).value();
    worker.drop(descriptor.id).value();
    s.check_fds("DESC-12", worker, before, "after the release");
  }
}

VMMCTS_SCENARIO("core", "descriptor: alive at process exit it makes no noise", "[DESC-14]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = allocate_chunks(exporter, resource, {1, 1});
  exporter.export_descriptor(buffer).value();
  exporter.import(resource, exporter.export_descriptor(buffer).value()).value();
  const std::size_t log_before = exporter.log().size();
  const ExitStatus status = exporter.exit("exit");
  s.check("DESC-14", status.clean(), "the process exits with status 0, not " + status.to_string());
  s.check("DESC-14", exporter.log().size() == log_before,
          "it prints nothing: " + exporter.log().substr(log_before));
  s.check("DESC-14", s.free_memory() >= free, "the memory is back");
}

VMMCTS_SCENARIO("core", "descriptor: its fds are the ones that the driver returned", "[DESC-15][EXP-01]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  for (const Layout& layout : std::vector<Layout>{{1}, {1, 2, 1}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(worker, resource, layout);
    const auto exported = worker.export_descriptor(buffer);
    s.check_calls("EXP-01", exported.operation(), exported.calls,
                  std::vector<std::string>(layout.size(), "cuMemExportToShareableHandle"));
    std::vector<int> returned;
    for (const tap::Call& call : only(exported.calls, "cuMemExportToShareableHandle")) {
      returned.push_back(call.fd_out);
    }
    s.check_equal("DESC-15", "the descriptor's fds", exported.value().fds, returned);
  }
}
