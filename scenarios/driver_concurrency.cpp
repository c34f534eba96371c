// Threads, processes at once, and loops that must not grow.
#include "driver.hpp"

using namespace cts;

namespace {

void check_tally(Scenario& s, std::string_view clauses, const Json& tally) {
  s.check_equal(clauses, "calls that failed (" + tally.at("first").get<std::string>() + ")",
                tally.at("failed").get<int>(), 0);
  s.check_equal(clauses, "rounds with wrong bytes", tally.at("wrong_bytes").get<int>(), 0);
}

}  // namespace

VMMCTS_SCENARIO("driver", "driver: threads share memory at once without harm", "[DRV-50]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  const FdSet before = driver.worker().fds();
  check_tally(s, "DRV-50",
              driver.worker().call("cycles", {{"threads", 8}, {"rounds", 12}}).value());
  s.check_fds("DRV-50", driver.worker(), before, "after the threads");
  s.check_free_memory("DRV-50", free, "after the threads");
}

VMMCTS_SCENARIO("driver", "driver: threads export one handle at once", "[DRV-50]") {
  Driver driver(s, "a");
  const int handle = driver.create(driver.unit());
  const FdSet before = driver.worker().fds();
  check_tally(s, "DRV-50",
              driver.worker()
                  .call("exports", {{"handle", handle}, {"threads", 8}, {"rounds", 25}})
                  .value());
  s.check_fds("DRV-50", driver.worker(), before, "after the threads");
}

VMMCTS_SCENARIO("driver", "driver: threads import one descriptor at once", "[DRV-50]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  const int handle = driver.create(driver.unit());
  const int fd = driver.export_fd(handle);
  const FdSet before = driver.worker().fds();
  check_tally(
      s, "DRV-50",
      driver.worker().call("imports", {{"fd", fd}, {"threads", 8}, {"rounds", 25}}).value());
  s.check_fds("DRV-50", driver.worker(), before, "after the threads");
  driver.release(handle);
  driver.close_fd(fd);
  s.check_free_memory("DRV-50", free, "after everything was released");
}

VMMCTS_SCENARIO("driver", "driver: processes import one descriptor at once", "[DRV-50][DRV-40]") {
  constexpr int kImporters = 4;
  Driver exporter(s, "exporter");
  const Piece piece = exporter.piece();
  const int fd = exporter.export_fd(piece.handle);
  struct Importer {
    Driver driver;
    int fd;
    FdSet before;
  };
  std::vector<Importer> importers;
  for (int i = 0; i < kImporters; ++i) {
    Driver driver(s, "importer " + std::to_string(i));
    const int there = exporter.pass(fd, driver);
    const FdSet before = driver.worker().fds();
    importers.push_back({driver, there, before});
  }
  // All requests are under way before the first answer is read.
  std::vector<Worker::Pending> under_way;
  for (Importer& importer : importers) {
    under_way.push_back(importer.driver.worker().begin(
        "imports", {{"fd", importer.fd}, {"threads", 2}, {"rounds", 25}}));
  }
  for (std::size_t i = 0; i < importers.size(); ++i) {
    check_tally(s, "DRV-50 DRV-40", importers[i].driver.worker().finish(under_way[i]).value());
    s.check_fds("DRV-50", importers[i].driver.worker(), importers[i].before, "after its rounds");
  }
}

VMMCTS_SCENARIO("driver", "driver: four hundred rounds leave nothing", "[DRV-51]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  const FdSet before = driver.worker().fds();
  for (int part = 0; part < 4; ++part) {
    check_tally(s, "DRV-51",
                driver.worker().call("cycles", {{"threads", 1}, {"rounds", 100}}).value());
    s.check_free_memory("DRV-51", free, "after part " + std::to_string(part));
  }
  s.check_fds("DRV-51", driver.worker(), before, "after all rounds");
}

VMMCTS_SCENARIO("driver", "driver: many allocations pass to another process at once",
                "[DRV-51][DRV-39]") {
  constexpr int kPieces = 64;
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t unit = exporter.unit();
  std::vector<Piece> pieces;
  std::vector<int> fds;
  for (int i = 0; i < kPieces; ++i) {
    pieces.push_back(exporter.piece());
    exporter.fill(pieces[i].pointer, unit, static_cast<unsigned char>(i + 1));
    fds.push_back(exporter.export_fd(pieces[i].handle));
  }
  const ReceivedFds received = importer.worker().receive_fds(exporter.worker().send_fds(fds));
  s.check_equal("DRV-39", "descriptors that arrived", received.fds.size(), fds.size());
  const std::uint64_t base = importer.reserve(kPieces * unit);
  for (int i = 0; i < kPieces; ++i) {
    importer.map(base + i * unit, unit, importer.import_fd(received.fds.at(i)));
  }
  importer.grant(base, kPieces * unit);
  for (int i = 0; i < kPieces; ++i) {
    s.check("DRV-39", importer.holds(base + i * unit, unit, static_cast<unsigned char>(i + 1)),
            "each has its own bytes");
  }
  importer.works("DRV-51",
                 importer.call("cuMemUnmap", {{"pointer", base}, {"size", kPieces * unit}}),
                 "of all at once");
}
