// Access: what cuMemSetAccess grants, what cuMemGetAccess tells, and what copies may do.
#include "driver.hpp"

using namespace cts;

namespace {

Json set_access(const Piece& piece, Json one) {
  return {{"pointer", piece.pointer}, {"size", piece.size}, {"access", Json::array({one})}};
}

}  // namespace

VMMCTS_SCENARIO("driver", "driver: a mapping starts without access", "[DRV-21]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const Piece piece = driver.place(driver.create(unit), unit, kNoAccess);
  for (const char* when : {"after the first map", "after a later map"}) {
    const auto in_case = s.in_case(when);
    s.check_equal("DRV-21", "access before it is set", driver.access(piece.pointer),
                  std::uint64_t{kNoAccess});
    const Called read = driver.call("cuMemcpyDtoH", {{"pointer", piece.pointer}, {"size", 1}});
    driver.refused("DRV-21", read);
    driver.refused("DRV-21",
                   driver.call("cuMemcpyHtoD", {{"pointer", piece.pointer}, {"size", 1}}));
    driver.refused("DRV-21",
                   driver.call("cuMemsetD8", {{"pointer", piece.pointer}, {"size", unit}}));
    driver.observed("fault_noaccess_dtoh.dtoh_noaccess", read, kInvalidValue);
    driver.observed("fault_noaccess.sync", driver.call("cuCtxSynchronize"), kCudaSuccess);
    driver.grant(piece.pointer, unit);
    driver.fill(piece.pointer, unit, 71);
    s.check("DRV-21", driver.holds(piece.pointer, unit, 71), "it works once access is set");
    driver.unmap(piece.pointer, unit);
    driver.map(piece.pointer, unit, piece.handle);
  }
  const Piece second = driver.place(piece.handle, unit, kNoAccess);
  s.check_equal("DRV-21", "access at a second address", driver.access(second.pointer),
                std::uint64_t{kNoAccess});
}

VMMCTS_SCENARIO("driver", "driver: access is told as it was set", "[DRV-23]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece(2);
  for (const Access access : {kRead, kReadWrite, kNoAccess, kReadWrite, kRead, kNoAccess, kRead}) {
    driver.works("DRV-23", driver.call("cuMemSetAccess", set_access(piece, access_for(0, access))));
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{12345}, piece.size - 1}) {
      s.check_equal("DRV-23", "access at byte " + std::to_string(offset),
                    driver.access(piece.pointer + offset), static_cast<std::uint64_t>(access));
    }
  }
}

VMMCTS_SCENARIO("driver", "driver: copies keep to the access that was set", "[DRV-24]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 72);
  const auto write = [&] {
    return driver.call("cuMemcpyHtoD", {{"pointer", piece.pointer}, {"size", 16}, {"byte", 1}});
  };
  const auto set = [&] {
    return driver.call("cuMemsetD8", {{"pointer", piece.pointer}, {"size", 16}, {"byte", 1}});
  };
  driver.grant(piece.pointer, piece.size, kRead);
  s.check("DRV-24", driver.holds(piece.pointer, piece.size, 72), "read-only memory is read");
  driver.refused("DRV-24", write(), "to read-only memory");
  driver.refused("DRV-24", set(), "to read-only memory");
  s.check("DRV-24", driver.holds(piece.pointer, piece.size, 72), "read-only memory is unchanged");
  driver.grant(piece.pointer, piece.size, kNoAccess);
  driver.refused("DRV-24", driver.call("cuMemcpyDtoH", {{"pointer", piece.pointer}, {"size", 16}}),
                 "from memory without access");
  driver.refused("DRV-24", write(), "to memory without access");
  driver.grant(piece.pointer, piece.size, kReadWrite);
  s.check("DRV-24", driver.holds(piece.pointer, piece.size, 72), "the bytes were never changed");
  driver.works("DRV-24", set(), "once it is writable again");
  driver.works("DRV-24", driver.call("cuCtxSynchronize"), "after refused copies");
}

VMMCTS_SCENARIO("driver", "driver: a copy keeps to the access of each mapping it crosses",
                "[DRV-24]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(2 * unit);
  driver.map(base, unit, driver.create(unit));
  driver.map(base + unit, unit, driver.create(unit));
  driver.grant(base, 2 * unit);
  driver.fill(base, 2 * unit, 73);
  driver.grant(base + unit, unit, kRead);
  s.check("DRV-24", driver.holds(base, 2 * unit, 73), "both are read in one copy");
  const Called crossing =
      driver.call("cuMemsetD8", {{"pointer", base}, {"size", 2 * unit}, {"byte", 74}});
  driver.refused("DRV-24", crossing, "across writable and read-only memory");
  s.check("DRV-24", driver.holds(base + unit, unit, 73), "the read-only part is unchanged");
}

