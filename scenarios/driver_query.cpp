// What the driver tells of handles and addresses, and through whom it can be called.
#include <set>

#include "driver.hpp"

using namespace cts;

VMMCTS_SCENARIO("driver", "driver: a handle tells the properties it was made with", "[DRV-30]") {
  Driver driver(s, "a");
  for (int device = 0; device < s.plan().devices; ++device) {
    for (const int handle_types : {kNoHandle, kPosixFd}) {
      const auto in_case = s.in_case("device " + std::to_string(device) + " handle type " +
                                     std::to_string(handle_types));
      const int handle =
          driver.create(driver.unit(), {{"location_id", device}, {"handle_types", handle_types}});
      const Called told =
          driver.call("cuMemGetAllocationPropertiesFromHandle", {{"handle", handle}});
      driver.works("DRV-30", told);
      if (!told.ok()) continue;
      const Json expected = {{"type", 1},
                             {"handle_types", handle_types},
                             {"location_type", kOnDevice},
                             {"location_id", device}};
      s.check_equal("DRV-30", "properties", told.reply.at("prop"), expected);
    }
  }
  const int handle = driver.create(driver.unit());
  refuse_all(driver, "DRV-30", "cuMemGetAllocationPropertiesFromHandle", {{"handle", handle}},
             {{"no place for the properties", {{"no_out", true}}, "props.out_null", kInvalidValue},
              {"handle 0", {{"handle", {{"value", 0}}}}, "props.handle0", kInvalidValue}});
}

VMMCTS_SCENARIO("driver", "driver: an imported handle tells where its memory is",
                "[DRV-30][DRV-56]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const int handle = exporter.create(exporter.unit());
  const int fd = exporter.pass(exporter.export_fd(handle), importer);
  const int imported = importer.import_fd(fd);
  const Json told = importer.must("cuMemGetAllocationPropertiesFromHandle", {{"handle", imported}})
                        .reply.at("prop");
  s.check_equal("DRV-30", "type", told.at("type").get<int>(), 1);
  s.check_equal("DRV-30", "location type", told.at("location_type").get<int>(), int{kOnDevice});
  s.check_equal("DRV-30", "location", told.at("location_id").get<int>(), 0);
  importer.observed("xproc.importer.props.ht", told.at("handle_types"), 0);
  importer.works("DRV-56", importer.call("cuMemRelease", {{"handle", imported}}));
}

VMMCTS_SCENARIO("driver", "driver: a mapped address gives its handle back", "[DRV-31]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(4 * unit);
  const int out = driver.object();
  const std::uint64_t value = driver.must("cuMemCreate", {{"out", out}, {"size", 2 * unit}}).get();
  driver.map(base, 2 * unit, out);
  std::vector<int> retained;
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{4097}, 2 * unit - 1}) {
    const int again = driver.object();
    const Called told =
        driver.call("cuMemRetainAllocationHandle", {{"out", again}, {"pointer", base + offset}});
    driver.works("DRV-31", told, "at byte " + std::to_string(offset));
    if (!told.ok()) continue;
    s.check_equal("DRV-31", "handle at byte " + std::to_string(offset), told.get(), value);
    retained.push_back(again);
  }
  refuse_all(driver, "DRV-31", "cuMemRetainAllocationHandle",
             {{"out", driver.object()}, {"pointer", base}},
             {{"no place for the handle", {{"no_out", true}}, "retain.out_null", kInvalidValue},
              {"address 0", {{"pointer", 0}}, "retain.addr_null", kInvalidValue},
              {"an address that is reserved only",
               {{"pointer", base + 3 * unit}},
               "retain.reserved_unmapped",
               kInvalidValue},
              {"an address that nobody reserved",
               {{"pointer", 16 * unit}},
               "retain.unmapped",
               kInvalidValue}});
  // Each retain pairs with a release, the creation with one more.
  for (const int handle : retained) {
    driver.works("DRV-31", driver.call("cuMemRelease", {{"handle", handle}}), "of a retain");
  }
  driver.works("DRV-31", driver.call("cuMemRelease", {{"handle", out}}), "of the creation");
  driver.unmap(base, 2 * unit);
  driver.refused(
      "DRV-31",
      driver.call("cuMemRetainAllocationHandle", {{"out", driver.object()}, {"pointer", base}}),
      "after the unmap");
}

