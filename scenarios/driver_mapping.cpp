// Mappings: where memory can be mapped and unmapped, and what two mappings of one memory share.
#include "driver.hpp"

using namespace cts;

VMMCTS_SCENARIO("driver", "driver: one handle is mapped at one address again and again",
                "[DRV-16]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(unit);
  const std::uint64_t pointer = driver.reserve(unit);
  for (int round = 0; round < 20; ++round) {
    const auto in_case = s.in_case("round " + std::to_string(round));
    driver.map(pointer, unit, handle);
    driver.grant(pointer, unit);
    if (round > 0) {
      s.check("DRV-16", driver.holds(pointer, unit, static_cast<unsigned char>(round - 1)),
              "the bytes of the last round are there");
    }
    driver.fill(pointer, unit, static_cast<unsigned char>(round));
    driver.unmap(pointer, unit);
  }
  driver.works("DRV-16", driver.call("cuMemAddressFree", {{"pointer", pointer}, {"size", unit}}));
}

VMMCTS_SCENARIO("driver", "driver: one address takes one handle after another", "[DRV-16]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t pointer = driver.reserve(2 * unit);
  std::vector<int> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(driver.create(2 * unit));
  for (const bool writing : {true, false}) {
    for (int i = 0; i < 3; ++i) {
      driver.map(pointer, 2 * unit, handles[i]);
      driver.grant(pointer, 2 * unit);
      const auto byte = static_cast<unsigned char>(21 + i);
      if (writing) {
        driver.fill(pointer, 2 * unit, byte);
      } else {
        s.check("DRV-16", driver.holds(pointer, 2 * unit, byte), "each handle keeps its bytes");
      }
      driver.unmap(pointer, 2 * unit);
    }
  }
}

VMMCTS_SCENARIO("driver", "driver: copies in every direction arrive byte for byte", "[DRV-16]") {
  Driver driver(s, "a");
  const Piece from = driver.piece(2);
  const Piece to = driver.piece(2);
  driver.must("cuMemcpyHtoD", {{"pointer", from.pointer}, {"size", from.size}, {"seed", 31}});
  driver.works("DRV-16",
               driver.call("cuMemcpyDtoD",
                           {{"to", to.pointer}, {"from", from.pointer}, {"size", from.size}}));
  const Called read =
      driver.must("cuMemcpyDtoH", {{"pointer", to.pointer}, {"size", to.size}, {"seed", 31}});
  s.check_equal("DRV-16", "first wrong byte", read.get<std::int64_t>("mismatch"), -1);
  driver.fill(to.pointer + to.size - 1, 1, 32);
  s.check("DRV-16", driver.holds(to.pointer + to.size - 1, 1, 32), "the last byte can be written");
}

VMMCTS_SCENARIO("driver", "driver: one allocation at three addresses is one memory", "[DRV-17]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(2 * unit);
  std::vector<Piece> places;
  for (int i = 0; i < 3; ++i) places.push_back(driver.place(handle, 2 * unit));
  for (std::size_t writer = 0; writer < places.size(); ++writer) {
    const auto byte = static_cast<unsigned char>(41 + writer);
    driver.fill(places[writer].pointer, 2 * unit, byte);
    for (const Piece& reader : places) {
      s.check("DRV-17", driver.holds(reader.pointer, 2 * unit, byte),
              "a write through one address is read through each");
    }
  }
  for (const Piece& place : places) driver.undo(place, Driver::Handle::keep);
  const Piece later = driver.place(handle, 2 * unit, kRead);
  s.check("DRV-17", driver.holds(later.pointer, 2 * unit, 43),
          "the bytes are there after a time without mappings");
}

VMMCTS_SCENARIO("driver", "driver: a reservation may be mapped in parts", "[DRV-18]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(4 * unit);
  const int handle = driver.create(unit);
  driver.works(
      "DRV-18",
      driver.call("cuMemMap", {{"pointer", base + 2 * unit}, {"size", unit}, {"handle", handle}}));
  driver.grant(base + 2 * unit, unit);
  driver.fill(base + 2 * unit, unit, 51);
  s.check("DRV-18", driver.holds(base + 2 * unit, unit, 51), "the mapped part works");
  for (const std::uint64_t unmapped : {base, base + unit, base + 3 * unit}) {
    driver.refused("DRV-18", driver.call("cuMemcpyDtoH", {{"pointer", unmapped}, {"size", 1}}),
                   "from an unmapped part");
  }
  driver.unmap(base + 2 * unit, unit);
  driver.works("DRV-18", driver.call("cuMemAddressFree", {{"pointer", base}, {"size", 4 * unit}}));
}