VMMCTS_SCENARIO("driver", "driver: access is set on whole mappings only", "[DRV-25]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(6 * unit);
  driver.map(base, 3 * unit, driver.create(3 * unit));
  driver.map(base + 3 * unit, unit, driver.create(unit));
  driver.grant(base, 4 * unit, kRead);
  // Nothing is mapped at units 4 and 5.
  refuse_all(
      driver, "DRV-25", "cuMemSetAccess",
      {{"pointer", base}, {"size", 3 * unit}, {"access", Json::array({access_for(0, kReadWrite)})}},
      {{"its first unit", {{"size", unit}}, "access.partial_front", kInvalidValue},
       {"an inner unit", {{"pointer", base + unit}, {"size", unit}}},
       {"its last unit",
        {{"pointer", base + 2 * unit}, {"size", unit}},
        "access.partial_back",
        kInvalidValue},
       {"one byte less", {{"size", 3 * unit - 1}}},
       {"an unaligned part",
        {{"pointer", base + 4096}, {"size", unit}},
        "access.unaligned",
        kInvalidValue},
       {"one mapping and part of another",
        {{"size", 3 * unit + unit / 2}},
        "grow.access_partial_of_two",
        kInvalidValue},
       {"a hole after the mappings", {{"size", 5 * unit}}},
       {"more than the reservation", {{"size", 8 * unit}}, "access.past_end", kInvalidValue},
       {"a hole alone", {{"pointer", base + 4 * unit}, {"size", unit}}},
       {"an address that nobody reserved",
        {{"pointer", 16 * unit}, {"size", unit}},
        "access.unmapped",
        kInvalidValue}});
  for (std::uint64_t at = base; at < base + 4 * unit; at += unit) {
    s.check_equal("DRV-25", "access after the refusals", driver.access(at), std::uint64_t{kRead});
  }
  driver.works(
      "DRV-25",
      driver.call("cuMemSetAccess", {{"pointer", base},
                                     {"size", 4 * unit},
                                     {"access", Json::array({access_for(0, kReadWrite)})}}),
      "over two whole mappings");
  for (std::uint64_t at = base; at < base + 4 * unit; at += unit) {
    s.check_equal("DRV-25", "access over two mappings", driver.access(at),
                  std::uint64_t{kReadWrite});
  }
}

VMMCTS_SCENARIO("driver", "driver: bad access is refused and changes nothing", "[DRV-27]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const Piece piece = driver.piece(2);
  const auto with = [](Json one) { return Json{{"access", Json::array({std::move(one)})}}; };
  refuse_all(driver, "DRV-27", "cuMemSetAccess", set_access(piece, access_for(0, kRead)),
             {{"address 0", {{"pointer", 0}}},
              {"no size", {{"size", 0}}, "access.size0", kInvalidValue},
              {"no descriptors", {{"count", 0}}, "access.count0", kInvalidValue},
              {"no array", {{"access", nullptr}, {"count", 1}}, "access.desc_null", kInvalidValue},
              {"device 99", with(access_for(99, kRead)), "access.bad_device", kInvalidValue},
              {"device -1", with(access_for(-1, kRead))},
              {"the device after the last", with(access_for(s.plan().devices, kRead))},
              {"access 2", with(access_for(0, 2)), "access.flags_2", kInvalidValue},
              {"access 8", with(access_for(0, 8)), "access.flags_8", kInvalidValue},
              {"location type 0", with({{"location_type", 0}, {"flags", kRead}}), "access.loctype0",
               kInvalidValue}});
  s.check_equal("DRV-27", "access after the refusals", driver.access(piece.pointer),
                std::uint64_t{kReadWrite});
  const std::uint64_t unmapped = driver.reserve(unit);
  refuse_all(
      driver, "DRV-27", "cuMemGetAccess", {{"pointer", piece.pointer}},
      {{"no place for the access", {{"no_out", true}}, "access.get_flags_null", kInvalidValue},
       {"no location", {{"location", nullptr}}, "access.get_loc_null", kInvalidValue},
       {"device 99",
        {{"location", {{"location_id", 99}}}},
        "access.get_bad_device",
        kInvalidDevice},
       {"an address that is reserved only", {{"pointer", unmapped}}},
       {"an address that nobody reserved",
        {{"pointer", 16 * unit}},
        "access.get_unmapped",
        kInvalidValue}});
}

