// A lowered RLIMIT_NOFILE: clean errors, nothing left, and all works once the limit is raised.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "fd limit: export with no free slot fails cleanly and works again",
                "[EXP-02][EXP-06]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer buffer = exporter.allocate(resource, 1).value();
  exporter.fill(buffer, 41);
  exporter.leave_free_fds(0);
  const FdSet before = exporter.fds();
  const auto refused = exporter.export_descriptor(buffer);
  s.check_fds("EXP-02", exporter, before, "after the refused export");
  s.check_error("EXP-02", refused, "RuntimeError");
  s.check_error("EXP-06", refused, "RuntimeError", {"cuMemExportToShareableHandle", "limit"});
  check_status(s, "EXP-02", refused, "cuMemExportToShareableHandle");
  s.check_bytes("EXP-02", exporter, buffer, 41, "after the refused export");
  exporter.restore_fd_limit();
  const auto again = exporter.export_descriptor(buffer);
  s.check("EXP-02", again.ok(), "export works once the limit is raised");
}

VMMCTS_SCENARIO("core", "fd limit: k free slots and more allocations leave nothing behind",
                "[EXP-03][DESC-11]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {1, 2, 1, 1, 1}}) {
    const Buffer buffer = allocate_chunks(exporter, resource, layout);
    exporter.fill(buffer, 42);
    for (std::size_t slots = 0; slots < layout.size(); ++slots) {
      const auto in_case =
          s.in_case(to_string(layout) + " with " + std::to_string(slots) + " free slots");
      exporter.leave_free_fds(static_cast<int>(slots));
      const FdSet before = exporter.fds();
      const auto refused = exporter.export_descriptor(buffer);
      s.check_fds("EXP-03 DESC-11", exporter, before, "after the refused export");
      s.check_error("EXP-03", refused, "RuntimeError", {"limit"});
      check_status(s, "DESC-11", refused, "cuMemExportToShareableHandle");
      exporter.restore_fd_limit();
      s.check_bytes("DESC-11", exporter, buffer, 42, "after the refused export");
      const Descriptor again = exporter.export_descriptor(buffer).value();
      const Buffer imported = exporter.import(resource, again).value();
      s.check_bytes("DESC-11", exporter, imported, 42, "through a later export");
      exporter.drop(imported.id).value();
      exporter.drop(again.id).value();
    }
    // Exactly enough slots are enough.
    exporter.leave_free_fds(static_cast<int>(layout.size()));
    s.check("EXP-03", exporter.export_descriptor(buffer).ok(), "n slots hold n allocations");
    exporter.restore_fd_limit();
  }
}

VMMCTS_SCENARIO("core", "fd limit: 1000 exports under a limit just above the baseline never fail",
                "[EXP-04]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer buffer = allocate_chunks(exporter, resource, {1, 1});
  exporter.leave_free_fds(3);
  const FdSet before = exporter.fds();
  int failures = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto exported = exporter.export_descriptor(buffer);
    if (exported.ok()) {
      exporter.drop(exported.value().id).value();
    } else {
      ++failures;
    }
  }
  s.check_equal("EXP-04", "exports that failed", failures, 0);
  s.check_fds("EXP-04", exporter, before, "after 1000 exports");
}

VMMCTS_SCENARIO("core", "fd limit: import works with no free slot", "[IMP-10]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
  exporter.fill(buffer, 43);
  const Descriptor received =
      forward(exporter, exporter.export_descriptor(buffer).value(), importer);
  importer.leave_free_fds(0);
  const auto imported = importer.import(into, received);
  s.check("IMP-10", imported.ok(), "import needs no descriptor of its own");
  if (imported.ok()) s.check_bytes("IMP-10", importer, imported.value(), 43, "at the limit");
}

VMMCTS_SCENARIO("rawfd", "fd limit: from_fds with too few slots closes what it made",
                "[RAW-17][RAW-11][ERR-02]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer buffer = allocate_chunks(exporter, resource, {1, 1, 1});
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  for (int slots = 0; slots < 3; ++slots) {
    const auto in_case = s.in_case(std::to_string(slots) + " free slots");
    exporter.leave_free_fds(slots);
    const FdSet before = exporter.fds();
    const auto refused = exporter.from_fds(exported.fds, exported.sizes);
    s.check_fds("RAW-17 RAW-11", exporter, before, "after the refused from_fds");
    s.check_error("RAW-17 ERR-02", refused, "OSError");
    s.check_equal("RAW-17 ERR-02", "errno", refused.ok() ? 0 : refused.error().error_number, EMFILE);
    exporter.restore_fd_limit();
  }
  s.check("RAW-17", exporter.from_fds(exported.fds, exported.sizes).ok(),
          "from_fds works once the limit is raised");
}
