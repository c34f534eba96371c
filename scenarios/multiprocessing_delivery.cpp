// Buffers and descriptors arrive through every transport of multiprocessing.
#include "shares.hpp"
#include "transports.hpp"
#include "worker/pattern.hpp"

using namespace cts;

namespace {

constexpr int kGivenInChild = 500;

// A sender with a buffer that holds the pattern of `seed`.
struct Sender {
  Sender(Scenario& s, const Layout& layout, std::uint64_t pattern)
      : worker(s.worker("sender")), resource(worker.resource().value()),
        buffer(allocate_chunks(worker, resource, layout)), seed(pattern) {
    worker.fill(buffer, seed);
  }
  Worker& worker;
  Resource resource;
  Buffer buffer;
  std::uint64_t seed;
};

const std::vector<Layout> kLayouts{{1}, {1, 2, 1}};
const std::vector<std::string> kMethods{"spawn", "forkserver"};

// What arrived is an import over the sender's bytes, in both directions.
void check_arrived(Scenario& s, const std::string& clauses, Worker& receiver, const Buffer& arrived,
                   Sender& sender) {
  s.check(clauses, arrived.is_mapped, "the buffer was imported on arrival");
  s.check_equal(clauses, "size", arrived.size, sender.buffer.size);
  s.check_bytes(clauses, receiver, arrived, sender.seed, "on arrival");
  receiver.fill(arrived, sender.seed + 1);
  s.check_bytes(clauses, sender.worker, sender.buffer, sender.seed + 1, "that the receiver wrote");
  sender.worker.fill(sender.buffer, sender.seed);
}

// One buffer and one descriptor through a queue or a pipe, and the sender's descriptors afterwards.
void deliver(Scenario& s, Carrier carrier, const std::string& method, const Layout& layout,
             const std::string& buffers, const std::string& descriptors) {
  const auto in_case =
      s.in_case(to_string(carrier) + " by " + method + " with " + to_string(layout));
  Sender sender(s, layout, 151);
  Worker* receiver = nullptr;
  const Link link = open_link(s, carrier, sender.worker, method, receiver);
  // The first item starts what the transport starts lazily.
  const Buffer first = sender.worker.allocate(sender.resource, 1).value();
  link.send(first.id).value();
  receiver->drop(next_buffer(*receiver, link.operation, link.source).value().id).value();
  sender.worker.drop(first.id).value();
  const FdSet before = sender.worker.fds();
  const FdSet receiver_before = receiver->fds();

  link.send(sender.buffer.id).value();
  const Buffer arrived = next_buffer(*receiver, link.operation, link.source).value();
  s.check_fds_soon(buffers, sender.worker, before, "once the receiver has the buffer");
  s.check_fds(buffers, *receiver, receiver_before, "with the buffer imported");
  check_arrived(s, buffers, *receiver, arrived, sender);
  receiver->drop(arrived.id).value();

  const Descriptor exported = sender.worker.export_descriptor(sender.buffer).value();
  link.send(exported.id).value();
  const Descriptor received = next_descriptor(*receiver, link.operation, link.source).value();
  s.check_equal(descriptors, "sizes", received.sizes, exported.sizes);
  sender.worker.drop(exported.id).value();
  s.check_fds_soon(descriptors, sender.worker, before, "once the receiver has the descriptor");
  const Resource into = receiver->resource().value();
  const Buffer imported = receiver->import(into, received).value();
  check_arrived(s, descriptors, *receiver, imported, sender);
  s.stop_child("receiver");
  sender.worker.drop(sender.buffer.id).value();
}

}  // namespace

VMMCTS_SCENARIO("python", "delivery: queue and pipe carry buffers and descriptors to a spawned child",
                "[MP-01][MP-02][MP-04]") {
  for (const Carrier carrier : {Carrier::queue, Carrier::pipe}) {
    for (const Layout& layout : kLayouts) {
      deliver(s, carrier, "spawn", layout, "MP-01 MP-04", "MP-02 MP-04");
    }
  }
}

