// Resources: handle_type as the one switch, and per-call configurations.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "resource: is_ipc_enabled over the matrix of handle types and locations",
                "[RES-01][RES-10]") {
  Worker& worker = s.worker("exporter");
  struct Row {
    const char* handle_type;
    const char* location;
    bool enabled;
    const char* clause;
  };
  for (const Row& row : {Row{"posix_fd", "device", true, "RES-01"},
                         Row{"none", "device", false, "RES-10"},
                         Row{"fabric", "device", false, "RES-10"},
                         Row{"win32", "device", false, "RES-10"},
                         Row{"win32_kmt", "device", false, "RES-10"},
                         Row{"none", "host", false, "RES-10"},
                         Row{"posix_fd", "host_numa", true, "RES-10"}}) {
    const auto in_case = s.in_case(std::string(row.handle_type) + " at " + row.location);
    const auto made = worker.resource(
        {{"handle_type", row.handle_type}, {"location_type", row.location}});
    s.check(row.clause, made.ok(), "the resource can be made");
    if (made.ok()) {
      s.check_equal(row.clause, "is_ipc_enabled", made.value().is_ipc_enabled, row.enabled);
    }
  }
}

VMMCTS_SCENARIO("core", "resource: a buffer without handle type is refused before any driver call",
                "[RES-02]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource({{"handle_type", "none"}}).value();
  s.check_equal("RES-02", "is_ipc_enabled", resource.is_ipc_enabled, false);
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  worker.fill(buffer, 81);
  const FdSet before = worker.fds();
  const auto refused = worker.export_descriptor(buffer);
  s.check_error("RES-02", refused, "RuntimeError");
  s.check_no_driver_calls("RES-02", refused);
  s.check_fds("RES-02", worker, before, "after the refusal");
  s.check_bytes("RES-02", worker, buffer, 81, "after the refusal");
}

VMMCTS_SCENARIO("core", "resource: a driver that cannot share says so at the first use", "[RES-04]") {
  if (!s.plan().tap) throw NotExercised("failures are injected by the tap");
  constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
  Worker& worker = s.worker("exporter");
  for (const char* call : {"cuMemCreate", "cuMemExportToShareableHandle"}) {
    const auto in_case = s.in_case(std::string(call) + " is not supported");
    for (std::uint64_t nth = 1; nth <= tap::kInjections; ++nth) {
      worker.call_log()->inject({.call = call, .nth = nth, .code = kNotSupported});
    }
    const FdSet before = worker.fds();
    const auto resource = worker.resource();
    if (resource.ok() && resource.value().is_ipc_enabled) {
      const auto buffer = worker.allocate(resource.value(), 1);
      if (!buffer.ok()) {
        s.check_error("RES-04", buffer, "RuntimeError", {"alloc"});
        check_status(s, "RES-04", buffer, call);
      } else {
        const auto refused = worker.export_descriptor(buffer.value());
        s.check_error("RES-04", refused, "RuntimeError", {"export"});
        check_status(s, "RES-04", refused, call);
      }
    }
    s.check_fds("RES-04", worker, before, "after the first use");
    worker.call_log()->clear_injections();
  }
}

VMMCTS_SCENARIO("python", "resource: a descriptor of another kind is refused by its type", "[RES-09]") {
  Worker& worker = s.worker("importer");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  worker.fill(buffer, 83);
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  const FdSet before = worker.fds();
  const Json kinds = worker.call("foreign_kinds", {{"descriptor", descriptor.id}}).value();
  for (const std::string kind : kinds.at("kinds")) {
    const auto in_case = s.in_case(kind);
    const auto refused = worker.call("import_foreign", {{"resource", resource.id},
                                                        {"descriptor", descriptor.id},
                                                        {"kind", kind},
                                                        {"out", worker.new_object()}});
    s.check_error("RES-09", refused, "TypeError");
    s.check_no_driver_calls("RES-09", refused);
    s.check_fds("RES-09", worker, before, "after the refusal");
  }
  const Buffer imported = worker.import(resource, descriptor).value();
  s.check_bytes("RES-09", worker, imported, 83, "imported with the descriptor afterwards");
}

