// Export and import: descriptors that stand for memory, here and in another process.
#include "driver.hpp"

using namespace cts;

VMMCTS_SCENARIO("driver", "driver: an export is one open descriptor", "[DRV-36][DRV-58]") {
  Driver driver(s, "a");
  const FdSet empty = driver.worker().fds();
  const Piece piece = driver.piece();
  const FdSet before = driver.worker().fds();
  driver.observed("export.fd.create_map_cost", before.size() - empty.size(), 0);
  const Called exported = driver.call("cuMemExportToShareableHandle", {{"handle", piece.handle}});
  driver.works("DRV-36", exported);
  if (!exported.ok()) return;
  const int fd = exported.get<int>("fd");
  const std::vector<int> added = driver.worker().fds().added_since(before);
  s.check_equal("DRV-36", "the descriptor that is new", added, std::vector<int>{fd});
  driver.observed("export.fd_props.cloexec", is_close_on_exec(driver.worker().pid(), fd), true);
  driver.close_fd(fd);
  s.check_fds("DRV-36", driver.worker(), before, "after the descriptor closed");
  s.check("DRV-58", driver.access(piece.pointer) == kReadWrite, "the mapping is as it was");
}

VMMCTS_SCENARIO("driver", "driver: a bad export is refused and makes no descriptor", "[DRV-36]") {
  Driver driver(s, "a");
  const int handle = driver.create(driver.unit());
  const int local = driver.create(driver.unit(), {{"handle_types", kNoHandle}});
  const FdSet before = driver.worker().fds();
  refuse_all(driver, "DRV-36", "cuMemExportToShareableHandle", {{"handle", handle}},
             {{"no place for the descriptor", {{"no_out", true}}, "export.out_null", kInvalidValue},
              {"flags", {{"flags", 1}}, "export.flags1", kInvalidValue},
              {"type 0", {{"handle_type", 0}}, "export.type0", kInvalidValue},
              {"the win32 type", {{"handle_type", kWin32}}, "export.type_win32", kInvalidValue},
              {"a type that was not asked for",
               {{"handle_type", kFabric}},
               "export.type_fabric",
               kInvalidValue},
              {"two types at once", {{"handle_type", 3}}, "export.type_3", kInvalidValue},
              {"memory made without a handle type",
               {{"handle", local}},
               "export.not_exportable",
               kInvalidValue},
              {"handle 0", {{"handle", {{"value", 0}}}}, "export.handle0", kInvalidValue}});
  s.check_fds("DRV-36", driver.worker(), before, "after the refusals");
  driver.works("DRV-36", driver.call("cuMemExportToShareableHandle", {{"handle", handle}}),
               "after the refusals");
}

VMMCTS_SCENARIO("driver", "driver: memory made without a handle type stays here", "[DRV-36]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece(1, {{"handle_types", kNoHandle}});
  const int retained = driver.object();
  driver.must("cuMemRetainAllocationHandle", {{"out", retained}, {"pointer", piece.pointer}});
  driver.refused("DRV-36", driver.call("cuMemExportToShareableHandle", {{"handle", retained}}),
                 "of a handle retained from memory that was not made for it");
  driver.fill(piece.pointer, piece.size, 91);
  s.check("DRV-36", driver.holds(piece.pointer, piece.size, 91), "the memory works on");
}

VMMCTS_SCENARIO("driver", "driver: two exports are two open files", "[DRV-37]") {
  Driver driver(s, "a");
  Driver other(s, "b");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 92);
  const int first = driver.export_fd(piece.handle);
  const int second = driver.export_fd(piece.handle);
  s.check("DRV-37", first != second, "their numbers differ");
  const std::vector<UniqueFd> here = driver.worker().send_fds({first, second});
  driver.observed("export.two_open_files", !same_open_file(here[0].get(), here[1].get()), true);
  // Either may close first; the other still imports.
  driver.close_fd(first);
  const int fd = driver.pass(second, other);
  driver.close_fd(second);
  const Piece place = other.place(other.import_fd(fd), piece.size);
  s.check("DRV-37", other.holds(place.pointer, place.size, 92), "the second one is whole");
  const int third = driver.export_fd(piece.handle);
  const int again = driver.import_fd(third);
  driver.works("DRV-37", driver.call("cuMemRelease", {{"handle", again}}));
}