VMMCTS_SCENARIO("python", "delivery: queue and pipe carry buffers and descriptors by forkserver",
                "[MP-16]") {
  for (const Carrier carrier : {Carrier::queue, Carrier::pipe}) {
    deliver(s, carrier, "forkserver", {1, 2, 1}, "MP-16", "MP-16");
  }
}

VMMCTS_SCENARIO("python", "delivery: 254 allocations travel through queue and pipe",
                "[MP-01][MP-02][GROW-13]") {
  for (const Carrier carrier : {Carrier::queue, Carrier::pipe}) {
    const auto in_case = s.in_case(to_string(carrier));
    Sender sender(s, Layout(1, 1), 152);
    const Buffer large = allocate_chunks(sender.worker, sender.resource, Layout(254, 1));
    const std::uint64_t unit = large.size / 254;
    for (const std::uint64_t chunk : {0, 127, 253}) {
      sender.worker.fill(large, chunk, chunk * unit, 64);
    }
    Worker* receiver = nullptr;
    const Link link = open_link(s, carrier, sender.worker, "spawn", receiver);
    link.send(large.id).value();
    const Buffer arrived = next_buffer(*receiver, link.operation, link.source).value();
    for (const std::uint64_t chunk : {0, 127, 253}) {
      s.check_equal("MP-01 GROW-13", "first wrong byte in chunk " + std::to_string(chunk),
                    receiver->mismatch(arrived, chunk, chunk * unit, 64), std::int64_t{-1});
    }
    const Descriptor exported = sender.worker.export_descriptor(large).value();
    link.send(exported.id).value();
    const Descriptor received = next_descriptor(*receiver, link.operation, link.source).value();
    s.check_equal("MP-02", "sizes", received.sizes, exported.sizes);
    s.stop_child("receiver");
    sender.worker.drop(large.id).value();
  }
}

VMMCTS_SCENARIO("python", "delivery: Process arguments carry a buffer and a descriptor",
                "[MP-01][MP-02][MP-16]") {
  for (const std::string& method : kMethods) {
    for (const Layout& layout : kLayouts) {
      const auto in_case = s.in_case(method + " with " + to_string(layout));
      const std::string by = method == "spawn" ? "" : "MP-16";
      Sender sender(s, layout, 153);
      const Descriptor exported = sender.worker.export_descriptor(sender.buffer).value();
      Worker& child = s.start_child("child", sender.worker, method,
                                    {{kGivenInChild, sender.buffer.id},
                                     {kGivenInChild + 1, exported.id}});
      const Buffer arrived = child.info(Buffer{kGivenInChild}).value();
      check_arrived(s, by.empty() ? "MP-01" : by, child, arrived, sender);
      const Descriptor received = child.descriptor(Descriptor{kGivenInChild + 1}).value();
      const Resource into = child.resource().value();
      check_arrived(s, by.empty() ? "MP-02" : by, child, child.import(into, received).value(),
                    sender);
      s.stop_child("child");
      sender.worker.drop(exported.id).value();
      sender.worker.drop(sender.buffer.id).value();
    }
  }
}