VMMCTS_SCENARIO("core", "resource: import through a resource that cannot share is refused",
                "[RES-03]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  worker.fill(buffer, 82);
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  const FdSet before = worker.fds();
  for (const char* type : {"none", "fabric"}) {
    const auto in_case = s.in_case(type);
    const Resource other = worker.resource({{"handle_type", type}}).value();
    const auto refused = worker.import(other, descriptor);
    s.check("RES-03", !refused.ok(), "the import is refused");
    if (!refused.ok()) {
      const std::string& kind = refused.error().kind;
      s.check("RES-03", kind == "RuntimeError" || kind == "ValueError",
              "a RuntimeError or a ValueError, not " + refused.error().to_string());
    }
    s.check_no_driver_calls("RES-03", refused);
    s.check_fds("RES-03", worker, before, "after the refusal");
  }
  const Buffer imported = worker.import(resource, descriptor).value();
  s.check_bytes("RES-03", worker, imported, 82, "imported with the descriptor afterwards");
}

VMMCTS_SCENARIO("core", "resource: plain host memory with a handle type is refused at construction",
                "[RES-05]") {
  Worker& worker = s.worker("exporter");
  const auto refused =
      worker.resource({{"handle_type", "posix_fd"}, {"location_type", "host"}});
  s.check("RES-05", !refused.ok(), "the resource is refused");
  s.check("RES-05",
          worker.resource({{"handle_type", "none"}, {"location_type", "host"}}).ok(),
          "host memory without a handle type is fine");
}

VMMCTS_SCENARIO("core", "resource: a per-call config keeps the handle type", "[RES-07][RES-12]") {
  Worker& worker = s.worker("exporter");
  const std::uint64_t free = s.free_memory();
  for (const auto& [own, other] : {std::pair{"posix_fd", "none"}, std::pair{"none", "posix_fd"}}) {
    const auto in_case = s.in_case(std::string(own) + " to " + other);
    const Resource resource = worker.resource({{"handle_type", own}}).value();
    const Buffer buffer = worker.allocate(resource, 1).value();
    worker.fill(buffer, 83);
    for (const std::uint64_t size : {std::uint64_t{1}, buffer.size * 2}) {
      const auto refused = worker.modify(resource, buffer, size, Json{{"handle_type", other}});
      s.check_error("RES-07 RES-12", refused, "ValueError");
      s.check_no_driver_calls("RES-07", refused);
    }
    s.check_free_memory("RES-07", free - buffer.size, "after the refusals");
    s.check_bytes("RES-07", worker, buffer, 83, "after the refusals");
    worker.drop(buffer.id).value();
  }
}

VMMCTS_SCENARIO("core", "resource: a per-call config governs the new chunk only", "[RES-08][GROW-06]") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = worker.allocate(resource, 1).value();
  const std::uint64_t unit = buffer.size;
  worker.fill(buffer, 84);
  for (const int round : {1, 2}) {
    const auto in_case = s.in_case("round " + std::to_string(round));
    // A read-only chunk behind a writable one; the path is whichever the driver takes.
    const Buffer grown =
        worker.modify(resource, buffer, 2 * unit, Json{{"self_access", "r"}}).value();
    worker.fill(grown, 85, 0, unit);
    s.check_equal("GROW-06", "first wrong byte of the old chunk",
                  worker.mismatch(grown, 85, 0, unit), std::int64_t{-1});
    const auto write = worker.call(
        "fill", {{"buffer", grown.id}, {"offset", unit}, {"size", 16}, {"seed", 1}});
    s.check("RES-08", !write.ok(), "the new chunk has the access of the config");
    worker.drop(grown.id).value();
    const Buffer fresh = worker.allocate(resource, 1).value();
    const auto fill = worker.call(
        "fill", {{"buffer", fresh.id}, {"offset", 0}, {"size", 16}, {"seed", 1}});
    s.check("RES-08", fill.ok(), "the config is not stored on the resource");
    const Buffer plain = worker.modify(resource, buffer, 2 * unit).value();
    const auto later = worker.call(
        "fill", {{"buffer", plain.id}, {"offset", unit}, {"size", 16}, {"seed", 1}});
    s.check("RES-08", later.ok(), "a later grow has the access of the resource");
    worker.drop(plain.id).value();
  }
}

VMMCTS_SCENARIO("core", "resource: a buffer of another resource is a TypeError", "[GROW-10]") {
  Worker& worker = s.worker("exporter");
  const Resource own = worker.resource().value();
  const Resource other = worker.resource().value();
  const Buffer buffer = worker.allocate(own, 1).value();
  const auto refused = worker.modify(other, buffer, buffer.size * 2);
  s.check_error("GROW-10", refused, "TypeError");
  worker.close(buffer.id).value();
  s.check("GROW-10", !worker.modify(own, buffer, buffer.size * 2).ok(),
          "growing a closed buffer is an error");
}