VMMCTS_SCENARIO("driver", "driver: memory imported where it was made is the same memory",
                "[DRV-38]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece(2);
  driver.fill(piece.pointer, piece.size, 93);
  const int fd = driver.export_fd(piece.handle);
  const FdSet before = driver.worker().fds();
  const int imported = driver.import_fd(fd);
  s.check_fds("DRV-38", driver.worker(), before, "after the import");
  const Piece alias = driver.place(imported, piece.size);
  s.check("DRV-38", alias.pointer != piece.pointer, "it has an address of its own");
  s.check("DRV-38", driver.holds(alias.pointer, alias.size, 93), "it has the bytes");
  driver.fill(alias.pointer, alias.size, 94);
  s.check("DRV-38", driver.holds(piece.pointer, piece.size, 94), "its writes are seen here");
  driver.undo(piece);
  s.check("DRV-38", driver.holds(alias.pointer, alias.size, 94), "it outlives the first handle");
}

VMMCTS_SCENARIO("driver", "driver: memory imported in another process is the same memory",
                "[DRV-38]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const Piece piece = exporter.piece(3);
  exporter.must("cuMemcpyHtoD", {{"pointer", piece.pointer}, {"size", piece.size}, {"seed", 95}});
  const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
  const FdSet before = importer.worker().fds();
  const Called imported =
      importer.call("cuMemImportFromShareableHandle", {{"out", importer.object()}, {"fd", fd}});
  importer.works("DRV-38", imported);
  s.check_fds("DRV-38", importer.worker(), before, "after the import");
  if (!imported.ok()) return;
  const int handle = importer.import_fd(fd);
  importer.close_fd(fd);
  const Piece place = importer.place(handle, piece.size, kNoAccess);
  s.check_equal("DRV-38", "access before it is set", importer.access(place.pointer),
                std::uint64_t{kNoAccess});
  importer.grant(place.pointer, place.size);
  const Called read = importer.must(
      "cuMemcpyDtoH", {{"pointer", place.pointer}, {"size", place.size}, {"seed", 95}});
  s.check_equal("DRV-38", "first wrong byte", read.get<std::int64_t>("mismatch"), -1);
  importer.fill(place.pointer, place.size, 96);
  s.check("DRV-38", exporter.holds(piece.pointer, piece.size, 96),
          "the exporter sees what the importer wrote");
  importer.release(handle);
  s.check("DRV-38", importer.holds(place.pointer, place.size, 96),
          "the mapping alone keeps the memory");
}

VMMCTS_SCENARIO("driver", "driver: memory goes on to a third process", "[DRV-38]") {
  Driver exporter(s, "a");
  Driver middle(s, "b");
  Driver last(s, "c");
  const Piece piece = exporter.piece();
  exporter.fill(piece.pointer, piece.size, 97);
  const int there = exporter.pass(exporter.export_fd(piece.handle), middle);
  // The middle one forwards the descriptor and never imports.
  const int fd = middle.pass(there, last);
  const Piece place = last.place(last.import_fd(fd), piece.size);
  s.check("DRV-38", last.holds(place.pointer, place.size, 97), "the third process reads it");
  last.fill(place.pointer, place.size, 98);
  s.check("DRV-38", exporter.holds(piece.pointer, piece.size, 98), "the first sees its write");
}

VMMCTS_SCENARIO("driver", "driver: access does not travel with an export", "[DRV-38]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const Piece piece = exporter.piece();
  exporter.fill(piece.pointer, piece.size, 99);
  exporter.grant(piece.pointer, piece.size, kRead);
  const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
  const Piece place = importer.place(importer.import_fd(fd), piece.size, kReadWrite);
  importer.fill(place.pointer, place.size, 100);
  s.check("DRV-38", exporter.holds(piece.pointer, piece.size, 100), "the importer may write");
  exporter.refused("DRV-38",
                   exporter.call("cuMemsetD8", {{"pointer", piece.pointer}, {"size", 16}}),
                   "to the exporter's read-only mapping");
}

