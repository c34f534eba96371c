// Two devices: memory of one that the other may use.
#include "driver.hpp"

using namespace cts;

namespace {

// The driver of a worker, where two devices can reach each other's memory.
Driver driver_of_peers(Scenario& s, const std::string& role) {
  if (s.plan().devices < 2) throw NotExercised("one device");
  Driver driver(s, role);
  if (!driver.has(kVirtualMemory, 1)) throw NotExercised("device 1 has no virtual memory");
  for (const int device : {0, 1}) {
    const Called told =
        driver.must("cuDeviceCanAccessPeer", {{"device", device}, {"peer", 1 - device}});
    if (told.get<int>() == 0) throw NotExercised("the devices do not reach each other");
  }
  return driver;
}

}  // namespace

VMMCTS_SCENARIO("driver", "driver: memory of a device is counted there", "[DRV-07][DRV-29]") {
  if (s.plan().devices < 2) throw NotExercised("one device");
  Driver driver(s, "a");
  const std::uint64_t first = s.free_memory(0);
  const std::uint64_t second = s.free_memory(1);
  const Piece piece = driver.piece(4, {{"location_id", 1}});
  s.check_free_memory("DRV-29", first, "with memory of device 1", 0);
  s.check_free_memory("DRV-29", second - piece.size, "with memory of device 1", 1);
  driver.undo(piece);
  s.check_free_memory("DRV-07", second, "after it was released", 1);
}

VMMCTS_SCENARIO("driver", "driver: a device has the access that it was granted and no other",
                "[DRV-29][DRV-26]") {
  Driver driver = driver_of_peers(s, "a");
  const Piece piece = driver.piece();
  s.check_equal("DRV-29", "access of a device never granted", driver.access(piece.pointer, 1),
                std::uint64_t{kNoAccess});
  driver.grant(piece.pointer, piece.size, kRead, 1);
  s.check_equal("DRV-29", "access of the device granted", driver.access(piece.pointer, 1),
                std::uint64_t{kRead});
  s.check_equal("DRV-26", "access of the device not listed", driver.access(piece.pointer, 0),
                std::uint64_t{kReadWrite});
  driver.works(
      "DRV-29",
      driver.call("cuMemSetAccess",
                  {{"pointer", piece.pointer},
                   {"size", piece.size},
                   {"access", Json::array({access_for(0, kNoAccess), access_for(1, kReadWrite)})}}),
      "for two devices at once");
  s.check_equal("DRV-29", "access of the first", driver.access(piece.pointer, 0),
                std::uint64_t{kNoAccess});
  s.check_equal("DRV-29", "access of the second", driver.access(piece.pointer, 1),
                std::uint64_t{kReadWrite});
  driver.unmap(piece.pointer, piece.size);
  driver.map(piece.pointer, piece.size, piece.handle);
  for (const int device : {0, 1}) {
    s.check_equal("DRV-29", "access after a remap", driver.access(piece.pointer, device),
                  std::uint64_t{kNoAccess});
  }
}

VMMCTS_SCENARIO("driver", "driver: a device granted access copies what the other wrote",
                "[DRV-29]") {
  Driver driver = driver_of_peers(s, "a");
  for (const int owner : {0, 1}) {
    const auto in_case = s.in_case("memory of device " + std::to_string(owner));
    const int other = 1 - owner;
    const Piece piece = driver.piece(1, {{"location_id", owner}});
    driver.must("cuCtxSetCurrent", {{"device", owner}});
    driver.fill(piece.pointer, piece.size, 141);
    driver.must("cuCtxSetCurrent", {{"device", other}});
    driver.grant(piece.pointer, piece.size, kReadWrite, other);
    s.check("DRV-29", driver.holds(piece.pointer, piece.size, 141), "the other device reads it");
    driver.fill(piece.pointer, piece.size, 142);
    driver.must("cuCtxSetCurrent", {{"device", owner}});
    s.check("DRV-29", driver.holds(piece.pointer, piece.size, 142), "the owner reads its write");
    driver.undo(piece);
  }
}

VMMCTS_SCENARIO("driver", "driver: one range of two devices is copied in one go",
                "[DRV-29][DRV-18]") {
  Driver driver = driver_of_peers(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(2 * unit);
  driver.map(base, unit, driver.create(unit));
  driver.map(base + unit, unit, driver.create(unit, {{"location_id", 1}}));
  driver.works("DRV-29",
               driver.call("cuMemSetAccess",
                           {{"pointer", base},
                            {"size", 2 * unit},
                            {"access",
                             Json::array({access_for(0, kReadWrite), access_for(1, kReadWrite)})}}),
               "over memory of two devices");
  driver.must("cuMemcpyHtoD", {{"pointer", base}, {"size", 2 * unit}, {"seed", 143}});
  const Called read =
      driver.must("cuMemcpyDtoH", {{"pointer", base}, {"size", 2 * unit}, {"seed", 143}});
  s.check_equal("DRV-18", "first wrong byte", read.get<std::int64_t>("mismatch"), -1);
}

VMMCTS_SCENARIO("driver", "driver: an import is for the devices that the importer names",
                "[DRV-29][DRV-38]") {
  Driver exporter = driver_of_peers(s, "a");
  Driver importer(s, "b");
  const Piece piece = exporter.piece(1, {{"location_id", 1}});
  exporter.grant(piece.pointer, piece.size, kReadWrite, 0);
  exporter.fill(piece.pointer, piece.size, 144);
  const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
  const int imported = importer.import_fd(fd);
  const Json told = importer.must("cuMemGetAllocationPropertiesFromHandle", {{"handle", imported}})
                        .reply.at("prop");
  s.check_equal("DRV-38", "device of the import", told.at("location_id").get<int>(), 1);
  const Piece place = importer.place(imported, piece.size, kNoAccess);
  importer.grant(place.pointer, place.size, kReadWrite, 1);
  s.check_equal("DRV-29", "access of device 0 in the importer", importer.access(place.pointer, 0),
                std::uint64_t{kNoAccess});
  importer.grant(place.pointer, place.size, kRead, 0);
  s.check("DRV-29", importer.holds(place.pointer, place.size, 144), "device 0 reads it");
}