VMMCTS_SCENARIO("driver", "driver: a retained handle keeps the memory until it is released",
                "[DRV-31][DRV-43]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  const Piece piece = driver.piece(2);
  driver.fill(piece.pointer, piece.size, 81);
  const int retained = driver.object();
  driver.must("cuMemRetainAllocationHandle", {{"out", retained}, {"pointer", piece.pointer}});
  driver.undo(piece);
  s.check_free_memory("DRV-31 DRV-43", free - piece.size, "with the retained handle alone");
  const Piece again = driver.place(retained, piece.size);
  s.check("DRV-31", driver.holds(again.pointer, again.size, 81), "its bytes are there");
  driver.undo(again);
  s.check_free_memory("DRV-31 DRV-43", free, "after it was released");
}

VMMCTS_SCENARIO("driver", "driver: a mapping of imported memory gives the imported handle",
                "[DRV-31]") {
  Driver exporter(s, "a");
  Driver importer(s, "b");
  const std::uint64_t unit = importer.unit();
  const int handle = exporter.create(unit);
  const int fd = exporter.pass(exporter.export_fd(handle), importer);
  const int out = importer.object();
  const std::uint64_t value =
      importer.must("cuMemImportFromShareableHandle", {{"out", out}, {"fd", fd}}).get();
  const Piece place = importer.place(out, unit);
  const Called told = importer.call("cuMemRetainAllocationHandle",
                                    {{"out", importer.object()}, {"pointer", place.pointer + 5}});
  importer.works("DRV-31", told);
  if (told.ok()) s.check_equal("DRV-31", "handle of the mapping", told.get(), value);
}

VMMCTS_SCENARIO("driver", "driver: pointers tell their mapping and their reservation", "[DRV-32]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(4 * unit);
  driver.map(base, unit, driver.create(unit));
  driver.map(base + unit, 2 * unit, driver.create(2 * unit));
  driver.grant(base, 3 * unit);
  const auto attribute = [&](PointerAttribute which, std::uint64_t pointer) {
    return driver.call("cuPointerGetAttribute", {{"attribute", which}, {"pointer", pointer}});
  };
  const auto tells = [&](PointerAttribute which, std::uint64_t pointer, const std::string& what,
                         std::uint64_t expected) {
    const Called told = attribute(which, pointer);
    driver.works("DRV-32", told, "for " + what);
    if (told.ok()) s.check_equal("DRV-32", what, told.get(), expected);
  };
  const std::uint64_t inside = base + unit + 77;
  const Called range = driver.call("cuMemGetAddressRange", {{"pointer", inside}});
  driver.works("DRV-32", range);
  s.check_equal("DRV-32", "base of the mapped region", range.get("base"), base + unit);
  s.check_equal("DRV-32", "size of the mapped region", range.get("size"), 2 * unit);
  tells(kMemoryType, inside, "memory type", 2);
  tells(kDeviceOrdinal, inside, "device", 0);
  tells(kRangeStart, inside, "start of the reservation", base);
  tells(kRangeSize, inside, "size of the reservation", 4 * unit);
  tells(kMappingBase, inside, "base of the mapping", base + unit);
  tells(kMappingSize, inside, "size of the mapping", 2 * unit);
  tells(kMapped, inside, "being mapped", 1);
  tells(kAllowedHandleTypes, inside, "handle types allowed", kPosixFd);
  tells(kLegacyIpcCapable, inside, "legacy IPC capability", 0);
  driver.observed("retain.attr.memtype_reserved_only", attribute(kMemoryType, base + 3 * unit),
                  kInvalidValue);
}

VMMCTS_SCENARIO("driver", "driver: buffer ids are never used again", "[DRV-32]") {
  Driver driver(s, "a");
  std::set<std::uint64_t> ids;
  for (int round = 0; round < 8; ++round) {
    const Piece piece = driver.piece();
    const Called told = driver.call("cuPointerGetAttribute",
                                    {{"attribute", kBufferId}, {"pointer", piece.pointer}});
    driver.works("DRV-32", told);
    if (told.ok()) ids.insert(told.get());
    driver.undo(piece);
  }
  s.check_equal("DRV-32", "ids of eight allocations", ids.size(), std::size_t{8});
}

