// modify_allocation: alias, grow in place, move.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "grow: a covered request is an alias that touches nothing in the driver",
                "[GROW-01][GROW-02]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  worker.fill(buffer, 101);
  const std::uint64_t free = s.free_memory();
  for (const std::uint64_t request : {std::uint64_t{0}, std::uint64_t{1}, buffer.size}) {
    const auto in_case = s.in_case("request of " + std::to_string(request) + " bytes");
    const auto modified = worker.modify(resource, buffer, request);
    s.check_no_driver_calls("GROW-02", modified);
    const Buffer alias = modified.value();
    s.check("GROW-01", alias.id != buffer.id, "the result is a new buffer");
    s.check_equal("GROW-02", "size", alias.size, buffer.size);
    s.check_equal("GROW-02", "pointer", alias.pointer, buffer.pointer);
    s.check_free_memory("GROW-02", free, "with the alias");
    worker.close(alias.id).value();
    s.check_bytes("GROW-01 GROW-02", worker, buffer, 101, "after the alias closed");
  }
}

VMMCTS_SCENARIO("core", "grow: in place keeps the pointer and the bytes", "[GROW-01][GROW-03][GROW-05]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t free = s.free_memory();
  const auto [buffer, grown] = grow_along(worker, resource, GrowPath::in_place, [&] {
    const Buffer made = worker.allocate(resource, 1).value();
    worker.fill(made, 102);
    return made;
  });
  s.check_equal("GROW-03", "size", grown.size, 2 * buffer.size);
  s.check_free_memory("GROW-03", free - 2 * buffer.size, "after one more allocation");
  s.check_equal("GROW-03", "first wrong old byte", worker.mismatch(grown, 102, 0, buffer.size),
                std::int64_t{-1});
  const Buffer same = worker.info(buffer).value();
  s.check("GROW-01", same.pointer == buffer.pointer && same.size == buffer.size,
          "the input keeps pointer and size");
  worker.fill(grown, 103);
  s.check_bytes("GROW-03", worker, buffer, 103, "written through the grown buffer");
  s.check_equal("GROW-03", "allocations", worker.export_descriptor(grown).value().sizes,
                std::vector<std::uint64_t>{buffer.size, buffer.size});
}

VMMCTS_SCENARIO("core", "grow: a move maps the old memory at both addresses", "[GROW-01][GROW-04][GROW-05]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t free = s.free_memory();
  const auto [buffer, moved] = grow_along(worker, resource, GrowPath::moved, [&] {
    const Buffer made = allocate_chunks(worker, resource, {1, 2});
    worker.fill(made, 104);
    return made;
  });
  s.check_free_memory("GROW-04", free - moved.size, "after one more allocation");
  s.check_equal("GROW-04", "first wrong old byte", worker.mismatch(moved, 104, 0, buffer.size),
                std::int64_t{-1});
  const Buffer same = worker.info(buffer).value();
  s.check("GROW-01", same.pointer == buffer.pointer && same.size == buffer.size,
          "the input keeps pointer and size");
  worker.fill(buffer, 105);
  s.check_equal("GROW-04", "first byte that does not follow a write through the old address",
                worker.mismatch(moved, 105, 0, buffer.size), std::int64_t{-1});
  worker.fill(moved, 106);
  s.check_bytes("GROW-04", worker, buffer, 106, "written through the new address");
}

VMMCTS_SCENARIO("core", "grow: shared memory is freed with the last buffer in either order",
                "[GROW-08][GROW-09]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t free = s.free_memory();
  for (const GrowPath path : {GrowPath::in_place, GrowPath::moved}) {
    for (const bool input_first : {true, false}) {
      const auto in_case =
          s.in_case(to_string(path) + (input_first ? ", input first" : ", result first"));
      const auto [buffer, grown] = grow_along(worker, resource, path, [&] {
        const Buffer made = worker.allocate(resource, 1).value();
        worker.fill(made, 107);
        return made;
      });
      if (input_first) {
        worker.close(buffer.id).value();
        s.check_free_memory("GROW-08", free - grown.size, "with the result open");
        s.check_equal("GROW-08", "first wrong byte", worker.mismatch(grown, 107, 0, buffer.size),
                      std::int64_t{-1});
        worker.close(grown.id).value();
      } else {
        worker.close(grown.id).value();
        s.check_free_memory("GROW-09", free - buffer.size, "with the input open");
        s.check_bytes("GROW-08", worker, buffer, 107, "after the result closed");
        worker.close(buffer.id).value();
      }
      s.check_free_memory("GROW-08", free, "after both closed");
      worker.drop(buffer.id).value();
      worker.drop(grown.id).value();
    }
  }
}

VMMCTS_SCENARIO("core", "grow: chunks keep the access they were created with", "[GROW-06]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource({{"self_access", "r"}}).value();
  for (const GrowPath path : {GrowPath::in_place, GrowPath::moved}) {
    const auto in_case = s.in_case(to_string(path));
    auto [readonly, grown] = grow_along(
        worker, resource, path, [&] { return worker.allocate(resource, 1).value(); });
    const auto old_chunk = worker.call(
        "fill", {{"buffer", grown.id}, {"offset", 0}, {"size", 16}, {"seed", 1}});
    s.check("GROW-06", !old_chunk.ok(), "the old chunk is still read-only");
    worker.drop(grown.id).value();
    grown = worker.modify(resource, readonly, 2 * readonly.size, Json{{"self_access", "rw"}})
                .value();
    const auto still = worker.call(
        "fill", {{"buffer", grown.id}, {"offset", 0}, {"size", 16}, {"seed", 1}});
    s.check("GROW-06", !still.ok(), "a config of the grow does not reach the old chunk");
    const auto fresh = worker.call("fill", {{"buffer", grown.id},
                                            {"offset", readonly.size},
                                            {"size", 16},
                                            {"seed", 1}});
    s.check("GROW-06", fresh.ok(), "the new chunk has the access of the config");
    for (const int id : {grown.id, readonly.id}) worker.drop(id).value();
  }
}

VMMCTS_SCENARIO("core", "grow: unequal chunks are shared as one range with the same bytes",
                "[GROW-12]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  for (const Layout& layout : std::vector<Layout>{{1, 1}, {2, 2, 2}, {3, 1, 2}, {1, 4, 1, 2}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, source, layout);
    exporter.fill(buffer, 108);
    const Buffer imported = share(exporter, buffer, importer, into);
    s.check_equal("GROW-12", "size", imported.size, buffer.size);
    s.check_bytes("GROW-12", importer, imported, 108, "over all chunks");
    importer.drop(imported.id).value();
    exporter.drop(buffer.id).value();
  }
}

VMMCTS_SCENARIO("core", "grow: an imported buffer grows with a local chunk behind it", "[GROW-14]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
  exporter.fill(buffer, 109);
  const Buffer imported = share(exporter, buffer, importer, into);
  const std::uint64_t free = s.free_memory();
  const Buffer grown = importer.modify(into, imported, 2 * imported.size).value();
  s.check_free_memory("GROW-14", free - imported.size, "after the local chunk");
  s.check_equal("GROW-14", "first wrong imported byte",
                importer.mismatch(grown, 109, 0, imported.size), std::int64_t{-1});
  importer.fill(grown, 110);
  s.check_bytes("GROW-14", exporter, buffer, 110, "written through the grown import");
  s.check_bytes("GROW-14", importer, grown, 110, "of imported and local chunks");
}
