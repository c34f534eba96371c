// Rough weather on the transports: things closed early, receivers that die, limits, many rounds.
#include "shares.hpp"
#include "transports.hpp"

using namespace cts;

VMMCTS_SCENARIO("python", "weather: put a descriptor and close the buffer at once and it arrives 200 times",
                "[MP-12]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  Worker* receiver = nullptr;
  const Link link = open_link(s, Carrier::queue, sender, "spawn", receiver);
  const Resource into = receiver->resource().value();
  for (int i = 0; i < 200; ++i) {
    const Buffer buffer = sender.allocate(resource, 1).value();
    sender.fill(buffer, i, 0, 64);
    const Descriptor descriptor = sender.export_descriptor(buffer).value();
    link.send(descriptor.id).value();
    sender.close(buffer.id).value();
    sender.drop(descriptor.id).value();
    const auto received = next_descriptor(*receiver, link.operation, link.source);
    s.check("MP-12", received.ok(), "the descriptor arrives");
    if (!received.ok()) return;
    const Buffer imported = receiver->import(into, received.value()).value();
    s.check_equal("MP-12", "first wrong byte in round " + std::to_string(i),
                  receiver->mismatch(imported, i, 0, 64), std::int64_t{-1});
    for (const int id : {imported.id, received.value().id}) receiver->drop(id).value();
    sender.drop(buffer.id).value();
  }
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "weather: put a buffer and close it at once and it arrives or is reported",
                "[MP-13]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  const int queue = make_queue(sender, "spawn");
  Worker& receiver = s.start_child("receiver", sender, "spawn", {{900, queue}});
  const Buffer marker = sender.allocate(resource, 1).value();
  sender.fill(marker, 250);
  int arrived = 0;
  constexpr int kRounds = 50;
  for (int i = 0; i < kRounds; ++i) {
    const Buffer buffer = sender.allocate(resource, 1).value();
    sender.fill(buffer, 99, 0, 64);
    sender.call("put", {{"queue", queue}, {"object", buffer.id}}).value();
    sender.close(buffer.id).value();
    // The marker follows whatever became of the buffer.
    sender.call("put", {{"queue", queue}, {"object", marker.id}}).value();
    for (;;) {
      const auto got = get(receiver, 900);
      s.check("MP-13", got.ok(), "the queue does not hang");
      if (!got.ok()) return;
      const bool is_marker = receiver.mismatch(got.value(), 250, 0, 64) < 0;
      if (!is_marker) {
        ++arrived;
        s.check_equal("MP-13", "first wrong byte", receiver.mismatch(got.value(), 99, 0, 64),
                      std::int64_t{-1});
      }
      receiver.drop(got.value().id).value();
      if (is_marker) break;
    }
    sender.drop(buffer.id).value();
  }
  const Json reported = sender.call("feeder_errors", {{"queue", queue}}).value().at("errors");
  s.check_equal("MP-13", "buffers that arrived or were reported",
                arrived + static_cast<int>(reported.size()), kRounds);
  s.note(std::to_string(arrived) + " of " + std::to_string(kRounds) + " arrived");
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "weather: parked items pin the memory until they are received", "[PIN-06]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  Worker* receiver = nullptr;
  const Link link = open_link(s, Carrier::queue, sender, "spawn", receiver);
  const Buffer warm_up = sender.allocate(resource, 1).value();
  link.send(warm_up.id).value();
  receiver->drop(next_buffer(*receiver, link.operation, link.source).value().id).value();
  sender.drop(warm_up.id).value();
  const FdSet before = sender.fds();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = allocate_chunks(sender, resource, {1, 1});
  sender.fill(buffer, 181);
  const Descriptor descriptor = sender.export_descriptor(buffer).value();
  link.send(descriptor.id).value();
  sender.drop(descriptor.id).value();
  sender.close(buffer.id).value();
  s.check_free_memory("PIN-06", free - buffer.size, "with the descriptor parked in the queue");
  const Descriptor received = next_descriptor(*receiver, link.operation, link.source).value();
  s.check_fds_soon("PIN-06", sender, before, "once the receiver has it");
  s.check_free_memory("PIN-06", free - buffer.size, "with the receiver's descriptor");
  receiver->drop(received.id).value();
  s.check_free_memory("PIN-06", free, "after the receiver dropped it");
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "weather: a receiver that dies before it unpickles leaves a bounded residue",
                "[MP-14]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = allocate_chunks(sender, resource, {1, 1});
  std::vector<std::size_t> residues;
  FdSet before;
  for (int round = 0; round < 3; ++round) {
    Worker* receiver = nullptr;
    const Link link = open_link(s, Carrier::queue, sender, "spawn", receiver);
    if (round == 0) {
      link.send(buffer.id).value();
      receiver->drop(next_buffer(*receiver, link.operation, link.source).value().id).value();
    }
    before = sender.fds();
    const Descriptor descriptor = sender.export_descriptor(buffer).value();
    link.send(descriptor.id).value();
    sender.drop(descriptor.id).value();
    // The item is in the pipe once the feeder has taken it: its fds are with the resource sharer.
    s.kill_child("receiver");
    residues.push_back(sender.fds().added_since(before).size());
  }
  s.check("MP-14", residues.back() <= residues.front() + 4,
          "the residue of one death does not grow: " + std::to_string(residues.front()) + " to " +
              std::to_string(residues.back()));
  const ExitStatus status = sender.exit("_exit");
  s.check("MP-14", status.clean(), "the sender ends with " + status.to_string());
  s.check("MP-14", s.free_memory() >= free, "the residue goes with the sender");
}

