// Refusals through the transports: raised to the caller, or reported, and the transport works on.
#include "shares.hpp"
#include "transports.hpp"

using namespace cts;

namespace {

const std::vector<std::string> kRefusal{"imported", "another process", "cannot be exported"};

// A Python worker that holds an import of somebody else's memory.
struct Holder {
  explicit Holder(Scenario& s)
      : exporter(s.worker("exporter")), worker(s.worker("sender")),
        source(exporter.resource().value()), resource(worker.resource().value()),
        original(exporter.allocate(source, 1).value()) {
    exporter.fill(original, 171);
    imported = share(exporter, original, worker, resource);
    good = worker.allocate(resource, 1).value();
    worker.fill(good, 172);
  }
  Worker& exporter;
  Worker& worker;
  Resource source;
  Resource resource;
  Buffer original;
  Buffer imported;
  Buffer good;
};

}  // namespace

VMMCTS_SCENARIO("python", "refusal: plain pickle raises and leaks nothing", "[MP-03]") {
  Worker& worker = s.worker("sender");
  const Resource resource = worker.resource().value();
  const Buffer buffer = allocate_chunks(worker, resource, {1, 1});
  const Descriptor descriptor = worker.export_descriptor(buffer).value();
  const FdSet before = worker.fds();
  for (const int object : {buffer.id, descriptor.id}) {
    const auto in_case = s.in_case(object == buffer.id ? "buffer" : "descriptor");
    for (int i = 0; i < 20; ++i) {
      s.check_error("MP-03", worker.call("pickle", {{"object", object}}), "TypeError");
    }
    s.check_fds("MP-03", worker, before, "after plain pickle");
  }
}

VMMCTS_SCENARIO("python", "refusal: a Pipe raises it to the caller of send and carries the next item",
                "[MP-09][MP-22][PROV-13]") {
  Holder holder(s);
  Worker* receiver = nullptr;
  const Link link = open_link(s, Carrier::pipe, holder.worker, "spawn", receiver);
  const Buffer alias = holder.worker.modify(holder.resource, holder.imported, 1).value();
  const Buffer grown =
      holder.worker.modify(holder.resource, holder.imported, 2 * holder.imported.size).value();
  for (const Buffer& refused : {holder.imported, alias, grown}) {
    const FdSet before = holder.worker.fds();
    const auto sent = link.send(refused.id);
    s.check_error("MP-09 MP-22 PROV-13", sent, "RuntimeError", kRefusal);
    s.check_no_driver_calls("PROV-13", sent);
    s.check_fds("MP-09", holder.worker, before, "after the refusal");
    link.send(holder.good.id).value();
    const Buffer arrived = next_buffer(*receiver, link.operation, link.source).value();
    s.check_bytes("MP-09", *receiver, arrived, 172, "of the next item");
    receiver->drop(arrived.id).value();
  }
  const auto pickled = holder.worker.call("forking_pickle", {{"object", holder.imported.id}});
  s.check_error("MP-22", pickled, "RuntimeError", kRefusal);
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "refusal: Process arguments make start raise and leave no child",
                "[MP-10][MP-22][PROV-14]") {
  Holder holder(s);
  s.start_child("first", holder.worker, "spawn", {});
  s.stop_child("first");
  const FdSet before = holder.worker.fds();
  const std::size_t children = s.children_of(holder.worker);
  for (int i = 0; i < 3; ++i) {
    const int process = holder.worker.new_object();
    const auto started =
        holder.worker.call("child", {{"out", process},
                                     {"method", "spawn"},
                                     {"connect", s.session().private_path(".sock")},
                                     {"objects", {{"500", holder.good.id},
                                                  {"501", holder.imported.id}}}});
    s.check_error("MP-10 MP-22 PROV-14", started, "RuntimeError", kRefusal);
    s.check_fds("MP-10", holder.worker, before, "after the refused start");
    s.check_equal("MP-10", "children", s.children_of(holder.worker), children);
  }
  Worker& child = s.start_child("child", holder.worker, "spawn", {{500, holder.good.id}});
  s.check_bytes("MP-10", child, child.info(Buffer{500}).value(), 172, "of the next Process");
  s.stop_child("child");
}

VMMCTS_SCENARIO("python", "refusal: a Pool reports a refused argument and a refused result",
                "[MP-11][MP-20][PROV-16]") {
  for (const char* kind : {"pool", "executor"}) {
    const auto in_case = s.in_case(kind);
    const std::string clauses = std::string(kind) == "pool" ? "MP-11 PROV-16" : "MP-20";
    Holder holder(s);
    const int pool = holder.worker.new_object();
    holder.worker.call("pool", {{"out", pool}, {"kind", kind}, {"method", "spawn"}}).value();
    const auto argument = holder.worker.call(
        "pool_call", {{"pool", pool}, {"function", "nothing"}, {"object", holder.imported.id}});
    s.check_error(clauses, argument, "RuntimeError", kRefusal);
    const auto result = holder.worker.call("pool_call", {{"pool", pool},
                                                         {"function", "return_import"},
                                                         {"object", holder.good.id},
                                                         {"out", holder.worker.new_object()}});
    s.check(clauses, !result.ok(), "the refused result reaches the caller as an error");
    if (!result.ok()) {
      s.check(clauses, result.error().message.find("imported") != std::string::npos,
              "the error tells the refusal: " + result.error().to_string());
    }
    const auto next = holder.worker.call(
        "pool_call", {{"pool", pool}, {"function", "last_byte"}, {"object", holder.good.id}});
    s.check(clauses, next.ok(), "the pool serves the next call");
    holder.worker.call("pool_close", {{"pool", pool}}).value();
    holder.worker.drop(pool).value();
    for (const int object : {holder.imported.id, holder.good.id}) {
      holder.worker.drop(object).value();
    }
  }
}
