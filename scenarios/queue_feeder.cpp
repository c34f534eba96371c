// A Queue's feeder thread reports the refusal, drops the item, and the queue works on.
#include "shares.hpp"
#include "transports.hpp"

using namespace cts;

namespace {

const std::vector<std::string> kRefusal{"imported", "another process", "cannot be exported"};

// A Python worker that holds an import, with a queue and a child that reads from it.
struct Feeder {
  Feeder(Scenario& s, int maxsize)
      : exporter(s.worker("exporter")), sender(s.worker("sender")),
        source(exporter.resource().value()), into(sender.resource().value()),
        original(exporter.allocate(source, 1).value()) {
    exporter.fill(original, 71);
    imported = share(exporter, original, sender, into);
    queue = make_queue(sender, "spawn", maxsize);
    receiver = &s.start_child("receiver", sender, "spawn", {{kQueueInChild, queue}});
  }

  static constexpr int kQueueInChild = 900;
  Worker& exporter;
  Worker& sender;
  Resource source;
  Resource into;
  Buffer original;
  Buffer imported;
  int queue = 0;
  Worker* receiver = nullptr;
};

// Puts something that cannot be exported and waits until the feeder has reported it.
void put_refused(Scenario& s, Feeder& feeder, int object, int reported_before) {
  feeder.sender.call("put", {{"queue", feeder.queue}, {"object", object}}).value();
  const auto waited = feeder.sender.call(
      "feeder_wait", {{"queue", feeder.queue}, {"count", reported_before + 1}});
  s.check("MP-08 PROV-15", waited.ok(), "the feeder reports the refusal");
  if (!waited.ok()) return;
  const Json error = waited.value().at("errors").back();
  s.check_equal("MP-08 PROV-15", "exception type", error.at("kind").get<std::string>(),
                std::string("RuntimeError"));
  for (const std::string& part : kRefusal) {
    s.check("PROV-15", error.at("message").get<std::string>().find(part) != std::string::npos,
            "the reported message says \"" + part + "\": " +
                error.at("message").get<std::string>());
  }
}

// Puts a good buffer and checks that it is the next thing to arrive, with its bytes.
void put_good(Scenario& s, Feeder& feeder, std::uint64_t seed) {
  const Buffer good = feeder.sender.allocate(feeder.into, 1).value();
  feeder.sender.fill(good, seed);
  feeder.sender.call("put", {{"queue", feeder.queue}, {"object", good.id}}).value();
  const auto got = get(*feeder.receiver, Feeder::kQueueInChild);
  s.check("MP-08", got.ok(), "the next good item arrives");
  if (got.ok()) {
    s.check_bytes("MP-08", *feeder.receiver, got.value(), seed, "of the next good item");
    feeder.receiver->drop(got.value().id).value();
  }
  feeder.sender.drop(good.id).value();
}

}  // namespace

VMMCTS_SCENARIO("python", "queue feeder: an imported buffer is reported and dropped and the queue works on",
                "[MP-08][PROV-15]") {
  Feeder feeder(s, 0);
  put_refused(s, feeder, feeder.imported.id, 0);
  put_good(s, feeder, 72);
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "queue feeder: every buffer derived from an import is reported",
                "[MP-08][PROV-15]") {
  Feeder feeder(s, 0);
  const Buffer alias = feeder.sender.modify(feeder.into, feeder.imported, 1).value();
  const auto import = [&] { return share(feeder.exporter, feeder.original, feeder.sender, feeder.into); };
  const Buffer grown = grow_along(feeder.sender, feeder.into, GrowPath::in_place, import).result;
  const Buffer moved = grow_along(feeder.sender, feeder.into, GrowPath::moved, import).result;
  int reported = 0;
  for (const auto& [name, buffer] : std::vector<std::pair<std::string, Buffer>>{
           {"alias", alias}, {"grown in place", grown}, {"moved", moved}}) {
    const auto in_case = s.in_case(name);
    put_refused(s, feeder, buffer.id, reported++);
    put_good(s, feeder, 73);
  }
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "queue feeder: a bounded queue gets its slot back", "[MP-08]") {
  Feeder feeder(s, 1);
  for (int round = 0; round < 3; ++round) {
    const auto in_case = s.in_case("round " + std::to_string(round));
    put_refused(s, feeder, feeder.imported.id, round);
    put_good(s, feeder, 74);
  }
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "queue feeder: a buffer that cannot be shared is reported", "[MP-08][RES-02]") {
  Feeder feeder(s, 0);
  const Resource unshared = feeder.sender.resource({{"handle_type", "none"}}).value();
  const Buffer buffer = feeder.sender.allocate(unshared, 1).value();
  feeder.sender.call("put", {{"queue", feeder.queue}, {"object", buffer.id}}).value();
  const auto waited =
      feeder.sender.call("feeder_wait", {{"queue", feeder.queue}, {"count", 1}});
  s.check("MP-08 RES-02", waited.ok(), "the feeder reports it");
  put_good(s, feeder, 75);
  s.stop_child("receiver");
}

VMMCTS_SCENARIO("python", "queue feeder: refusals leave no descriptor and no memory", "[MP-08][MP-04]") {
  Feeder feeder(s, 0);
  // The first good item starts what the queue starts lazily.
  put_good(s, feeder, 76);
  const FdSet before = feeder.sender.fds();
  const std::uint64_t free = s.free_memory();
  for (int i = 0; i < 20; ++i) put_refused(s, feeder, feeder.imported.id, i);
  s.check_fds("MP-08 MP-04", feeder.sender, before, "after 20 refusals");
  s.check_free_memory("MP-08", free, "after 20 refusals");
  put_good(s, feeder, 77);
  s.check_fds("MP-04", feeder.sender, before, "after the next good item");
  s.stop_child("receiver");
}
