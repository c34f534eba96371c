// A peer dies at each step of a share, in each way: the survivor works, and the memory comes back.
#include <csignal>

#include "shares.hpp"

using namespace cts;

namespace {

constexpr std::uint64_t kExported = 203;  // the exporter's pattern
constexpr std::uint64_t kMostCalls = 50;  // more driver calls than any step here makes

enum class Way { kill, stop_then_kill, exit, exec };
constexpr Way kWays[] = {Way::kill, Way::stop_then_kill, Way::exit, Way::exec};

std::string name_of(Way way) {
  switch (way) {
    case Way::kill: return "SIGKILL";
    case Way::stop_then_kill: return "SIGSTOP then SIGKILL";
    case Way::exit: return "exit";
    case Way::exec: return "exec";
  }
  return {};
}

void end(Worker& worker, Way way) {
  if (way == Way::exit || way == Way::exec) {
    worker.exit(way == Way::exit ? "_exit" : "exec");
    return;
  }
  if (way == Way::stop_then_kill) worker.signal(SIGSTOP);
  worker.kill();
}

// Takes an importer to a step of the share. Returns whose pattern is then in the memory.
std::uint64_t share_until(int step, Worker& exporter, const Descriptor& exported,
                          Worker& importer) {
  const Resource into = importer.resource().value();
  const auto in_flight = exporter.send_fds(exported.fds);
  if (step == 0) {
    std::vector<int> numbers;
    for (const UniqueFd& fd : in_flight) numbers.push_back(fd.get());
    importer.signal(SIGSTOP);  // they stay in its socket, unread
    importer.begin("receive_fds", Json::object(), numbers);
    return kExported;
  }
  const ReceivedFds received = importer.receive_fds(in_flight);
  if (step == 1) return kExported;
  const Descriptor rebuilt = importer.from_fds(received.fds, exported.sizes).value();
  if (step == 2) return kExported;
  const Buffer imported = importer.import(into, rebuilt).value();
  importer.fill(imported, kExported + 1);
  if (step == 4) importer.drop(imported.id).value();
  return kExported + 1;
}

// Carries out a step of the worker that is killed at its nth driver call. Returns false when the step
// has fewer: it is then done.
bool dies_at(Worker& worker, std::uint64_t nth, const std::function<void()>& step) {
  worker.call_log()->inject({.nth = nth, .action = tap::Action::kill});
  try {
    step();
  } catch (const WorkerLost& lost) {
    if (lost.outcome != WorkerLost::Outcome::crash) throw;
    return true;
  }
  worker.call_log()->clear_injections();
  return false;
}

// Has a new worker of the role die at driver call 1, 2, 3 ... of what `round` does with dies_at, until
// a round has no call left to die at.
void die_at_each_call(Scenario& s, const std::string& role,
                      const std::function<bool(Worker& victim, std::uint64_t nth)>& round) {
  if (!s.plan().tap) throw NotExercised("deaths within a driver call are injected by the tap");
  std::uint64_t nth = 1;
  for (bool died = true; died && nth <= kMostCalls; ++nth) {
    const std::string text = role + " dies at driver call " + std::to_string(nth);
    const auto in_case = s.in_case(text);
    died = round(s.worker(text), nth);
  }
  s.check("TEAR-02", nth > 2 && nth <= kMostCalls, role + " makes driver calls and the rounds end");
  s.note(role + ": " + std::to_string(nth - 2) + " deaths");
}

}  // namespace

VMMCTS_SCENARIO("core", "peer death: the exporter dies at each step", "[TEAR-02][PIN-04][PIN-10]") {
  Worker& importer = s.worker("importer");
  const Resource into = importer.resource().value();
  const FdSet importer_before = importer.fds();
  for (const Way way : kWays) {
    for (const int step : {0, 1, 2, 3, 4}) {
      static const char* const kSteps[] = {"after the allocation", "after the export",
                                           "with the fds in flight", "after from_fds",
                                           "after the import"};
      const auto in_case = s.in_case("exporter ends by " + name_of(way) + " " + kSteps[step]);
      Worker& exporter = s.worker(name_of(way) + " " + kSteps[step]);
      const Resource source = exporter.resource().value();
      const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
      exporter.fill(buffer, 201);
      if (step == 0) {
        end(exporter, way);
        continue;
      }
      const Descriptor exported = exporter.export_descriptor(buffer).value();
      if (step == 1) {
        end(exporter, way);
        continue;
      }
      auto in_flight = exporter.send_fds(exported.fds);
      if (step == 2) end(exporter, way);
      const Descriptor received = rebuild(in_flight, exported, importer);
      in_flight.clear();
      if (step == 3) end(exporter, way);
      const Buffer imported = importer.import(into, received).value();
      importer.drop(received.id).value();
      if (step == 4) end(exporter, way);
      s.check_bytes("TEAR-02 PIN-04 PIN-10", importer, imported, 201, "after the death");
      importer.fill(imported, 202);
      s.check_bytes("TEAR-02", importer, imported, 202, "written after the death");
      const std::uint64_t held = s.free_memory();
      importer.drop(imported.id).value();
      s.check_free_memory("TEAR-02 PIN-10", held + buffer.size, "after the import closed");
      s.check_fds("TEAR-02", importer, importer_before, "at the end");
    }
  }
}

