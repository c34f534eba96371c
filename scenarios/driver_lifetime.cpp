// What keeps memory, and when it goes: counted as free memory that a third process sees.
#include "driver.hpp"

using namespace cts;

VMMCTS_SCENARIO("driver", "driver: a released handle leaves its mapping whole", "[DRV-44]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  const std::uint64_t unit = driver.unit();
  const Piece piece = driver.place(driver.create(2 * unit), 2 * unit, kNoAccess);
  driver.works("DRV-44", driver.call("cuMemRelease", {{"handle", piece.handle}}), "while mapped");
  // Access may still be set, and the bytes written and read.
  driver.grant(piece.pointer, piece.size);
  driver.fill(piece.pointer, piece.size, 121);
  s.check("DRV-44", driver.holds(piece.pointer, piece.size, 121), "the mapping works");
  s.check_free_memory("DRV-44", free - piece.size, "with the mapping alone");
  driver.unmap(piece.pointer, piece.size);
  s.check_free_memory("DRV-44", free, "after the unmap");
  driver.free_address(piece.pointer, piece.size);
}

VMMCTS_SCENARIO("driver", "driver: a mapping gives back what its released handle needs",
                "[DRV-44][DRV-31]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 122);
  driver.release(piece.handle);
  const int retained = driver.object();
  driver.works(
      "DRV-31",
      driver.call("cuMemRetainAllocationHandle", {{"out", retained}, {"pointer", piece.pointer}}),
      "after the release");
  const Piece second = driver.place(retained, piece.size, kRead);
  s.check("DRV-44", driver.holds(second.pointer, second.size, 122), "a new mapping has the bytes");
  const int fd = driver.export_fd(retained);
  const Piece third = driver.place(driver.import_fd(fd), piece.size);
  driver.fill(third.pointer, third.size, 123);
  s.check("DRV-44", driver.holds(piece.pointer, piece.size, 123), "an export of it is the memory");
}

VMMCTS_SCENARIO("driver", "driver: memory goes when the last of everything goes", "[DRV-43]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  const Piece piece = driver.piece(8);
  driver.fill(piece.pointer, piece.size, 124);
  const std::uint64_t held = free - piece.size;
  s.check_free_memory("DRV-43", held, "with a handle and a mapping");
  const int fd = driver.export_fd(piece.handle);
  const int copy = driver.worker().call("dup", {{"fd", fd}}).value().at("fd");
  driver.undo(piece);
  s.check_free_memory("DRV-43", held, "with a descriptor and its dup");
  driver.close_fd(fd);
  s.check_free_memory("DRV-43", held, "with the dup alone");
  const int imported = driver.import_fd(copy);
  driver.close_fd(copy);
  s.check_free_memory("DRV-43", held, "with an import alone");
  const Piece place = driver.place(imported, piece.size);
  driver.release(imported);
  s.check_free_memory("DRV-43", held, "with a mapping alone");
  s.check("DRV-43", driver.holds(place.pointer, place.size, 124), "the bytes went along");
  driver.unmap(place.pointer, place.size);
  s.check_free_memory("DRV-43", free, "with nothing");
  driver.free_address(place.pointer, place.size);
}

VMMCTS_SCENARIO("driver", "driver: the exporter goes first and the importer keeps the memory",
                "[DRV-43][DRV-45]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t free = s.free_memory();
  const Piece piece = exporter.piece(2);
  exporter.fill(piece.pointer, piece.size, 125);
  const int there = exporter.export_fd(piece.handle);
  const int fd = exporter.pass(there, importer);
  exporter.close_fd(there);
  exporter.undo(piece);
  s.check_free_memory("DRV-43", free - piece.size, "with the importer's descriptor alone");
  const int imported = importer.import_fd(fd);
  importer.close_fd(fd);
  const Piece place = importer.place(imported, piece.size);
  s.check("DRV-45", importer.holds(place.pointer, place.size, 125), "the bytes are there");
  importer.fill(place.pointer, place.size, 126);
  s.check("DRV-45", importer.holds(place.pointer, place.size, 126), "and can be written");
  importer.undo(place);
  s.check_free_memory("DRV-43", free, "after the importer let go");
}

VMMCTS_SCENARIO("driver", "driver: a descriptor outlives the process that exported it",
                "[DRV-45]") {
  Driver importer(s, "b");
  for (const bool killed : {true, false}) {
    const std::string role = killed ? "killed exporter" : "exiting exporter";
    const auto in_case = s.in_case(role);
    Driver exporter(s, role);
    const Piece piece = exporter.piece(2);
    exporter.fill(piece.pointer, piece.size, 127);
    const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
    if (killed) {
      exporter.worker().kill();
    } else {
      exporter.worker().exit("_exit");
    }
    const std::uint64_t with_descriptor = s.free_memory();
    const Called imported =
        importer.call("cuMemImportFromShareableHandle", {{"out", importer.object()}, {"fd", fd}});
    importer.works("DRV-45", imported, "after the exporter's death");
    if (!imported.ok()) continue;
    const int handle = importer.import_fd(fd);
    const Piece place = importer.place(handle, piece.size);
    s.check("DRV-45", importer.holds(place.pointer, place.size, 127), "the bytes are there");
    importer.worker().reset();
    s.check_free_memory("DRV-45", with_descriptor + piece.size, "after the importer let go");
  }
}