VMMCTS_SCENARIO("driver", "driver: memory that was never mapped can be exported", "[DRV-39]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t size = 2 * exporter.unit();
  const int handle = exporter.create(size);
  const int fd = exporter.pass(exporter.export_fd(handle), importer);
  const Piece place = importer.place(importer.import_fd(fd), size);
  importer.fill(place.pointer, size, 101);
  const Piece here = exporter.place(handle, size);
  s.check("DRV-39", exporter.holds(here.pointer, size, 101),
          "what the importer wrote before the exporter mapped it");
}

VMMCTS_SCENARIO("driver", "driver: several allocations are imported side by side",
                "[DRV-39][DRV-18]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t unit = exporter.unit();
  const std::uint64_t sizes[] = {unit, 3 * unit, unit};
  const std::uint64_t base = importer.reserve(5 * unit);
  std::uint64_t at = base;
  unsigned char byte = 111;
  for (const std::uint64_t size : sizes) {
    const Piece piece = exporter.piece(size / unit);
    exporter.fill(piece.pointer, size, byte++);
    const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
    importer.map(at, size, importer.import_fd(fd));
    importer.close_fd(fd);
    at += size;
  }
  importer.works(
      "DRV-18",
      importer.call("cuMemSetAccess", {{"pointer", base},
                                       {"size", 5 * unit},
                                       {"access", Json::array({access_for(0, kReadWrite)})}}),
      "over three imports");
  at = base;
  byte = 111;
  for (const std::uint64_t size : sizes) {
    s.check("DRV-39", importer.holds(at, size, byte++), "each import has its own bytes");
    at += size;
  }
}

VMMCTS_SCENARIO("driver", "driver: one descriptor is imported again and again", "[DRV-40]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t free = s.free_memory();
  const Piece piece = exporter.piece(2);
  exporter.fill(piece.pointer, piece.size, 102);
  const int there = exporter.export_fd(piece.handle);
  const int fd = exporter.pass(there, importer);
  exporter.close_fd(there);
  exporter.undo(piece);
  std::vector<int> imports;
  for (int i = 0; i < 5; ++i) imports.push_back(importer.import_fd(fd));
  importer.close_fd(fd);
  // Each import needs its own release; the memory goes with the last.
  while (!imports.empty()) {
    s.check_free_memory("DRV-40", free - piece.size,
                        "with " + std::to_string(imports.size()) + " imports");
    const Piece place = importer.place(imports.back(), piece.size, kRead);
    s.check("DRV-40", importer.holds(place.pointer, place.size, 102), "every import has the bytes");
    importer.undo(place);
    imports.pop_back();
  }
  s.check_free_memory("DRV-40", free, "after the last import was released");
}

VMMCTS_SCENARIO("driver", "driver: what is no export is not imported", "[DRV-41][DRV-59]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 103);
  const int good = driver.export_fd(piece.handle);
  const int closed = driver.export_fd(piece.handle);
  driver.close_fd(closed);
  const std::uint64_t free = s.free_memory();
  struct Wrong {
    std::string kind;
    std::string fact;
  };
  for (const Wrong& wrong : std::vector<Wrong>{{"null", "import.fd_devnull"},
                                               {"pipe", "import.fd_pipe"},
                                               {"socket", "import.fd_socket"},
                                               {"memfd", "import.fd_memfd"},
                                               {"file", "import.fd_regular"}}) {
    const auto in_case = s.in_case(wrong.kind);
    const int fd = driver.worker().call("open_fd", {{"kind", wrong.kind}}).value().at("fd");
    const FdSet before = driver.worker().fds();
    for (int i = 0; i < 20; ++i) {
      const Called imported =
          driver.call("cuMemImportFromShareableHandle", {{"out", driver.object()}, {"fd", fd}});
      driver.refused("DRV-41", imported);
      if (i == 0) driver.observed(wrong.fact, imported, kUnknown);
    }
    s.check_fds("DRV-41", driver.worker(), before, "after twenty refusals");
    driver.close_fd(fd);
  }
  const FdSet before = driver.worker().fds();
  refuse_all(driver, "DRV-41", "cuMemImportFromShareableHandle",
             {{"out", driver.object()}, {"fd", good}},
             {{"no place for the handle", {{"no_out", true}}, "import.out_null", kInvalidValue},
              {"descriptor -1", {{"fd", -1}}, "import.fd_minus1", kUnknown},
              {"a closed descriptor", {{"fd", closed}}, "import.fd_closed", kUnknown},
              {"a number out of range", {{"fd", 99999}}, "import.fd_99999", kUnknown},
              {"type 0", {{"handle_type", 0}}, "import.type0", kInvalidValue},
              {"the win32 type", {{"handle_type", kWin32}}, "import.type_win32", kNotSupported}});
  s.check_fds("DRV-41", driver.worker(), before, "after the refusals");
  s.check_free_memory("DRV-41", free, "after the refusals");
  const Piece place = driver.place(driver.import_fd(good), piece.size);
  s.check("DRV-41", driver.holds(place.pointer, place.size, 103),
          "the genuine descriptor still imports");
  driver.works("DRV-59", driver.call("cuCtxSynchronize"));
}