VMMCTS_SCENARIO("python", "delivery: a pool takes buffers and descriptors and returns buffers",
                "[MP-01][MP-02][MP-16][MP-20]") {
  struct Row {
    const char* kind;
    const char* method;
    const char* clauses;
  };
  for (const Row& row : {Row{"pool", "spawn", "MP-01 MP-02"}, Row{"pool", "forkserver", "MP-16"},
                         Row{"executor", "spawn", "MP-20"}}) {
    const auto in_case = s.in_case(std::string(row.kind) + " by " + row.method);
    Sender sender(s, {1, 2}, 154);
    const int pool = sender.worker.new_object();
    sender.worker.call("pool", {{"out", pool}, {"kind", row.kind}, {"method", row.method}})
        .value();
    const Descriptor exported = sender.worker.export_descriptor(sender.buffer).value();
    const std::uint64_t last = sender.buffer.size - 1;
    const int due = pattern_byte(sender.seed, last);
    for (const auto& [function, object] : {std::pair{"last_byte", sender.buffer.id},
                                           std::pair{"import_last_byte", exported.id}}) {
      const auto called = sender.worker.call(
          "pool_call", {{"pool", pool}, {"function", function}, {"object", object}});
      s.check(row.clauses, called.ok(), std::string(function) + " works in the pool");
      if (called.ok()) {
        s.check_equal(row.clauses, function, called.value().at("value").get<int>(), due);
      }
    }
    const int id = sender.worker.new_object();
    const auto returned = sender.worker.call(
        "pool_call", {{"pool", pool}, {"function", "allocate"}, {"out", id}});
    s.check(row.clauses, returned.ok(), "a buffer of the pool's process comes back");
    if (returned.ok()) {
      const Buffer buffer{id, returned.value().at("pointer"), returned.value().at("size"), true};
      s.check_bytes(row.clauses, sender.worker, buffer, 7, "that the pool's process wrote");
    }
    sender.worker.call("pool_close", {{"pool", pool}}).value();
    for (const int object : {pool, id, exported.id, sender.buffer.id}) {
      if (object != id || returned.ok()) sender.worker.drop(object).value();
    }
  }
}

VMMCTS_SCENARIO("python", "delivery: a spawned Process keeps the transient descriptor until released",
                "[MP-05]") {
  Sender sender(s, {1, 2, 1}, 155);
  const Descriptor probe = sender.worker.export_descriptor(sender.buffer).value();
  const std::string exported_file = sender.worker.fds().target_of(probe.fds[0]);
  sender.worker.drop(probe.id).value();
  // What a first child starts lazily (the resource tracker) is started before the measurement.
  s.start_child("first", sender.worker, "spawn", {});
  s.stop_child("first");
  const FdSet before = sender.worker.fds();
  Worker& child =
      s.start_child("child", sender.worker, "spawn", {{kGivenInChild, sender.buffer.id}});
  child.info(Buffer{kGivenInChild}).value();
  s.check_equal("MP-05", "exported fds that the sender holds while the Process object lives",
                sender.worker.fds().added_since(before).size() > 0, true);
  const auto held = sender.worker.fds().added_since(before);
  std::size_t of_export = 0;
  for (const int fd : held) of_export += sender.worker.fds().target_of(fd) == exported_file;
  s.note("held for the Process object: " + std::to_string(held.size()) + " fds, " +
         std::to_string(of_export) + " named like the first export");
  s.check("MP-05", held.size() >= 3, "one fd per allocation is held for the child");
  s.stop_child("child");
  s.check_fds("MP-05", sender.worker, before, "after the Process object was released");
}

VMMCTS_SCENARIO("python", "delivery: one object twice in the arguments of a Process", "[MP-06][MP-16]") {
  for (const std::string& method : kMethods) {
    const auto in_case = s.in_case(method);
    const std::string clauses = method == "spawn" ? "MP-06" : "MP-06 MP-16";
    Sender sender(s, {1, 2}, 156);
    const Descriptor exported = sender.worker.export_descriptor(sender.buffer).value();
    Worker& child = s.start_child("child", sender.worker, method,
                                  {{kGivenInChild, sender.buffer.id},
                                   {kGivenInChild + 1, sender.buffer.id},
                                   {kGivenInChild + 2, exported.id},
                                   {kGivenInChild + 3, exported.id}});
    for (int i = 0; i < 2; ++i) {
      check_arrived(s, clauses, child, child.info(Buffer{kGivenInChild + i}).value(), sender);
    }
    const Resource into = child.resource().value();
    for (int i = 2; i < 4; ++i) {
      const Descriptor received = child.descriptor(Descriptor{kGivenInChild + i}).value();
      check_arrived(s, clauses, child, child.import(into, received).value(), sender);
    }
    s.stop_child("child");
    for (const int object : {exported.id, sender.buffer.id}) sender.worker.drop(object).value();
  }
}