VMMCTS_SCENARIO("python", "weather: a receiver at its fd limit gets an error and a later send works",
                "[MP-15]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  Worker* receiver = nullptr;
  const Link link = open_link(s, Carrier::queue, sender, "spawn", receiver);
  const Buffer buffer = allocate_chunks(sender, resource, {1, 1, 1});
  sender.fill(buffer, 182);
  link.send(buffer.id).value();
  receiver->drop(next_buffer(*receiver, link.operation, link.source).value().id).value();
  const FdSet before = receiver->fds();
  for (int slots = 0; slots < 3; ++slots) {
    const auto in_case = s.in_case(std::to_string(slots) + " free slots");
    receiver->leave_free_fds(slots);
    link.send(buffer.id).value();
    const auto refused = next_buffer(*receiver, link.operation, link.source);
    s.check("MP-15", !refused.ok(), "the receiver gets an error");
    receiver->restore_fd_limit();
    if (refused.ok()) receiver->drop(refused.value().id).value();
    s.check_fds("MP-15", *receiver, before, "after the error");
  }
  link.send(buffer.id).value();
  const auto later = next_buffer(*receiver, link.operation, link.source);
  s.check("MP-15", later.ok(), "a later send works");
  if (later.ok()) s.check_bytes("MP-15", *receiver, later.value(), 182, "of the later send");
  s.stop_child("receiver");
  // What a receiver never fetched waits in the sender for it, as in MP-14, and goes with the sender.
  sender.exit("_exit");
}

VMMCTS_SCENARIO("python", "weather: after fork the child gets a clear error and the parent is unharmed",
                "[MP-17]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  const Buffer buffer = allocate_chunks(sender, resource, {1, 1});
  sender.fill(buffer, 183);
  const Descriptor descriptor = sender.export_descriptor(buffer).value();
  const FdSet before = sender.fds();
  const std::uint64_t free = s.free_memory();
  Worker& child = s.start_child("child", sender, "fork",
                                {{500, buffer.id}, {501, descriptor.id}, {502, resource.id}});
  for (const auto& [what, answer] :
       {std::pair{"allocate", child.call("allocate", {{"resource", 502}, {"size", 1}, {"out", 1}})},
        std::pair{"export", child.call("export", {{"buffer", 500}, {"out", 2}})},
        std::pair{"import",
                  child.call("import", {{"resource", 502}, {"descriptor", 501}, {"out", 3}})}}) {
    const auto in_case = s.in_case(what);
    s.check("MP-17", !answer.ok(), "the child gets an error");
    if (!answer.ok()) {
      const std::string& message = answer.error().message;
      s.check("MP-17",
              message.find("fork") != std::string::npos ||
                  message.find("NOT_INITIALIZED") != std::string::npos,
              "the error says what is wrong: " + answer.error().to_string());
    }
  }
  for (const int object : {500, 501, 502}) {
    s.check("MP-17", child.drop(object).ok(), "the child drops its copies");
  }
  s.stop_child("child");
  s.check_fds("MP-17", sender, before, "after the child ended");
  s.check_free_memory("MP-17", free, "after the child ended");
  s.check_bytes("MP-17", sender, buffer, 183, "after the child ended");
  const Buffer imported = sender.import(resource, descriptor).value();
  s.check_bytes("MP-17", sender, imported, 183, "imported after the child ended");
}