VMMCTS_SCENARIO("driver", "driver: a mapping of an import is refused like any other", "[DRV-19]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t unit = importer.unit();
  const int handle = exporter.create(2 * unit);
  const int fd = exporter.pass(exporter.export_fd(handle), importer);
  const int imported = importer.import_fd(fd);
  const std::uint64_t base = importer.reserve(4 * unit);
  refuse_all(importer, "DRV-19", "cuMemMap",
             {{"pointer", base}, {"size", 2 * unit}, {"handle", imported}},
             {{"a size above the allocation's",
               {{"size", 4 * unit}},
               "import.map_wrong_size_large",
               kNotSupported},
              {"an offset of one unit",
               {{"offset", unit}, {"size", unit}},
               "xproc.importer.map_offset_half",
               kNotSupported},
              {"an offset of one unit and the whole size", {{"offset", unit}}},
              {"flags", {{"flags", 1}}},
              {"an address that is no multiple", {{"pointer", base + 4096}}}});
  importer.works(
      "DRV-19",
      importer.call("cuMemMap", {{"pointer", base}, {"size", 2 * unit}, {"handle", imported}}),
      "after the refusals");
}

VMMCTS_SCENARIO("driver", "driver: imported memory is not exported again as observed", "[DRV-42]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const Piece piece = exporter.piece();
  const int fd = exporter.pass(exporter.export_fd(piece.handle), importer);
  const Piece place = importer.place(importer.import_fd(fd), piece.size);
  importer.fill(place.pointer, place.size, 104);
  const int retained = importer.object();
  importer.must("cuMemRetainAllocationHandle", {{"out", retained}, {"pointer", place.pointer}});
  const FdSet before = importer.worker().fds();
  const Called again = importer.call("cuMemExportToShareableHandle", {{"handle", place.handle}});
  const Called of_retained = importer.call("cuMemExportToShareableHandle", {{"handle", retained}});
  importer.observed("xproc.importer.reexport_imported", again, kInvalidValue);
  importer.observed("xproc.importer.reexport_retained_imported", of_retained, kInvalidValue);
  if (!again.ok() && !of_retained.ok()) {
    s.check_fds("DRV-42", importer.worker(), before, "after the refusals");
  }
  const Called allowed = importer.must(
      "cuPointerGetAttribute", {{"attribute", kAllowedHandleTypes}, {"pointer", place.pointer}});
  importer.observed("xproc.importer.attr.allowed_handle_types", allowed.get(), 0);
  s.check("DRV-42", importer.holds(place.pointer, place.size, 104), "the import works on");
}

