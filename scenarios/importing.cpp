// Import: independence, access, and everything that has to be refused.
#include <set>

#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "import: access comes from the importer", "[IMP-03]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource readonly = importer.resource({{"self_access", "r"}}).value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 1});
  exporter.fill(buffer, 131);
  const Buffer imported = share(exporter, buffer, importer, readonly);
  s.check_bytes("IMP-03", importer, imported, 131, "through a read-only import");
  for (const std::uint64_t offset : {std::uint64_t{0}, buffer.size - 16}) {
    const auto write = importer.call(
        "fill", {{"buffer", imported.id}, {"offset", offset}, {"size", 16}, {"seed", 1}});
    s.check("IMP-03", !write.ok(), "a read-only import cannot be written");
  }
  exporter.fill(buffer, 132);
  s.check_bytes("IMP-03", importer, imported, 132, "that the exporter went on to write");

  const Resource readonly_source = exporter.resource({{"self_access", "r"}}).value();
  const Resource writable = importer.resource().value();
  const Buffer unwritable = exporter.allocate(readonly_source, 1).value();
  const Buffer written = share(exporter, unwritable, importer, writable);
  importer.fill(written, 133);
  s.check_bytes("IMP-03", exporter, unwritable, 133, "that a writable import wrote");
}

VMMCTS_SCENARIO("core", "import: nothing of the fd is needed afterwards", "[IMP-05]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 1});
  exporter.fill(buffer, 134);
  const Descriptor received =
      forward(exporter, exporter.export_descriptor(buffer).value(), importer);
  const Buffer imported = importer.import(into, received).value();
  importer.drop(received.id).value();
  for (int i = 0; i < 4; ++i) importer.call("open_fd", {{"kind", "memfd"}}).value();
  s.check_bytes("IMP-05", importer, imported, 134, "with the numbers reused");
  const Buffer grown = importer.modify(into, imported, imported.size + 1).value();
  s.check_equal("IMP-05", "first wrong byte after a grow",
                importer.mismatch(grown, 134, 0, imported.size), std::int64_t{-1});
}

VMMCTS_SCENARIO("rawfd", "import: sizes that do not fit are an error and nothing stays",
                "[IMP-06][IMP-17]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  worker.fill(buffer, 135);
  const std::uint64_t unit = granule(worker, resource);
  const Descriptor exported = worker.export_descriptor(buffer).value();
  const FdSet before = worker.fds();
  const std::uint64_t free = s.free_memory();
  struct Sizes {
    std::string name;
    std::vector<std::uint64_t> sizes;
  };
  for (const Sizes& wrong : std::vector<Sizes>{{"larger at the end", {unit, 3 * unit}},
                                               {"smaller at the end", {unit, unit}},
                                               {"larger at the beginning", {2 * unit, 2 * unit}},
                                               {"swapped", {2 * unit, unit}}}) {
    const auto in_case = s.in_case(wrong.name);
    const Descriptor rebuilt = worker.from_fds(exported.fds, wrong.sizes).value();
    const FdSet with_descriptor = worker.fds();
    const auto refused = worker.import(resource, rebuilt);
    s.check("IMP-06 IMP-17", !refused.ok(), "the import is refused");
    s.check_fds("IMP-06", worker, with_descriptor, "after the refusal");
    s.check_free_memory("IMP-06", free, "after the refusal");
    worker.drop(rebuilt.id).value();
    // What it reserved is free again: everything that was reserved has been given back.
    std::uint64_t reserved = 0;
    std::uint64_t freed = 0;
    for (const tap::Call& call : refused.calls) {
      reserved += call.name == "cuMemAddressReserve" && call.result == 0;
      freed += call.name == "cuMemAddressFree" && call.result == 0;
    }
    s.check_equal("IMP-17", "reservations given back", freed, reserved);
  }
  s.check_fds("IMP-06", worker, before, "after all refusals");
  const Buffer imported = worker.import(resource, exported).value();
  s.check_bytes("IMP-06", worker, imported, 135, "of the genuine descriptor afterwards");
}