VMMCTS_SCENARIO("python", "weather: 1000 sends under a low limit never creep", "[MP-18][MP-04]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  Worker* receiver = nullptr;
  const Link link = open_link(s, Carrier::pipe, sender, "spawn", receiver);
  const Buffer buffer = sender.allocate(resource, 1).value();
  sender.fill(buffer, 184, 0, 64);
  link.send(buffer.id).value();
  receiver->drop(next_buffer(*receiver, link.operation, link.source).value().id).value();
  const FdSet before = sender.fds();
  const FdSet receiver_before = receiver->fds();
  sender.leave_free_fds(16);
  receiver->leave_free_fds(16);
  int failures = 0;
  for (int i = 0; i < 1000 && failures == 0; ++i) {
    const auto sent = link.send(buffer.id);
    if (!sent.ok()) {
      ++failures;
      s.check("MP-18", false, "send " + std::to_string(i) + ": " + sent.error().to_string());
      break;
    }
    const auto got = next_buffer(*receiver, link.operation, link.source);
    s.check("MP-18", got.ok(), "item " + std::to_string(i) + " arrives");
    if (!got.ok()) break;
    receiver->drop(got.value().id).value();
  }
  sender.restore_fd_limit();
  receiver->restore_fd_limit();
  s.check_fds_soon("MP-18 MP-04", sender, before, "after 1000 sends");
  s.check_fds("MP-18", *receiver, receiver_before, "after 1000 receives");
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "weather: two threads send on two queues without disturbing each other",
                "[MP-19]") {
  constexpr int kRounds = 30;
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  const int first = make_queue(sender, "spawn");
  const int second = make_queue(sender, "spawn");
  Worker& receiver =
      s.start_child("receiver", sender, "spawn", {{900, first}, {901, second}});
  const Buffer a = sender.allocate(resource, 1).value();
  const Buffer b = allocate_chunks(sender, resource, {1, 1});
  sender.fill(a, 185);
  sender.fill(b, 186);
  sender.call("put_many", {{"queues", {first, second}},
                           {"objects", {a.id, b.id}},
                           {"rounds", kRounds}})
      .value();
  for (int i = 0; i < kRounds; ++i) {
    for (const auto& [queue, seed, size] :
         {std::tuple{900, 185, a.size}, std::tuple{901, 186, b.size}}) {
      const auto got = get(receiver, queue);
      s.check("MP-19", got.ok(), "every item arrives");
      if (!got.ok()) return;
      s.check_equal("MP-19", "size", got.value().size, size);
      s.check_equal("MP-19", "first wrong byte", receiver.mismatch(got.value(), seed, 0, 64),
                    std::int64_t{-1});
      receiver.drop(got.value().id).value();
    }
  }
  for (const int queue : {first, second}) {
    s.check_equal("MP-19", "errors of the feeder",
                  sender.call("feeder_errors", {{"queue", queue}}).value().at("errors"),
                  Json::array());
  }
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "weather: interpreter shutdown with live objects is quiet", "[DESC-14]") {
  Worker& sender = s.worker("sender");
  const Resource resource = sender.resource().value();
  const Buffer buffer = allocate_chunks(sender, resource, {1, 1});
  const Descriptor descriptor = sender.export_descriptor(buffer).value();
  sender.import(resource, descriptor).value();
  const int queue = make_queue(sender, "spawn");
  sender.call("put", {{"queue", queue}, {"object", buffer.id}}).value();
  sender.call("cycle", {{"objects", {buffer.id, descriptor.id}}}).value();
  const std::size_t log_before = sender.log().size();
  const ExitStatus status = sender.exit("exit");
  s.check("DESC-14", status.clean(), "the interpreter exits with status 0, not " + status.to_string());
  s.check("DESC-14", sender.log().size() == log_before,
          "it prints nothing: " + sender.log().substr(log_before));
}
