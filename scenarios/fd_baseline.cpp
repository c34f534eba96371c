// Descriptors of a process are back to the same set, on the exporter's side and on the importer's.
#include "shares.hpp"

using namespace cts;

namespace {

const std::vector<Layout> kLayouts{{1}, {1, 1}, {1, 2, 3}};

}  // namespace

VMMCTS_SCENARIO("core", "fd baseline: an export adds one descriptor per allocation and release closes them",
                "[DESC-02][DESC-03][DESC-04][DESC-05]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  for (const Layout& layout : kLayouts) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, resource, layout);
    const std::uint64_t unit = granule(exporter, resource);
    const FdSet before = exporter.fds();
    const Descriptor descriptor = exporter.export_descriptor(buffer).value();
    const auto added =
        s.check_fds_added("DESC-02", exporter, before, layout.size(), "while it is exported");
    std::vector<int> told = descriptor.fds;
    std::sort(told.begin(), told.end());
    s.check_equal("DESC-05", "the descriptor's fds are the ones that were added", told, added);
    s.check_equal("DESC-05", "handle_type", descriptor.handle_type, std::string("posix_fd"));
    s.check_equal("DESC-05", "size", descriptor.size, buffer.size);
    std::vector<std::uint64_t> sizes;
    for (const int granules : layout) sizes.push_back(granules * unit);
    s.check_equal("DESC-05", "sizes in address order", descriptor.sizes, sizes);
    exporter.drop(descriptor.id).value();
    s.check_fds("DESC-03 DESC-04", exporter, before, "after the descriptor was released");
    exporter.close(buffer.id).value();
    s.check_fds("DESC-04", exporter, before, "after the buffer was closed");
  }
}

VMMCTS_SCENARIO("core", "fd baseline: each access exports anew with open files of its own",
                "[DESC-01][DESC-13]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  for (const Layout& layout : kLayouts) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, resource, layout);
    const FdSet before = exporter.fds();
    const Descriptor first = exporter.export_descriptor(buffer).value();
    const Descriptor second = exporter.export_descriptor(buffer).value();
    s.check_fds_added("DESC-01", exporter, before, 2 * layout.size(), "with two descriptors");
    const auto first_files = exporter.send_fds(first.fds);
    const auto second_files = exporter.send_fds(second.fds);
    for (const UniqueFd& a : first_files) {
      for (const UniqueFd& b : second_files) {
        s.check("DESC-01", !same_open_file(a.get(), b.get()),
                "two descriptors of one buffer share no open file");
      }
    }
    s.check_equal("DESC-13", "sizes of the second descriptor", second.sizes, first.sizes);
    s.check_equal("DESC-13", "size of the second descriptor", second.size, first.size);
    const Buffer from_first = exporter.import(resource, first).value();
    const Buffer from_second = exporter.import(resource, second).value();
    exporter.fill(from_first, 11);
    s.check_bytes("DESC-13", exporter, from_second, 11, "written through the other import");
    exporter.close(buffer.id).value();
  }
}

VMMCTS_SCENARIO("core", "fd baseline: import neither keeps nor closes a descriptor",
                "[DESC-04][IMP-01][IMP-04][PIN-03]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  for (const Layout& layout : kLayouts) {
    const auto in_case = s.in_case(to_string(layout));
    const FdSet exporter_before = exporter.fds();
    const FdSet importer_before = importer.fds();
    const Buffer buffer = allocate_chunks(exporter, source, layout);
    exporter.fill(buffer, 21);
    const Descriptor exported = exporter.export_descriptor(buffer).value();
    const Descriptor received = forward(exporter, exported, importer);
    const FdSet with_descriptor = importer.fds();
    const Buffer first = importer.import(into, received).value();
    s.check_fds("IMP-04", importer, with_descriptor, "after an import");
    const Buffer second = importer.import(into, received).value();
    s.check_fds("IMP-04", importer, with_descriptor, "after a second import");
    s.check("IMP-01", first.is_mapped && !buffer.is_mapped,
            "an imported buffer is mapped and an allocated one is not");
    s.check_equal("IMP-01", "size of the import", first.size, buffer.size);
    s.check_bytes("IMP-04", importer, second, 21, "in the second import");
    exporter.drop(exported.id).value();
    importer.drop(received.id).value();
    s.check_fds("DESC-04", exporter, exporter_before, "after the descriptor was released");
    s.check_fds("PIN-03", importer, importer_before, "with the import open and no descriptor");
    importer.close(first.id).value();
    s.check_bytes("IMP-04", importer, second, 21, "after the other import was closed");
    importer.close(second.id).value();
    exporter.close(buffer.id).value();
    s.check_fds("DESC-04", exporter, exporter_before, "at the end");
    s.check_fds("PIN-03", importer, importer_before, "at the end");
  }
}

VMMCTS_SCENARIO("core", "fd baseline: buffer and descriptor are independent", "[DESC-08][PIN-01]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const FdSet before = exporter.fds();
  const std::uint64_t free = s.free_memory();
  for (const bool buffer_first : {true, false}) {
    const auto in_case = s.in_case(buffer_first ? "buffer first" : "descriptor first");
    const Buffer buffer = allocate_chunks(exporter, resource, {1, 2});
    exporter.fill(buffer, 31);
    const Descriptor descriptor = exporter.export_descriptor(buffer).value();
    if (buffer_first) {
      exporter.close(buffer.id).value();
      s.check_free_memory("PIN-01", free - buffer.size, "with only the descriptor left");
      const Buffer imported = exporter.import(resource, descriptor).value();
      s.check_bytes("DESC-08 PIN-01", exporter, imported, 31, "imported after the buffer closed");
      exporter.close(imported.id).value();
      exporter.drop(descriptor.id).value();
    } else {
      exporter.drop(descriptor.id).value();
      s.check_bytes("DESC-08", exporter, buffer, 31, "after the descriptor was released");
      exporter.close(buffer.id).value();
    }
    s.check_fds("DESC-08", exporter, before, "after both");
    s.check_free_memory("DESC-08", free, "after both");
  }
}

VMMCTS_SCENARIO("core", "fd baseline: 200 shares leave nothing on either side", "[IMP-04][PIN-02]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const FdSet exporter_before = exporter.fds();
  const FdSet importer_before = importer.fds();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = exporter.allocate(source, 1).value();
  for (int i = 0; i < 200; ++i) {
    const Buffer imported = share(exporter, buffer, importer, into);
    importer.drop(imported.id).value();
  }
  exporter.drop(buffer.id).value();
  s.check_fds("IMP-04", exporter, exporter_before, "after 200 shares");
  s.check_fds("IMP-04", importer, importer_before, "after 200 shares");
  s.check_free_memory("PIN-02", free, "after 200 shares");
}