VMMCTS_SCENARIO("driver", "driver: other memory is no virtual memory", "[DRV-57]") {
  Driver driver(s, "a");
  const std::uint64_t plain = driver.must("cuMemAlloc", {{"size", driver.unit()}}).get("pointer");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 82);
  driver.observed(
      "retain.cuMemAlloc_ptr",
      driver.call("cuMemRetainAllocationHandle", {{"out", driver.object()}, {"pointer", plain}}),
      kInvalidValue);
  driver.observed("retain.ipc_get_on_vmm",
                  driver.call("cuIpcGetMemHandle", {{"pointer", piece.pointer}}), kInvalidValue);
  driver.observed("retain.cuMemFree_on_vmm", driver.call("cuMemFree", {{"pointer", piece.pointer}}),
                  kInvalidValue);
  s.check("DRV-57", driver.holds(piece.pointer, piece.size, 82), "the mapping works on");
}

VMMCTS_SCENARIO("driver", "driver: every resolver finds functions that work", "[DRV-33]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  for (const char* via : {"dlsym", "proc_address", "per_thread"}) {
    const auto in_case = s.in_case(via);
    const auto call = [&](const std::string& entry_point, Json arguments) {
      arguments["via"] = via;
      const Called called = driver.call(entry_point, std::move(arguments));
      driver.works("DRV-33", called);
      return called;
    };
    const int handle = driver.object();
    const int imported = driver.object();
    const int retained = driver.object();
    call("cuMemGetAllocationGranularity", Json::object());
    call("cuMemCreate", {{"out", handle}, {"size", unit}});
    const Called reserved = call("cuMemAddressReserve", {{"size", unit}});
    if (!reserved.ok()) continue;
    const std::uint64_t pointer = reserved.get("pointer");
    call("cuMemMap", {{"pointer", pointer}, {"size", unit}, {"handle", handle}});
    call("cuMemSetAccess", {{"pointer", pointer},
                            {"size", unit},
                            {"access", Json::array({access_for(0, kReadWrite)})}});
    call("cuMemGetAccess", {{"pointer", pointer}});
    call("cuMemsetD8", {{"pointer", pointer}, {"size", unit}, {"byte", 83}});
    call("cuMemcpyHtoD", {{"pointer", pointer}, {"size", 16}, {"byte", 84}});
    const Called read = call("cuMemcpyDtoH", {{"pointer", pointer}, {"size", 16}});
    if (read.ok()) s.check_equal("DRV-33", "byte read", read.get<int>("byte"), 84);
    const Called exported = call("cuMemExportToShareableHandle", {{"handle", handle}});
    if (exported.ok()) {
      call("cuMemImportFromShareableHandle", {{"out", imported}, {"fd", exported.get<int>("fd")}});
      call("cuMemRelease", {{"handle", imported}});
      driver.close_fd(exported.get<int>("fd"));
    }
    call("cuMemRetainAllocationHandle", {{"out", retained}, {"pointer", pointer}});
    call("cuMemRelease", {{"handle", retained}});
    call("cuMemGetAllocationPropertiesFromHandle", {{"handle", handle}});
    call("cuMemUnmap", {{"pointer", pointer}, {"size", unit}});
    call("cuMemAddressFree", {{"pointer", pointer}, {"size", unit}});
    call("cuMemRelease", {{"handle", handle}});
  }
}

VMMCTS_SCENARIO("driver", "driver: a name that nobody knows is not found", "[DRV-33]") {
  Driver driver(s, "a");
  constexpr int kSymbolNotFound = 1;
  constexpr int kVersionNotSufficient = 2;
  const Called unknown = driver.call("cuGetProcAddress", {{"symbol", "cuMemNoSuchCall"}});
  s.check("DRV-33", !unknown.get<bool>("found"), "an unknown name has no address");
  s.check_equal("DRV-33", "status of an unknown name", unknown.get<int>("status"), kSymbolNotFound);
  const Called early =
      driver.call("cuGetProcAddress", {{"symbol", "cuMemCreate"}, {"version", 9000}});
  s.check("DRV-33", !early.get<bool>("found"), "a version before the call has no address");
  s.check_equal("DRV-33", "status of a version before the call", early.get<int>("status"),
                kVersionNotSufficient);
  const Called known = driver.call("cuGetProcAddress", {{"symbol", "cuMemCreate"}});
  driver.works("DRV-33", known);
  s.check("DRV-33", known.get<bool>("found"), "a known name has an address");
}

