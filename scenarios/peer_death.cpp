// A peer dies at each step of a share, in each way: the survivor works, and the memory comes back.
#include <csignal>

#include "shares.hpp"

using namespace cts;

namespace {

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
    for (const int step : {0, 1, 2}) {
      static const char* const kSteps[] = {"with the fds received", "after from_fds",
                                           "after the import"};
      const auto in_case = s.in_case("importer ends by " + name_of(way) + " " + kSteps[step]);
      Worker& importer = s.worker(name_of(way) + " " + kSteps[step]);
      const Resource into = importer.resource().value();
      const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
      exporter.fill(buffer, 203);
      const Descriptor exported = exporter.export_descriptor(buffer).value();
      const ReceivedFds received = importer.receive_fds(exporter.send_fds(exported.fds));
      std::uint64_t seed = 203;
      if (step > 0) {
        const Descriptor rebuilt = importer.from_fds(received.fds, exported.sizes).value();
        if (step > 1) importer.fill(importer.import(into, rebuilt).value(), ++seed);
      }
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
