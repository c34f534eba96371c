// What keeps physical memory allocated, and what does not: seen from a third process.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "pinning: export and release and close give the memory back at once",
                "[PIN-02][PIN-09]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const std::uint64_t free = s.free_memory();
  for (const Layout& layout : std::vector<Layout>{{1}, {1, 2, 3}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, resource, layout);
    s.check_free_memory("PIN-02", free - buffer.size, "after the allocation");
    const Descriptor descriptor = exporter.export_descriptor(buffer).value();
    s.check_free_memory("PIN-09", free - buffer.size, "with a descriptor that nobody imports");
    exporter.drop(descriptor.id).value();
    exporter.close(buffer.id).value();
    s.check_free_memory("PIN-02", free, "after the buffer closed");
    exporter.drop(buffer.id).value();
  }
}

VMMCTS_SCENARIO("core", "pinning: the descriptor of a receiver that never imports costs its fds only",
                "[PIN-09]") {
  Worker& exporter = s.worker("exporter");
  Worker& receiver = s.worker("receiver");
  const Resource resource = exporter.resource().value();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = allocate_chunks(exporter, resource, {1, 1});
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  const FdSet before = receiver.fds();
  const Descriptor received = forward(exporter, exported, receiver);
  s.check_fds_added("PIN-09", receiver, before, 2, "with the descriptor received");
  exporter.drop(exported.id).value();
  exporter.close(buffer.id).value();
  s.check_free_memory("PIN-09", free - buffer.size, "with the receiver's descriptor");
  receiver.drop(received.id).value();
  s.check_fds("PIN-09", receiver, before, "after it was dropped");
  s.check_free_memory("PIN-09", free, "after it was dropped");
}

VMMCTS_SCENARIO("core", "pinning: an import keeps the memory after the exporter let go",
                "[PIN-03][PIN-04][PIN-05]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const std::uint64_t free = s.free_memory();
  const FdSet importer_before = importer.fds();
  for (const Layout& layout : std::vector<Layout>{{1}, {2, 1}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, source, layout);
    exporter.fill(buffer, 121);
    const Buffer imported = share(exporter, buffer, importer, into);
    s.check_fds("PIN-03", importer, importer_before, "with the import alone");
    exporter.close(buffer.id).value();
    s.check_free_memory("PIN-04", free - buffer.size, "with the import alone");
    s.check_bytes("PIN-04", importer, imported, 121, "after the exporter let go");
    importer.fill(imported, 122);
    s.check_bytes("PIN-04", importer, imported, 122, "written after the exporter let go");
    importer.close(imported.id).value();
    s.check_free_memory("PIN-05", free, "after the import closed, the importer living on");
  }
}

VMMCTS_SCENARIO("core", "pinning: a dup of an fd pins as much as the fd", "[PIN-08]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = exporter.allocate(resource, 1).value();
  const Descriptor descriptor = exporter.export_descriptor(buffer).value();
  const int copy = exporter.call("dup", {{"fd", descriptor.fds[0]}}).value().at("fd");
  exporter.drop(descriptor.id).value();
  exporter.close(buffer.id).value();
  s.check_free_memory("PIN-08", free - buffer.size, "with the dup alone");
  exporter.call("close_fd", {{"fd", copy}}).value();
  s.check_free_memory("PIN-08", free, "after the dup closed");
}

VMMCTS_SCENARIO("core", "pinning: the exporter may die after the import", "[PIN-10][PIN-04]") {
  Worker& importer = s.worker("importer");
  const Resource into = importer.resource().value();
  for (const bool killed : {true, false}) {
    const std::string role = killed ? "killed exporter" : "exiting exporter";
    const auto in_case = s.in_case(role);
    Worker& exporter = s.worker(role);
    const Resource source = exporter.resource().value();
    const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
    exporter.fill(buffer, 123);
    const Buffer imported = share(exporter, buffer, importer, into);
    if (killed) {
      exporter.kill();
    } else {
      exporter.exit("_exit");
    }
    const std::uint64_t with_import = s.free_memory();
    s.check_bytes("PIN-10", importer, imported, 123, "after the exporter's death");
    importer.fill(imported, 124);
    s.check_bytes("PIN-10", importer, imported, 124, "written after the exporter's death");
    importer.close(imported.id).value();
    s.check_free_memory("PIN-10", with_import + buffer.size, "after the import closed");
  }
}

VMMCTS_SCENARIO("core", "pinning: the importer may die and the exporter works on", "[PIN-02][DESC-04]") {
  Worker& exporter = s.worker("exporter");
  const Resource source = exporter.resource().value();
  Worker& importer = s.worker("importer");
  const Resource into = importer.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 1});
  exporter.fill(buffer, 125);
  const Buffer imported = share(exporter, buffer, importer, into);
  importer.fill(imported, 126);
  importer.kill();
  s.check_bytes("DESC-04", exporter, buffer, 126, "that the dead importer wrote");
  const std::uint64_t with_buffer = s.free_memory();
  exporter.close(buffer.id).value();
  s.check_free_memory("PIN-02", with_buffer + buffer.size, "after the exporter closed");
}