VMMCTS_SCENARIO("driver", "driver: device memory takes no access by NUMA node", "[DRV-28]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  const Called numa = driver.call(
      "cuMemSetAccess", set_access(piece, {{"location_type", kOnHostNuma}, {"flags", kReadWrite}}));
  driver.refused("DRV-28", numa, "by NUMA node for device memory");
  driver.observed("access.loctype_hostnuma", numa, kNotSupported);
  s.check_equal("DRV-28", "access of the device afterwards", driver.access(piece.pointer),
                std::uint64_t{kReadWrite});
  // The same on memory that was imported.
  Driver importer(s, "b");
  const int fd = driver.pass(driver.export_fd(piece.handle), importer);
  const Piece imported = importer.place(importer.import_fd(fd), piece.size);
  const Called there =
      importer.call("cuMemSetAccess",
                    set_access(imported, {{"location_type", kOnHostNuma}, {"flags", kReadWrite}}));
  importer.refused("DRV-28", there, "by NUMA node for imported device memory");
}

VMMCTS_SCENARIO("driver", "driver: access by the host to device memory as observed", "[DRV-55]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  driver.fill(piece.pointer, piece.size, 75);
  driver.observed("access.loctype_host",
                  driver.call("cuMemSetAccess", set_access(piece, {{"location_type", kOnHost},
                                                                   {"flags", kReadWrite}})),
                  kNotSupported);
  const Called told = driver.call(
      "cuMemGetAccess", {{"pointer", piece.pointer}, {"location", {{"location_type", kOnHost}}}});
  driver.observed("access.get_host", told, kCudaSuccess);
  if (told.ok()) driver.observed("access.get_host.flags", told.get(), kReadWrite);
  s.check("DRV-55", driver.holds(piece.pointer, piece.size, 75), "the device reads its memory on");
}

VMMCTS_SCENARIO("driver", "driver: of two grants for one device the last holds", "[DRV-26]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece();
  const Called set =
      driver.call("cuMemSetAccess",
                  {{"pointer", piece.pointer},
                   {"size", piece.size},
                   {"access", Json::array({access_for(0, kReadWrite), access_for(0, kRead)})}});
  driver.observed("access.dup_desc", set, kCudaSuccess);
  if (set.ok()) driver.observed("access.get_dup", driver.access(piece.pointer), kRead);
  driver.works("DRV-26",
               driver.call("cuMemSetAccess", set_access(piece, access_for(0, kReadWrite))));
  s.check_equal("DRV-26", "access of a single grant afterwards", driver.access(piece.pointer),
                std::uint64_t{kReadWrite});
}

VMMCTS_SCENARIO("driver", "driver: an address without a mapping is not for copies", "[DRV-12]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const Piece piece{driver.create(unit), driver.reserve(2 * unit), unit};
  driver.map(piece.pointer, unit, piece.handle);
  driver.grant(piece.pointer, unit);
  const auto read = [&] {
    return driver.call("cuMemcpyDtoH", {{"pointer", piece.pointer}, {"size", 1}});
  };
  const auto set = [&] {
    return driver.call("cuMemsetD8", {{"pointer", piece.pointer}, {"size", 16}});
  };
  const Called past =
      driver.call("cuMemcpyDtoH", {{"pointer", piece.pointer}, {"size", 2 * piece.size}});
  driver.refused("DRV-12", past, "past the end of a mapping");
  driver.observed("fault_overrun.dtoh_overrun", past, kInvalidValue);
  driver.unmap(piece.pointer, piece.size);
  driver.refused("DRV-12", read(), "of reserved addresses");
  driver.refused("DRV-12", set(), "of reserved addresses");
  driver.observed("fault_unmapped.dtoh_reserved_unmapped", read(), kInvalidValue);
  driver.free_address(piece.pointer, 2 * unit);
  driver.refused("DRV-12", read(), "of addresses given up");
  driver.refused("DRV-12", set(), "of addresses given up");
  driver.works("DRV-12", driver.call("cuCtxSynchronize"), "after refused copies");
  const Piece other = driver.piece();
  driver.fill(other.pointer, other.size, 76);
  s.check("DRV-12", driver.holds(other.pointer, other.size, 76), "other memory works on");
}
