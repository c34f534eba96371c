// Imported memory is marked, the mark travels with the allocation, and its export is refused.
#include "shares.hpp"

using namespace cts;

namespace {

const std::vector<std::string> kRefusal{"imported", "another process", "cannot be exported",
                                        "forward", "copy"};

// An exporter and an importer that holds the exporter's buffer.
struct Pair {
  explicit Pair(Scenario& s, const Layout& layout = {1, 1})
      : exporter(s.worker("exporter")), importer(s.worker("importer")),
        source(exporter.resource().value()), into(importer.resource().value()),
        original(allocate_chunks(exporter, source, layout)) {
    exporter.fill(original, 61);
    imported = share(exporter, original, importer, into);
  }

  // A buffer grown out of an import along the wanted path, and the import.
  Grown grow_import(GrowPath path) {
    return grow_along(importer, into, path, [this] { return share(exporter, original, importer, into); });
  }

  Worker& exporter;
  Worker& importer;
  Resource source;
  Resource into;
  Buffer original;
  Buffer imported;
};

// The refusal of one buffer: kind, statements, no driver call, no descriptor, and nothing changed.
void check_refused(Scenario& s, const std::string& clauses, Worker& worker, const Buffer& buffer) {
  const FdSet before = worker.fds();
  const std::uint64_t free = s.free_memory();
  const auto refused = worker.export_descriptor(buffer);
  s.check_error(clauses, refused, "RuntimeError", kRefusal);
  s.check_no_driver_calls(clauses, refused);
  s.check_fds(clauses, worker, before, "after the refusal");
  s.check_free_memory(clauses, free, "after the refusal");
  if (refused.ok()) worker.drop(refused.value().id).value();
}

// How a buffer is derived from another one.
enum class Step { alias, in_place, move };

std::string name_of(Step step) {
  return step == Step::alias ? "alias" : step == Step::in_place ? "grow in place" : "move";
}

// One step of a chain. Whether a grow in place really stayed is for the caller to see.
Buffer derive(Worker& worker, const Resource& resource, const Buffer& from, Step step) {
  if (step == Step::alias) return worker.modify(resource, from, 1).value();
  if (step == Step::move) return grow_moved(worker, resource, from);
  return worker.modify(resource, from, from.size + 1).value();
}

}  // namespace

VMMCTS_SCENARIO("core", "provenance: an imported buffer is refused before any driver call",
                "[PROV-01][PROV-02][PROV-03][PROV-10]") {
  for (const Layout& layout : std::vector<Layout>{{1}, {1, 2, 1}}) {
    const auto in_case = s.in_case(to_string(layout));
    Pair pair(s, layout);
    const auto refused = pair.importer.export_descriptor(pair.imported);
    s.check_error("PROV-01", refused, "RuntimeError");
    s.check_error("PROV-02", refused, "RuntimeError", kRefusal);
    s.check_no_driver_calls("PROV-03", refused);
    check_refused(s, "PROV-03 PROV-10", pair.importer, pair.imported);
    s.check_bytes("PROV-10", pair.importer, pair.imported, 61, "after the refusals");
    pair.importer.fill(pair.imported, 62);
    s.check_bytes("PROV-10", pair.exporter, pair.original, 62, "written after the refusals");
    pair.importer.drop(pair.imported.id).value();
    pair.exporter.drop(pair.original.id).value();
  }
}

VMMCTS_SCENARIO("core", "provenance: the mark reaches an alias", "[PROV-04]") {
  Pair pair(s);
  for (const std::uint64_t size : {std::uint64_t{1}, pair.imported.size}) {
    const auto in_case = s.in_case("request of " + std::to_string(size) + " bytes");
    const Buffer alias = pair.importer.modify(pair.into, pair.imported, size).value();
    check_refused(s, "PROV-04", pair.importer, alias);
  }
  // The alias alone still carries it.
  const Buffer alias = pair.importer.modify(pair.into, pair.imported, 1).value();
  pair.importer.close(pair.imported.id).value();
  check_refused(s, "PROV-04", pair.importer, alias);
}

VMMCTS_SCENARIO("core", "provenance: the mark reaches a grow in place", "[PROV-05][PROV-17][GROW-14]") {
  Pair pair(s);
  const auto [imported, grown] = pair.grow_import(GrowPath::in_place);
  s.check_bytes("GROW-14", pair.importer, imported, 61, "of the import that was grown");
  check_refused(s, "PROV-05 PROV-17", pair.importer, grown);
  pair.importer.close(imported.id).value();
  check_refused(s, "PROV-05 PROV-17", pair.importer, grown);
}

VMMCTS_SCENARIO("core", "provenance: the mark reaches a move", "[PROV-06][PROV-17][GROW-14]") {
  Pair pair(s);
  const auto [imported, moved] = pair.grow_import(GrowPath::moved);
  check_refused(s, "PROV-06 PROV-17", pair.importer, moved);
  pair.importer.close(imported.id).value();
  check_refused(s, "PROV-06 PROV-17", pair.importer, moved);
  pair.importer.fill(moved, 63, 0, imported.size);
  s.check_bytes("GROW-14", pair.exporter, pair.original, 63, "written through the moved buffer");
}