VMMCTS_SCENARIO("core", "peer death: the importer dies at each step", "[TEAR-02][DESC-08]") {
  Worker& exporter = s.worker("exporter");
  const Resource source = exporter.resource().value();
  const FdSet exporter_before = exporter.fds();
  for (const Way way : kWays) {
    for (const int step : {0, 1, 2, 3, 4}) {
      static const char* const kSteps[] = {"with the fds in flight", "with the fds received",
                                           "after from_fds", "after the import",
                                           "after it closed the import"};
      // To be asked to exit it would have to read them.
      if (step == 0 && (way == Way::exit || way == Way::exec)) continue;
      const auto in_case = s.in_case("importer ends by " + name_of(way) + " " + kSteps[step]);
      Worker& importer = s.worker(name_of(way) + " " + kSteps[step]);
      const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
      exporter.fill(buffer, kExported);
      const Descriptor exported = exporter.export_descriptor(buffer).value();
      const std::uint64_t seed = share_until(step, exporter, exported, importer);
      end(importer, way);
      s.check_bytes("TEAR-02", exporter, buffer, seed, "after the death");
      const Buffer again = exporter.import(source, exported).value();
      s.check_bytes("TEAR-02 DESC-08", exporter, again, seed, "imported after the death");
      const std::uint64_t held = s.free_memory();
      for (const int id : {again.id, exported.id, buffer.id}) exporter.drop(id).value();
      s.check_free_memory("TEAR-02", held + buffer.size, "after the exporter let go");
      s.check_fds("TEAR-02", exporter, exporter_before, "at the end");
    }
  }
}

VMMCTS_SCENARIO("core", "peer death: the exporter dies at each of its driver calls", "[TEAR-02]") {
  Worker& importer = s.worker("importer");
  const Resource into = importer.resource().value();
  const FdSet importer_before = importer.fds();
  die_at_each_call(s, "exporter", [&](Worker& exporter, std::uint64_t nth) {
    const Resource source = exporter.resource().value();
    const Buffer shared = exporter.allocate(source, 1).value();
    exporter.fill(shared, kExported);
    const Buffer imported = share(exporter, shared, importer, into);
    const bool died = dies_at(exporter, nth, [&] {
      const Buffer next = exporter.allocate(source, 1).value();
      exporter.drop(exporter.export_descriptor(next).value().id).value();
      exporter.drop(next.id).value();
    });
    s.check_bytes("TEAR-02", importer, imported, kExported, "after the death");
    if (!died) exporter.drop(shared.id).value();
    const std::uint64_t held = s.free_memory();
    importer.drop(imported.id).value();
    s.check_free_memory("TEAR-02", held + imported.size, "after the import closed");
    s.check_fds("TEAR-02", importer, importer_before, "at the end");
    return died;
  });
}

VMMCTS_SCENARIO("core", "peer death: the importer dies at each of its driver calls", "[TEAR-02]") {
  Worker& exporter = s.worker("exporter");
  const Resource source = exporter.resource().value();
  const FdSet exporter_before = exporter.fds();
  die_at_each_call(s, "importer", [&](Worker& importer, std::uint64_t nth) {
    const Resource into = importer.resource().value();
    const Buffer buffer = exporter.allocate(source, 1).value();
    exporter.fill(buffer, kExported);
    const Descriptor exported = exporter.export_descriptor(buffer).value();
    const Descriptor rebuilt = forward(exporter, exported, importer);
    const bool died = dies_at(importer, nth, [&] {
      importer.drop(importer.import(into, rebuilt).value().id).value();
    });
    if (!died) importer.drop(rebuilt.id).value();
    s.check_bytes("TEAR-02", exporter, buffer, kExported, "after the death");
    const Buffer again = exporter.import(source, exported).value();
    s.check_bytes("TEAR-02", exporter, again, kExported, "imported after the death");
    const std::uint64_t held = s.free_memory();
    for (const int id : {again.id, exported.id, buffer.id}) exporter.drop(id).value();
    s.check_free_memory("TEAR-02", held + buffer.size, "after the exporter let go");
    s.check_fds("TEAR-02", exporter, exporter_before, "at the end");
    return died;
  });
}