VMMCTS_SCENARIO("driver", "driver: allocations side by side are one range", "[DRV-18][DRV-22]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t sizes[] = {unit, 2 * unit, unit};
  const std::uint64_t total = 4 * unit;
  const std::uint64_t base = driver.reserve(total);
  std::uint64_t at = base;
  for (const std::uint64_t size : sizes) {
    driver.map(at, size, driver.create(size));
    at += size;
  }
  driver.works(
      "DRV-18",
      driver.call("cuMemSetAccess", {{"pointer", base},
                                     {"size", total},
                                     {"access", Json::array({access_for(0, kReadWrite)})}}),
      "over three mappings");
  driver.works("DRV-18",
               driver.call("cuMemsetD8", {{"pointer", base}, {"size", total}, {"byte", 52}}),
               "over three mappings");
  driver.must("cuMemcpyHtoD", {{"pointer", base}, {"size", total}, {"seed", 53}});
  const Called read =
      driver.must("cuMemcpyDtoH", {{"pointer", base}, {"size", total}, {"seed", 53}});
  s.check_equal("DRV-18", "first wrong byte of a copy over three mappings",
                read.get<std::int64_t>("mismatch"), -1);
  driver.works(
      "DRV-18",
      driver.call("cuMemcpyDtoD",
                  {{"to", base + unit - 4096}, {"from", base + 3 * unit - 4096}, {"size", 8192}}),
      "from one seam to another");
  driver.works("DRV-22", driver.call("cuMemUnmap", {{"pointer", base}, {"size", total}}),
               "over three whole mappings");
  driver.works("DRV-22", driver.call("cuMemAddressFree", {{"pointer", base}, {"size", total}}));
}

VMMCTS_SCENARIO("driver", "driver: a bad mapping is refused and nothing is mapped", "[DRV-19]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(2 * unit);
  const std::uint64_t base = driver.reserve(8 * unit);
  const std::uint64_t given_up = driver.reserve(2 * unit);
  driver.free_address(given_up, 2 * unit);
  refuse_all(
      driver, "DRV-19", "cuMemMap", {{"pointer", base}, {"size", 2 * unit}, {"handle", handle}},
      {{"address 0", {{"pointer", 0}}, "map.ptr_null", kInvalidValue},
       {"no size", {{"size", 0}}, "map.size0", kInvalidValue},
       {"a size that is no multiple", {{"size", unit + 4096}}},
       {"an address that is no multiple",
        {{"pointer", base + 4096}},
        "map.ptr_unaligned_4096",
        kInvalidValue},
       {"an address in the middle of a unit", {{"pointer", base + unit / 2}}},
       {"an offset that is no multiple", {{"offset", 4096}, {"size", unit}}},
       {"an offset of one unit", {{"offset", unit}, {"size", unit}}, "map.offset_G", kNotSupported},
       {"an offset of one unit and the whole size", {{"offset", unit}}},
       {"a size above the allocation's", {{"size", 4 * unit}}, "map.size_large", kNotSupported},
       {"flags", {{"flags", 1}}, "map.flags1", kInvalidValue},
       {"an address that nobody reserved", {{"pointer", given_up}}},
       {"an address below every reservation", {{"pointer", 16 * unit}}},
       {"handle 0", {{"handle", {{"value", 0}}}}, "map.handle0", kInvalidValue}});
  for (std::uint64_t at = base; at < base + 8 * unit; at += unit) {
    driver.refused(
        "DRV-19",
        driver.call("cuMemRetainAllocationHandle", {{"out", driver.object()}, {"pointer", at}}),
        "where nothing has been mapped");
  }
  driver.works("DRV-19",
               driver.call("cuMemMap",
                           {{"pointer", base + 6 * unit}, {"size", 2 * unit}, {"handle", handle}}),
               "after the refusals");
}

VMMCTS_SCENARIO("driver", "driver: nothing is mapped over a mapping", "[DRV-20]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int two = driver.create(2 * unit);
  const int one = driver.create(unit);
  const int four = driver.create(4 * unit);
  const std::uint64_t base = driver.reserve(4 * unit);
  driver.map(base + unit, 2 * unit, two);
  driver.grant(base + unit, 2 * unit);
  driver.fill(base + unit, 2 * unit, 61);
  refuse_all(driver, "DRV-20", "cuMemMap",
             {{"pointer", base + unit}, {"size", 2 * unit}, {"handle", two}},
             {{"the same handle again", Json::object(), "map.same_va_again", kInvalidValue},
              {"its first unit", {{"size", unit}, {"handle", one}}},
              {"its last unit",
               {{"pointer", base + 2 * unit}, {"size", unit}, {"handle", one}},
               "map.overlap",
               kInvalidValue},
              {"a range around it", {{"pointer", base}, {"size", 4 * unit}, {"handle", four}}},
              {"a range that begins before it", {{"pointer", base}}},
              {"a range that ends after it", {{"pointer", base + 2 * unit}}}});
  s.check("DRV-20", driver.holds(base + unit, 2 * unit, 61), "the mapping works on");
  for (const std::uint64_t at : {base, base + 3 * unit}) {
    driver.works("DRV-20",
                 driver.call("cuMemMap", {{"pointer", at}, {"size", unit}, {"handle", one}}),
                 "beside it");
  }
}

