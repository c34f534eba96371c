// Allocation: sizes, bytes, errors, and memory that comes back.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "allocation: sizes are rounded up to the granule", "[ALLOC-01]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t unit = granule(worker, resource);
  const std::uint64_t free = s.free_memory();
  for (const auto& [asked, due] : {std::pair{std::uint64_t{1}, unit}, {unit - 1, unit},
                                   {unit, unit}, {unit + 1, 2 * unit}}) {
    const auto in_case = s.in_case(std::to_string(asked) + " bytes");
    const Buffer buffer = worker.allocate(resource, asked).value();
    s.check_equal("ALLOC-01", "size", buffer.size, due);
    s.check_equal("ALLOC-01", "size told later", worker.info(buffer).value().size, due);
    s.check_free_memory("ALLOC-01", free - due, "while it is open");
    worker.drop(buffer.id).value();
  }
}

VMMCTS_SCENARIO("core", "allocation: size 0 is an empty buffer without a driver call", "[ALLOC-02]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource resource = exporter.resource().value();
  const Resource into = importer.resource().value();
  const FdSet before = exporter.fds();
  const auto allocated = exporter.allocate(resource, 0);
  s.check_no_driver_calls("ALLOC-02", allocated);
  const Buffer empty = allocated.value();
  s.check_equal("ALLOC-02", "size", empty.size, std::uint64_t{0});
  const auto exported = exporter.export_descriptor(empty);
  s.check_no_driver_calls("ALLOC-02", exported);
  const Descriptor descriptor = exported.value();
  s.check_equal("ALLOC-02", "size of the descriptor", descriptor.size, std::uint64_t{0});
  s.check("ALLOC-02", descriptor.sizes.empty() && descriptor.fds.empty(),
          "the descriptor has no sizes and no fds");
  s.check_fds("ALLOC-02", exporter, before, "with an empty descriptor");
  const Buffer here = exporter.import(resource, descriptor).value();
  s.check("ALLOC-02", here.is_mapped && here.size == 0, "imports here as an empty mapped buffer");
  const Descriptor there =
      importer.from_fds(Json::array(), Json::array(), {{"size", 0}}).value();
  const Buffer imported = importer.import(into, there).value();
  s.check("ALLOC-02", imported.is_mapped && imported.size == 0,
          "imports elsewhere as an empty mapped buffer");
}

VMMCTS_SCENARIO("core", "allocation: every byte can be written and read", "[ALLOC-05][ALLOC-06]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 2});
  worker.fill(buffer, 91);
  s.check_bytes("ALLOC-05 ALLOC-06", worker, buffer, 91, "first and last included");
}

VMMCTS_SCENARIO("core", "allocation: what cannot be allocated leaves nothing", "[ALLOC-03][ALLOC-07]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const FdSet before = worker.fds();
  const std::uint64_t free = s.free_memory();
  const std::uint64_t most = ~std::uint64_t{0};
  for (const std::uint64_t size : {most, most - 4096, most / 2}) {
    const auto in_case = s.in_case(std::to_string(size) + " bytes");
    s.check("ALLOC-07", !worker.allocate(resource, size).ok(), "the size is refused");
    s.check_fds("ALLOC-07", worker, before, "after the refusal");
    s.check_free_memory("ALLOC-07", free, "after the refusal");
  }
  const std::uint64_t unit = granule(worker, resource);
  const auto too_much = worker.allocate(resource, free + unit);
  s.check_error("ALLOC-03", too_much, "RuntimeError", {"cuMemCreate", "OUT_OF_MEMORY"});
  s.check_fds("ALLOC-03", worker, before, "after running out of memory");
  s.check_free_memory("ALLOC-03", free, "after running out of memory");
  s.check("ALLOC-03", worker.allocate(resource, 1).ok(), "a small allocation still works");
}

VMMCTS_SCENARIO("core", "allocation: memory returns when the buffer closes", "[ALLOC-04][ALLOC-08]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t free = s.free_memory();
  const std::uint64_t unit = granule(worker, resource);
  // Ten times an eighth of the device are more than all of it.
  const std::uint64_t large = free / 8 / unit * unit;
  for (int round = 0; round < 10; ++round) {
    const auto in_case = s.in_case("round " + std::to_string(round));
    const auto allocated = worker.allocate(resource, large);
    s.check("ALLOC-04", allocated.ok(), "an eighth of the device can be had again");
    if (!allocated.ok()) return;
    worker.close(allocated.value().id).value();
    s.check_free_memory("ALLOC-04", free, "after the buffer closed");
    s.check("ALLOC-08", worker.close(allocated.value().id).ok(), "closing twice is a no-op");
    const Buffer closed = allocated.value();
    s.check("ALLOC-08", !worker.export_descriptor(closed).ok(), "a closed buffer does not export");
    s.check("ALLOC-08",
            !worker.call("read", {{"buffer", closed.id}, {"offset", 0}, {"size", 1}}).ok(),
            "a closed buffer does not read");
    worker.drop(closed.id).value();
  }
}

VMMCTS_SCENARIO("core", "concurrency: eight threads allocate grow share and close", "[CONC-01][GROW-11][EXP-05]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const FdSet before = worker.fds();
  const std::uint64_t free = s.free_memory();
  const Json found =
      worker.call("concurrent", {{"resource", resource.id}, {"threads", 8}, {"rounds", 20}})
          .value();
  s.check_equal("CONC-01 GROW-11 EXP-05", "errors", found.at("errors"), Json::array());
  s.check_equal("CONC-01", "rounds with wrong bytes", found.at("wrong_bytes").get<int>(), 0);
  s.check_fds("CONC-01 EXP-05", worker, before, "after all threads ended");
  s.check_free_memory("CONC-01", free, "after all threads ended");
}