VMMCTS_SCENARIO("rawfd", "import: a wrong kind of fd is an error 100 times over", "[IMP-07]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t unit = granule(worker, resource);
  const std::uint64_t free = s.free_memory();
  for (const char* kind : {"pipe", "socket", "null", "memfd", "file"}) {
    const auto in_case = s.in_case(kind);
    const int fd = worker.call("open_fd", {{"kind", kind}}).value().at("fd");
    const FdSet before = worker.fds();
    int accepted = 0;
    for (int i = 0; i < 100; ++i) {
      const auto rebuilt = worker.from_fds({fd}, {unit});
      if (!rebuilt.ok()) continue;
      accepted += worker.import(resource, rebuilt.value()).ok();
      worker.drop(rebuilt.value().id).value();
    }
    s.check_equal("IMP-07", "imports that were accepted", accepted, 0);
    s.check_fds("IMP-07", worker, before, "after 100 refusals");
    worker.call("close_fd", {{"fd", fd}}).value();
  }
  s.check_free_memory("IMP-07", free, "after all refusals");
}

VMMCTS_SCENARIO("core", "import: overlapping imports are independent", "[IMP-12]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const Buffer shorter = allocate_chunks(exporter, source, {1, 1});
  const Buffer longer = exporter.modify(source, shorter, shorter.size + 1).value();
  exporter.fill(longer, 136);
  for (const bool shorter_first : {true, false}) {
    const auto in_case = s.in_case(shorter_first ? "shorter closes first" : "longer closes first");
    const Buffer a = share(exporter, shorter, importer, into);
    const Buffer b = share(exporter, longer, importer, into);
    importer.close(shorter_first ? a.id : b.id).value();
    const Buffer& survivor = shorter_first ? b : a;
    s.check_bytes("IMP-12", importer, survivor, 136, "of the survivor");
    importer.close(survivor.id).value();
  }
}

VMMCTS_SCENARIO("core", "import: address reuse confuses nobody", "[IMP-13]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  bool reused = false;
  std::set<std::uint64_t> addresses;
  for (int round = 0; round < 16; ++round) {
    const Buffer buffer = allocate_chunks(exporter, source, round % 2 == 0 ? Layout{1} : Layout{2});
    reused = reused || !addresses.insert(buffer.pointer).second;
    exporter.fill(buffer, 140 + round);
    const Buffer imported = share(exporter, buffer, importer, into);
    s.check_equal("IMP-13", "size", imported.size, buffer.size);
    s.check_bytes("IMP-13", importer, imported, 140 + round, "in round " + std::to_string(round));
    exporter.drop(buffer.id).value();
    importer.drop(imported.id).value();
  }
  if (!reused) throw NotExercised("the driver did not use an address again");
}

VMMCTS_SCENARIO("core", "import: memory of another device", "[IMP-14]") {
  if (s.plan().devices < 2) throw NotExercised("one device");
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource on_b = exporter.resource({{"device", 1}}).value();
  const Buffer buffer = allocate_chunks(exporter, on_b, {1, 1});
  exporter.fill(buffer, 137);
  const Descriptor received =
      forward(exporter, exporter.export_descriptor(buffer).value(), importer);
  const FdSet before = importer.fds();
  const Resource through_a = importer.resource({{"device", 0}}).value();
  const auto refused = importer.import(through_a, received);
  s.check_error("IMP-14", refused, "ValueError", {"0", "1"});
  s.check_equal("IMP-14", "mappings made", only(refused.calls, "cuMemMap").size(), std::size_t{0});
  s.check_fds("IMP-14", importer, before, "after the refusal");
  const Resource with_peer =
      importer.resource({{"device", 1}, {"peers", {0}}}).value();
  const auto imported = importer.import(with_peer, received);
  s.check("IMP-14", imported.ok(), "a resource of the memory's device imports it");
  if (imported.ok()) s.check_bytes("IMP-14", importer, imported.value(), 137, "of device 1");
}