VMMCTS_SCENARIO("driver", "driver: a range as a dma-buf where it is supported", "[DRV-60]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  const Json good = {{"pointer", piece.pointer}, {"size", piece.size}};
  const Called exported = driver.call("cuMemGetHandleForAddressRange", good);
  driver.observed("dmabuf.dmabuf_of_vmm", exported, kCudaSuccess);
  if (!driver.has(kDmaBuf) || !exported.ok()) throw NotExercised("no dma-buf of this memory");
  const FdSet before = driver.worker().fds();
  refuse_all(driver, "DRV-60", "cuMemGetHandleForAddressRange", good,
             {{"address 0", {{"pointer", 0}}},
              {"no size", {{"size", 0}}},
              {"an unknown type", {{"handle_type", 99}}},
              {"a range that is not mapped", {{"pointer", driver.reserve(piece.size)}}}});
  s.check_fds("DRV-60", driver.worker(), before, "after the refusals");
  driver.observed("dmabuf.vmm_import_of_dmabuf",
                  driver.call("cuMemImportFromShareableHandle",
                              {{"out", driver.object()}, {"fd", exported.get<int>("fd")}}),
                  kUnknown);
}

VMMCTS_SCENARIO("driver", "driver: the descriptor of a pool is no allocation", "[DRV-59]") {
  Driver driver(s, "a");
  const int pool = driver.object();
  if (!driver.call("cuMemPoolCreate", {{"out", pool}}).ok()) throw NotExercised("no memory pools");
  const Called exported = driver.call("cuMemPoolExportToShareableHandle", {{"pool", pool}});
  if (!exported.ok()) throw NotExercised("no export of memory pools");
  const int fd = exported.get<int>("fd");
  driver.observed("mempool.fd_props.cloexec", is_close_on_exec(driver.worker().pid(), fd), false);
  const FdSet before = driver.worker().fds();
  const Called imported =
      driver.call("cuMemImportFromShareableHandle", {{"out", driver.object()}, {"fd", fd}});
  driver.observed("mempool.vmm_import_of_pool_fd", imported, kNotSupported);
  if (!imported.ok()) s.check_fds("DRV-59", driver.worker(), before, "after the refusal");
}

VMMCTS_SCENARIO("driver", "driver: an export without a free descriptor number is an error",
                "[DRV-47][DRV-58]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  for (const int slots : {0, 1, 2, 3}) {
    const auto in_case = s.in_case(std::to_string(slots) + " free numbers");
    driver.worker().leave_free_fds(slots);
    const FdSet before = driver.worker().fds();
    std::vector<int> exports;
    Called last;
    for (int i = 0; i <= slots; ++i) {
      last = driver.call("cuMemExportToShareableHandle", {{"handle", piece.handle}});
      if (!last.ok()) break;
      exports.push_back(last.get<int>("fd"));
    }
    driver.refused("DRV-47", last, "with every number taken");
    driver.observed("rlimit.slots_" + std::to_string(slots) + ".exports_ok", exports.size(), slots);
    driver.observed("rlimit.export_at_limit", last, kOperatingSystem);
    for (const int fd : exports) driver.close_fd(fd);
    s.check_fds("DRV-47", driver.worker(), before, "after the exports were closed");
    driver.worker().restore_fd_limit();
  }
  driver.works("DRV-47", driver.call("cuMemExportToShareableHandle", {{"handle", piece.handle}}),
               "once there are free numbers");
  s.check("DRV-58", driver.access(piece.pointer) == kReadWrite, "the mapping is as it was");
}

VMMCTS_SCENARIO("driver", "driver: memory needs no descriptor but the export's as observed",
                "[DRV-58]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(unit);
  const int fd = driver.export_fd(handle);
  driver.worker().leave_free_fds(0);
  driver.observed("rlimit.create_at_limit",
                  driver.call("cuMemCreate", {{"out", driver.object()}, {"size", unit}}),
                  kCudaSuccess);
  driver.observed("rlimit.reserve_at_limit", driver.call("cuMemAddressReserve", {{"size", unit}}),
                  kCudaSuccess);
  driver.observed(
      "rlimit.import_at_limit",
      driver.call("cuMemImportFromShareableHandle", {{"out", driver.object()}, {"fd", fd}}),
      kCudaSuccess);
  driver.worker().restore_fd_limit();
  const FdSet before = driver.worker().fds();
  const Piece piece = driver.piece();
  driver.observed("export.fd.create_map_cost", driver.worker().fds().size() - before.size(), 0);
  driver.works("DRV-58", driver.call("cuMemUnmap", {{"pointer", piece.pointer}, {"size", unit}}));
}