VMMCTS_SCENARIO("driver", "driver: sharing memory needs no current context", "[DRV-34]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  // Each call is made by a thread that has no context.
  const auto call = [&](const std::string& entry_point, Json arguments) {
    arguments["thread"] = true;
    const Called called = driver.call(entry_point, std::move(arguments));
    driver.works("DRV-34", called, "without a context");
    return called;
  };
  const int handle = driver.object();
  const int imported = driver.object();
  const int retained = driver.object();
  call("cuMemCreate", {{"out", handle}, {"size", unit}});
  const Called reserved = call("cuMemAddressReserve", {{"size", unit}});
  if (!reserved.ok()) return;
  const std::uint64_t pointer = reserved.get("pointer");
  call("cuMemMap", {{"pointer", pointer}, {"size", unit}, {"handle", handle}});
  call(
      "cuMemSetAccess",
      {{"pointer", pointer}, {"size", unit}, {"access", Json::array({access_for(0, kReadWrite)})}});
  const Called exported = call("cuMemExportToShareableHandle", {{"handle", handle}});
  if (exported.ok()) {
    call("cuMemImportFromShareableHandle", {{"out", imported}, {"fd", exported.get<int>("fd")}});
    call("cuMemRelease", {{"handle", imported}});
  }
  call("cuMemRetainAllocationHandle", {{"out", retained}, {"pointer", pointer}});
  call("cuMemRelease", {{"handle", retained}});
  // With a context, in another thread, the memory works.
  driver.fill(pointer, unit, 85);
  s.check("DRV-34", driver.holds(pointer, unit, 85), "a thread with a context uses it");
  driver.observed("env.memset_no_ctx",
                  driver.call("cuMemsetD8", {{"pointer", pointer}, {"size", 16}, {"thread", true}}),
                  kInvalidContext);
  driver.observed("env.getinfo_no_ctx", driver.call("cuMemGetInfo", {{"thread", true}}),
                  kInvalidContext);
  call("cuMemUnmap", {{"pointer", pointer}, {"size", unit}});
  call("cuMemAddressFree", {{"pointer", pointer}, {"size", unit}});
  call("cuMemRelease", {{"handle", handle}});
}

VMMCTS_SCENARIO("driver", "driver: a stream that captures is not disturbed", "[DRV-35]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int stream = driver.object();
  const Piece before = driver.piece();
  driver.must("cuStreamCreate", {{"out", stream}});
  driver.must("cuStreamBeginCapture", {{"stream", stream}});
  const auto observe = [&](const char* fact, const Called& called) {
    driver.observed(std::string("capture.") + fact, called, kCudaSuccess);
    return called;
  };
  const int handle = driver.object();
  const Called made =
      observe("create_in_capture", driver.call("cuMemCreate", {{"out", handle}, {"size", unit}}));
  const Called reserved =
      observe("reserve_in_capture", driver.call("cuMemAddressReserve", {{"size", unit}}));
  if (made.ok() && reserved.ok()) {
    const std::uint64_t pointer = reserved.get("pointer");
    observe("map_in_capture",
            driver.call("cuMemMap", {{"pointer", pointer}, {"size", unit}, {"handle", handle}}));
    observe("access_in_capture",
            driver.call("cuMemSetAccess", {{"pointer", pointer},
                                           {"size", unit},
                                           {"access", Json::array({access_for(0, kReadWrite)})}}));
    observe("unmap_in_capture", driver.call("cuMemUnmap", {{"pointer", pointer}, {"size", unit}}));
  }
  const Called exported = observe("export_in_capture", driver.call("cuMemExportToShareableHandle",
                                                                   {{"handle", before.handle}}));
  if (exported.ok()) {
    observe("import_in_capture",
            driver.call("cuMemImportFromShareableHandle",
                        {{"out", driver.object()}, {"fd", exported.get<int>("fd")}}));
  }
  const Called status = driver.must("cuStreamIsCapturing", {{"stream", stream}});
  driver.observed("capture.status", status.get<int>(), 1);
  driver.observed("capture.sync_capturing_stream",
                  driver.call("cuStreamSynchronize", {{"stream", stream}}), kCaptureUnsupported);
  driver.observed("capture.end", driver.call("cuStreamEndCapture", {{"stream", stream}}),
                  kCaptureInvalidated);
  driver.fill(before.pointer, before.size, 86);
  s.check("DRV-35", driver.holds(before.pointer, before.size, 86), "memory works on afterwards");
}