VMMCTS_SCENARIO("rawfd", "import: a malformed descriptor is refused before the driver imports",
                "[IMP-15]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t unit = granule(worker, resource);
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  worker.fill(buffer, 138);
  const Descriptor exported = worker.export_descriptor(buffer).value();
  {
    const auto in_case = s.in_case("a size that is no multiple of the granularity");
    for (const Json& sizes : {Json{unit - 1, 2 * unit}, Json{unit, 2 * unit + 4096}}) {
      const auto rebuilt = worker.from_fds(exported.fds, sizes);
      if (!rebuilt.ok()) {
        s.check_error("IMP-15", rebuilt, "ValueError");
        continue;
      }
      const auto refused = worker.import(resource, rebuilt.value());
      s.check_error("IMP-15", refused, "ValueError");
      s.check_no_driver_calls("IMP-15", refused);
      worker.drop(rebuilt.value().id).value();
    }
  }
  {
    const auto in_case = s.in_case("a handle closed on this side");
    const Descriptor rebuilt = worker.from_fds(exported.fds, exported.sizes).value();
    const Handle handle = worker.handle(rebuilt, 1).value();
    worker.close(handle.id).value();
    const auto refused = worker.import(resource, rebuilt);
    s.check_error("IMP-15", refused, "ValueError");
    s.check_no_driver_calls("IMP-15", refused);
  }
  const Buffer imported = worker.import(resource, exported).value();
  s.check_bytes("IMP-15", worker, imported, 138, "of the genuine descriptor afterwards");
}

VMMCTS_SCENARIO("rawfd", "import: a refusal in the middle says which chunk", "[IMP-16]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1, 1});
  const Descriptor exported = worker.export_descriptor(buffer).value();
  const int null = worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  const Descriptor rebuilt =
      worker.from_fds({exported.fds[0], null, exported.fds[2]}, exported.sizes).value();
  const auto refused = worker.import(resource, rebuilt);
  s.check_error("IMP-16", refused, "RuntimeError",
                {"2 of 3", "cuMemImportFromShareableHandle", "posix_fd"});
}

VMMCTS_SCENARIO("core", "import: eight processes import one descriptor at once", "[CONC-02][IMP-04]") {
  constexpr int kImporters = 8;
  constexpr int kRounds = 25;
  Worker& exporter = s.worker("exporter");
  const Resource source = exporter.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 1});
  exporter.fill(buffer, 139);
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  struct Importer {
    Worker* worker;
    Resource into;
    Descriptor received;
    FdSet before;
  };
  std::vector<Importer> importers;
  for (int i = 0; i < kImporters; ++i) {
    Worker& worker = s.worker("importer " + std::to_string(i));
    const Resource into = worker.resource().value();
    const Descriptor received = forward(exporter, exported, worker);
    importers.push_back({&worker, into, received, worker.fds()});
  }
  // All requests are under way before the first answer is read.
  std::vector<Worker::Pending> under_way;
  for (Importer& importer : importers) {
    under_way.push_back(importer.worker->begin("import_rounds",
                                               {{"resource", importer.into.id},
                                                {"descriptor", importer.received.id},
                                                {"rounds", kRounds},
                                                {"seed", 139}}));
  }
  for (std::size_t i = 0; i < importers.size(); ++i) {
    const auto done = importers[i].worker->finish(under_way[i]);
    s.check("CONC-02", done.ok(), "every import works");
    if (!done.ok()) continue;
    s.check_equal("CONC-02", "rounds with wrong bytes", done.value().at("wrong_bytes").get<int>(),
                  0);
    s.check_fds("CONC-02 IMP-04", *importers[i].worker, importers[i].before, "after its rounds");
  }
}