VMMCTS_SCENARIO("core", "provenance: the mark reaches chains of alias and grow and move", "[PROV-07]") {
  constexpr int kDepth = 8;
  const std::vector<Step> steps{Step::alias, Step::in_place, Step::move};
  int stayed = 0;
  int moved = 0;
  // Every pair of neighbours in a chain appears in these orders; each chain is eight steps deep.
  for (std::size_t first = 0; first < steps.size(); ++first) {
    for (std::size_t stride = 0; stride < steps.size(); ++stride) {
      Pair pair(s, {1});
      Buffer buffer = pair.imported;
      std::string chain;
      for (int depth = 0; depth < kDepth; ++depth) {
        const Step step = steps[(first + depth * stride) % steps.size()];
        const Buffer next = derive(pair.importer, pair.into, buffer, step);
        (next.pointer == buffer.pointer ? stayed : moved) += step != Step::alias;
        chain += (chain.empty() ? "" : ", ") + name_of(step);
        pair.importer.drop(buffer.id).value();
        buffer = next;
        const auto in_case = s.in_case(chain);
        const auto refused = pair.importer.export_descriptor(buffer);
        s.check_error("PROV-07", refused, "RuntimeError", kRefusal);
        s.check_no_driver_calls("PROV-07", refused);
      }
      pair.importer.drop(buffer.id).value();
      pair.exporter.drop(pair.original.id).value();
    }
  }
  s.note(std::to_string(stayed) + " grows stayed in place, " + std::to_string(moved) + " moved");
  if (stayed == 0 || moved == 0) throw NotExercised("the chains did not reach both ways to grow");
}

VMMCTS_SCENARIO("core", "provenance: the mark belongs to the allocation and not to the address",
                "[PROV-08]") {
  Pair pair(s, {1});
  const std::uint64_t address = pair.imported.pointer;
  pair.importer.drop(pair.imported.id).value();
  // Fresh allocations until one stands where the import stood.
  std::vector<Buffer> fresh;
  bool reused = false;
  for (int i = 0; i < 64 && !reused; ++i) {
    fresh.push_back(pair.importer.allocate(pair.into, pair.imported.size).value());
    reused = fresh.back().pointer == address;
  }
  for (const Buffer& buffer : fresh) {
    s.check("PROV-08", pair.importer.export_descriptor(buffer).ok(), "a fresh allocation exports");
  }
  if (!reused) throw NotExercised("the driver did not use the import's address again");
}

VMMCTS_SCENARIO("core", "provenance: an import in the exporting process is marked and the original is not",
                "[PROV-09][IMP-02]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer original = allocate_chunks(exporter, resource, {1, 1});
  exporter.fill(original, 64);
  const Descriptor descriptor = exporter.export_descriptor(original).value();
  const Buffer imported = exporter.import(resource, descriptor).value();
  s.check("IMP-02", imported.pointer != original.pointer, "the import stands at another address");
  s.check_bytes("IMP-02", exporter, imported, 64, "that the original holds");
  exporter.fill(imported, 65);
  s.check_bytes("IMP-02", exporter, original, 65, "written through the import");
  check_refused(s, "PROV-09", exporter, imported);
  s.check("PROV-09", exporter.export_descriptor(original).ok(), "the original still exports");
  exporter.close(original.id).value();
  s.check_bytes("IMP-02", exporter, imported, 65, "after the original closed");
}

VMMCTS_SCENARIO("core", "provenance: the original descriptor is forwarded from A over B to C", "[PROV-11]") {
  Worker& a = s.worker("a");
  Worker& b = s.worker("b");
  Worker& c = s.worker("c");
  const Resource in_a = a.resource().value();
  const Resource in_b = b.resource().value();
  const Resource in_c = c.resource().value();
  const Buffer original = allocate_chunks(a, in_a, {1, 2});
  a.fill(original, 66);
  const Descriptor at_b = forward(a, a.export_descriptor(original).value(), b);
  const Buffer in_between = b.import(in_b, at_b).value();
  const Descriptor at_c = forward(b, at_b, c);
  const Buffer last = c.import(in_c, at_c).value();
  s.check_bytes("PROV-11", c, last, 66, "forwarded over B");
  c.fill(last, 67);
  s.check_bytes("PROV-11", b, in_between, 67, "written by C");
  s.check_bytes("PROV-11", a, original, 67, "written by C");
}

VMMCTS_SCENARIO("core", "provenance: a copy into an owned buffer exports", "[PROV-12]") {
  Pair pair(s, {1});
  const Buffer copy = pair.importer.allocate(pair.into, pair.imported.size).value();
  pair.importer.copy(pair.imported, copy);
  const Buffer back = share(pair.importer, copy, pair.exporter, pair.source);
  s.check_bytes("PROV-12", pair.exporter, back, 61, "of the copy, shared back");
}

VMMCTS_SCENARIO("core", "provenance: a buffer of imported and own chunks is refused", "[PROV-17]") {
  Pair pair(s, {1});
  // A prefix that covers only imported memory, and one that reaches into the own chunk.
  const Buffer grown =
      pair.importer.modify(pair.into, pair.imported, pair.imported.size * 3).value();
  check_refused(s, "PROV-17", pair.importer, grown);
  const Buffer prefix = pair.importer.modify(pair.into, grown, 1).value();
  check_refused(s, "PROV-17", pair.importer, prefix);
}