VMMCTS_SCENARIO("driver", "driver: an import outlives the process that exported it", "[DRV-45]") {
  Driver importer(s, "b");
  Driver exporter(s, "a");
  const Piece piece = exporter.piece(2);
  exporter.fill(piece.pointer, piece.size, 128);
  const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
  const Piece place = importer.place(importer.import_fd(fd), piece.size);
  importer.close_fd(fd);
  exporter.worker().kill();
  const std::uint64_t with_import = s.free_memory();
  s.check("DRV-45", importer.holds(place.pointer, place.size, 128), "the bytes are there");
  importer.fill(place.pointer, place.size, 129);
  s.check("DRV-45", importer.holds(place.pointer, place.size, 129), "and can be written");
  importer.undo(place);
  s.check_free_memory("DRV-45", with_import + piece.size, "after the importer let go");
}

VMMCTS_SCENARIO("driver", "driver: an importer that dies leaves the exporter its memory",
                "[DRV-43][DRV-45]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const Piece piece = exporter.piece(2);
  const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
  const Piece place = importer.place(importer.import_fd(fd), piece.size);
  importer.fill(place.pointer, place.size, 130);
  importer.worker().kill();
  s.check("DRV-45", exporter.holds(piece.pointer, piece.size, 130), "what it wrote is there");
  const std::uint64_t with_piece = s.free_memory();
  exporter.worker().reset();
  s.check_free_memory("DRV-43", with_piece + piece.size, "after the exporter let go");
}

VMMCTS_SCENARIO("driver", "driver: a descriptor in flight keeps the memory", "[DRV-43]") {
  Driver exporter(s, "a");
  const std::uint64_t free = s.free_memory();
  const Piece piece = exporter.piece(2);
  exporter.fill(piece.pointer, piece.size, 131);
  Worker& worker = exporter.worker();
  const std::vector<int> ends = worker.call("socketpair").value().at("fds").get<std::vector<int>>();
  const int fd = exporter.export_fd(piece.handle);
  worker.call("sendmsg", {{"socket", ends[0]}, {"fds", Json::array({fd})}}).value();
  exporter.close_fd(fd);
  exporter.undo(piece);
  s.check_free_memory("DRV-43", free - piece.size, "with the descriptor in the socket");
  const Json arrived = worker.call("recvmsg", {{"socket", ends[1]}}).value();
  const Piece place = exporter.place(exporter.import_fd(arrived.at("received")[0]), piece.size);
  s.check("DRV-43", exporter.holds(place.pointer, place.size, 131), "it arrives with the bytes");
  exporter.undo(place);
  worker.call("close_fd", {{"fd", arrived.at("received")[0]}}).value();
  // A descriptor that nobody takes out of a socket goes with the socket.
  const Piece lost = exporter.piece();
  const int sent = exporter.export_fd(lost.handle);
  worker.call("sendmsg", {{"socket", ends[0]}, {"fds", Json::array({sent})}}).value();
  exporter.close_fd(sent);
  exporter.undo(lost);
  s.check_free_memory("DRV-43", free - lost.size, "with a descriptor that nobody takes");
  for (const int end : ends) exporter.close_fd(end);
  s.check_free_memory("DRV-43", free, "after the socket closed");
}

VMMCTS_SCENARIO("driver", "driver: memory belongs to no context as observed", "[DRV-48]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 132);
  driver.observed("ctxreset.reset", driver.call("cuDevicePrimaryCtxReset"), kCudaSuccess);
  driver.must("cuCtxSetCurrent", {{"device", 0}});
  driver.observed("ctxreset.read_after_reset",
                  driver.call("cuMemcpyDtoH", {{"pointer", piece.pointer}, {"size", piece.size}}),
                  kCudaSuccess);
  const bool kept = driver.holds(piece.pointer, piece.size, 132);
  driver.observed("ctxreset.bytes_kept", kept, true);
  driver.works("DRV-48", driver.call("cuMemExportToShareableHandle", {{"handle", piece.handle}}));
  driver.works("DRV-48",
               driver.call("cuMemUnmap", {{"pointer", piece.pointer}, {"size", piece.size}}));
  driver.works("DRV-48",
               driver.call("cuMemAddressFree", {{"pointer", piece.pointer}, {"size", piece.size}}));
  driver.works("DRV-48", driver.call("cuMemRelease", {{"handle", piece.handle}}));
  driver.worker().kill();  // its context is no longer the one that its clean state had
}

VMMCTS_SCENARIO("driver", "driver: releases beyond the count as observed", "[DRV-52]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.release(piece.handle);
  // The mapping keeps the allocation, so the handle is no dangling one.
  driver.observed("retain.rel4_over", driver.call("cuMemRelease", {{"handle", piece.handle}}),
                  kInvalidValue);
  driver.observed("release.zero", driver.call("cuMemRelease", {{"handle", {{"value", 0}}}}),
                  kInvalidValue);
  driver.fill(piece.pointer, piece.size, 133);
  s.check("DRV-52", driver.holds(piece.pointer, piece.size, 133), "the mapping works on");
}

VMMCTS_SCENARIO("driver", "driver: a forked child is told that it has no driver as observed",
                "[DRV-49]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 134);
  const std::uint64_t free = s.free_memory();
  const FdSet before = driver.worker().fds();
  const Json results = driver.worker().call("after_fork").value().at("results");
  for (const auto& [entry_point, result] : results.items()) {
    driver.observed("fork.child." + entry_point, result, int{kNotInitialized});
  }
  s.check("DRV-49", driver.holds(piece.pointer, piece.size, 134), "the parent's memory is whole");
  s.check_fds("DRV-49", driver.worker(), before, "after the child ended");
  s.check_free_memory("DRV-49", free, "after the child ended");
  driver.works("DRV-49", driver.call("cuMemExportToShareableHandle", {{"handle", piece.handle}}),
               "in the parent");
}