VMMCTS_SCENARIO("python", "delivery: children of one sender each get their own memory", "[MP-07]") {
  Sender sender(s, {1}, 157);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 4; ++i) {
    buffers.push_back(allocate_chunks(sender.worker, sender.resource, Layout(i + 1, 1)));
    sender.worker.fill(buffers.back(), 160 + i);
  }
  // Files opened and closed between the children let numbers be used again.
  for (int i = 0; i < 4; ++i) {
    const auto in_case = s.in_case("child " + std::to_string(i));
    Worker& child = s.start_child("child " + std::to_string(i), sender.worker, "spawn",
                                  {{kGivenInChild, buffers[i].id},
                                   {kGivenInChild + 1, buffers[3 - i].id}});
    const int churn = sender.worker.call("open_fd", {{"kind", "memfd"}}).value().at("fd");
    for (const auto& [number, index] : {std::pair{0, i}, std::pair{1, 3 - i}}) {
      const Buffer arrived = child.info(Buffer{kGivenInChild + number}).value();
      s.check_equal("MP-07", "size", arrived.size, buffers[index].size);
      s.check_bytes("MP-07", child, arrived, 160 + index, "of its own argument");
    }
    sender.worker.call("close_fd", {{"fd", churn}}).value();
  }
  for (int i = 0; i < 4; ++i) s.stop_child("child " + std::to_string(i));
}

VMMCTS_SCENARIO("python", "delivery: an imported argument is a complete DLPack producer", "[MP-21]") {
  Sender sender(s, {1, 1}, 158);
  Worker& child =
      s.start_child("child", sender.worker, "spawn", {{kGivenInChild, sender.buffer.id}});
  const Buffer arrived = child.info(Buffer{kGivenInChild}).value();
  const auto described = child.call("dlpack", {{"buffer", kGivenInChild}});
  s.check("MP-21", described.ok(), "the buffer makes a DLPack capsule");
  if (described.ok()) {
    const Json& tensor = described.value();
    s.check_equal("MP-21", "device", tensor.at("dlpack_device"), Json({2, 0}));
    s.check_equal("MP-21", "device of the capsule",
                  Json{tensor.at("device_type"), tensor.at("device_id")}, Json({2, 0}));
    s.check_equal("MP-21", "pointer", tensor.at("pointer").get<std::uint64_t>(), arrived.pointer);
    s.check_equal("MP-21", "bytes",
                  tensor.at("shape").at(0).get<std::uint64_t>() *
                      tensor.at("bits").get<std::uint64_t>() / 8,
                  arrived.size);
  }
  s.stop_child("child");
}

VMMCTS_SCENARIO("python", "delivery: a resource pickles with its options and its class",
                "[RES-06][RES-11]") {
  Worker& worker = s.worker("sender");
  for (const bool subclass : {false, true}) {
    const auto in_case = s.in_case(subclass ? "a subclass" : "the class itself");
    const std::string clause = subclass ? "RES-11" : "RES-06";
    const Json options = {{"handle_type", "posix_fd"}, {"self_access", "r"}, {"subclass", subclass}};
    const Resource original = worker.resource(options).value();
    const Json described =
        worker.call("describe_resource", {{"resource", original.id}}).value();
    const int copy = worker.new_object();
    Json copied =
        worker.call("pickle_resource", {{"resource", original.id}, {"out", copy}}).value();
    s.check_equal(clause, "is_ipc_enabled of the copy",
                  copied.at("is_ipc_enabled").get<bool>(), true);
    copied.erase("is_ipc_enabled");
    s.check_equal(clause, "class and options of the copy", copied, described);
    const Buffer buffer = worker.allocate(Resource{copy, true}, 1).value();
    s.check(clause, worker.export_descriptor(buffer).ok(), "the copy works on its own");
    const auto write = worker.call(
        "fill", {{"buffer", buffer.id}, {"offset", 0}, {"size", 16}, {"seed", 1}});
    s.check(clause, !write.ok(), "the copy gives the access of its options");
    worker.drop(original.id).value();
    s.check(clause, worker.allocate(Resource{copy, true}, 1).ok(),
            "the copy outlives the original");
  }
}