VMMCTS_SCENARIO("driver", "driver: only whole mappings are unmapped", "[DRV-22]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(8 * unit);
  driver.map(base, 2 * unit, driver.create(2 * unit));
  driver.map(base + 2 * unit, 2 * unit, driver.create(2 * unit));
  driver.grant(base, 4 * unit);
  driver.fill(base, 4 * unit, 62);
  refuse_all(driver, "DRV-22", "cuMemUnmap", {{"pointer", base}, {"size", 2 * unit}},
             {{"its first unit", {{"size", unit}}, "map.unmap_partial_front", kInvalidValue},
              {"its last unit",
               {{"pointer", base + unit}, {"size", unit}},
               "map.unmap_partial_back",
               kInvalidValue},
              {"one byte less", {{"size", 2 * unit - 1}}},
              {"an unaligned part",
               {{"pointer", base + 4096}, {"size", unit}},
               "map.unmap_unaligned",
               kInvalidValue},
              {"one mapping and a half", {{"size", 3 * unit}}},
              {"half a mapping and one", {{"pointer", base + unit}, {"size", 3 * unit}}},
              {"no size", {{"size", 0}}, "map.unmap_size0", kInvalidValue},
              {"address 0", {{"pointer", 0}}},
              {"an address that nobody reserved", {{"pointer", 16 * unit}}}});
  s.check("DRV-22", driver.holds(base, 4 * unit, 62), "both mappings work on");
  s.check_equal("DRV-22", "access after the refusals", driver.access(base),
                std::uint64_t{kReadWrite});
  driver.works("DRV-22", driver.call("cuMemUnmap", {{"pointer", base}, {"size", 2 * unit}}));
  s.check("DRV-22", driver.holds(base + 2 * unit, 2 * unit, 62), "the neighbour works on");
  driver.works(
      "DRV-22",
      driver.call("cuMemMap",
                  {{"pointer", base + unit}, {"size", unit}, {"handle", driver.create(unit)}}),
      "where a mapping was");
}

VMMCTS_SCENARIO("driver", "driver: unmapping where nothing is mapped as observed", "[DRV-52]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t base = driver.reserve(4 * unit);
  driver.map(base, unit, driver.create(unit));
  driver.grant(base, unit);
  driver.fill(base, unit, 63);
  driver.observed("map.unmap_hole",
                  driver.call("cuMemUnmap", {{"pointer", base + 2 * unit}, {"size", unit}}),
                  kCudaSuccess);
  const Called span = driver.call("cuMemUnmap", {{"pointer", base}, {"size", 4 * unit}});
  s.note("unmap of a mapping and the hole after it: " + span.name());
  if (!span.ok()) {
    s.check("DRV-52", driver.holds(base, unit, 63), "a refused unmap leaves the mapping");
    driver.unmap(base, unit);
  }
  driver.observed("map.unmap_twice", driver.call("cuMemUnmap", {{"pointer", base}, {"size", unit}}),
                  kCudaSuccess);
}

VMMCTS_SCENARIO("driver", "driver: mapping less than the allocation as observed", "[DRV-52]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(2 * unit);
  const std::uint64_t base = driver.reserve(2 * unit);
  const Called part =
      driver.call("cuMemMap", {{"pointer", base}, {"size", unit}, {"handle", handle}});
  driver.observed("map.size_small", part, kNotSupported);
  if (part.ok()) {
    driver.grant(base, unit);
    driver.fill(base, unit, 64);
    s.check("DRV-52", driver.holds(base, unit, 64), "what is mapped works");
  }
}

VMMCTS_SCENARIO("driver", "driver: a grow keeps the bytes of what it maps again", "[DRV-46]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const Piece old = driver.piece(2);
  driver.must("cuMemcpyHtoD", {{"pointer", old.pointer}, {"size", old.size}, {"seed", 65}});
  const std::uint64_t larger = driver.reserve(3 * unit);
  const int added = driver.create(unit);
  // Both addresses at once, then the old one goes.
  driver.works(
      "DRV-46",
      driver.call("cuMemMap", {{"pointer", larger}, {"size", 2 * unit}, {"handle", old.handle}}));
  driver.works(
      "DRV-46",
      driver.call("cuMemMap", {{"pointer", larger + 2 * unit}, {"size", unit}, {"handle", added}}));
  driver.grant(larger, 3 * unit);
  driver.undo(old);
  const Called kept =
      driver.must("cuMemcpyDtoH", {{"pointer", larger}, {"size", 2 * unit}, {"seed", 65}});
  s.check_equal("DRV-46", "first wrong byte after the grow", kept.get<std::int64_t>("mismatch"),
                -1);
  driver.fill(larger + 2 * unit, unit, 66);
  s.check("DRV-46", driver.holds(larger + 2 * unit, unit, 66), "the new part works");
  // A grow that fails in the middle leaves the first part as it was.
  driver.refused(
      "DRV-46",
      driver.call("cuMemMap", {{"pointer", larger + 2 * unit}, {"size", unit}, {"handle", added}}),
      "over a mapping");
  s.check("DRV-46", driver.holds(larger + 2 * unit, unit, 66), "a refused map changes no bytes");
  s.check_equal("DRV-46", "access after a refused map", driver.access(larger),
                std::uint64_t{kReadWrite});
}
