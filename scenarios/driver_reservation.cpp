// Address reservations and before them cuInit: what the driver promises of ranges without memory.
#include <algorithm>

#include "driver.hpp"

using namespace cts;

namespace {

struct Range {
  std::uint64_t pointer;
  std::uint64_t size;
};

bool overlap(const Range& a, const Range& b) {
  return a.pointer < b.pointer + b.size && b.pointer < a.pointer + a.size;
}

}  // namespace

VMMCTS_SCENARIO("driver", "driver: before cuInit every entry point says so", "[DRV-01]") {
  const Json results = s.worker("a").call("before_init").value().at("results");
  for (const auto& [entry_point, result] : results.items()) {
    s.check_equal("DRV-01", entry_point + " before cuInit", result.get<int>(),
                  int{kNotInitialized});
  }
  s.check("DRV-01", results.size() >= 15, "the whole group was called");
}

VMMCTS_SCENARIO("driver", "driver: reservations are aligned and do not overlap", "[DRV-02]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  std::vector<Range> ranges;
  for (const std::uint64_t alignment : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096},
                                        unit, 2 * unit, 16 * unit, std::uint64_t{1} << 30}) {
    for (const std::uint64_t size : {unit, 3 * unit}) {
      const auto in_case = s.in_case("alignment " + std::to_string(alignment));
      const Called made =
          driver.call("cuMemAddressReserve", {{"size", size}, {"alignment", alignment}});
      driver.works("DRV-02", made);
      if (!made.ok()) continue;
      const Range range{made.get("pointer"), size};
      s.check("DRV-02", range.pointer != 0, "a reservation has an address");
      s.check("DRV-02", alignment == 0 || range.pointer % alignment == 0, "the address is aligned");
      for (const Range& other : ranges) {
        s.check("DRV-02", !overlap(range, other), "ranges are apart from each other");
      }
      ranges.push_back(range);
    }
  }
  for (const Range& range : ranges) {
    driver.works("DRV-02", driver.call("cuMemAddressFree",
                                       {{"pointer", range.pointer}, {"size", range.size}}));
  }
}

VMMCTS_SCENARIO("driver", "driver: an aligned reservation takes memory that works",
                "[DRV-02][DRV-16]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(unit);
  for (const std::uint64_t alignment : {unit, 4 * unit, 64 * unit}) {
    const std::uint64_t pointer =
        driver.must("cuMemAddressReserve", {{"size", unit}, {"alignment", alignment}})
            .get("pointer");
    driver.map(pointer, unit, handle);
    driver.grant(pointer, unit);
    driver.fill(pointer, unit, 11);
    s.check("DRV-02 DRV-16", driver.holds(pointer, unit, 11), "the bytes written are read");
    driver.unmap(pointer, unit);
    driver.free_address(pointer, unit);
  }
}

VMMCTS_SCENARIO("driver", "driver: a hint places a reservation there or elsewhere", "[DRV-03]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(unit);
  const std::uint64_t base = driver.reserve(4 * unit);
  const std::uint64_t given_up = driver.reserve(8 * unit);
  driver.free_address(given_up, 8 * unit);
  struct Hint {
    const char* name;
    std::uint64_t address;
    const char* fact;
    bool h200_grants;
  };
  for (const Hint& hint :
       {Hint{"right after a reservation", base + 4 * unit, "reserve.hint_adjacent", true},
        Hint{"inside a reservation", base + unit, "", false},
        Hint{"at a reservation", base, "reserve.hint_occupied", false},
        Hint{"below a reservation", base - unit, "grow.hint_below", false},
        Hint{"at an address given up", given_up, "grow.hint_into_freed", false},
        Hint{"far above", base + 512 * unit, "grow.hint_gap_above", false},
        Hint{"at a low address", unit, "reserve.hint_low_2M", false}}) {
    const auto in_case = s.in_case(hint.name);
    const Called made =
        driver.call("cuMemAddressReserve", {{"size", unit}, {"address", hint.address}});
    driver.works("DRV-03", made);
    if (!made.ok()) continue;
    const Range range{made.get("pointer"), unit};
    s.check("DRV-03", !overlap(range, {base, 4 * unit}), "it is apart from the live reservation");
    driver.map(range.pointer, unit, handle);
    driver.grant(range.pointer, unit);
    driver.fill(range.pointer, unit, 12);
    s.check("DRV-03", driver.holds(range.pointer, unit, 12), "memory works at that address");
    driver.unmap(range.pointer, unit);
    driver.free_address(range.pointer, unit);
    if (*hint.fact != 0) {
      driver.observed(std::string(hint.fact) + ".granted", range.pointer == hint.address,
                      hint.h200_grants);
    }
  }
}

VMMCTS_SCENARIO("driver", "driver: a bad reservation is refused", "[DRV-04]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  refuse_all(
      driver, "DRV-04", "cuMemAddressReserve", {{"size", unit}},
      {{"no size", {{"size", 0}}, "reserve.size0", kInvalidValue},
       {"no place for the result", {{"no_out", true}}, "reserve.out_null", kInvalidValue},
       {"flags", {{"flags", 1}}, "reserve.flags1", kInvalidValue},
       {"a size of one byte", {{"size", 1}}, "reserve.size_1", kInvalidValue},
       {"a size that is no multiple of a page", {{"size", unit + 1}}},
       {"alignment 3", {{"alignment", 3}}, "reserve.align_3", kInvalidValue},
       {"an alignment of three units",
        {{"alignment", 3 * unit}},
        "reserve.align_6291456",
        kInvalidValue},
       {"alignment 5000000", {{"alignment", 5000000}}, "reserve.align_5000000", kInvalidValue}});
  const std::uint64_t base = driver.reserve(unit);
  refuse_all(driver, "DRV-04", "cuMemAddressReserve", {{"size", unit}},
             {{"a hint that is no multiple of a page", {{"address", base + 4 * unit + 1}}}});
  driver.free_address(base, unit);
}

VMMCTS_SCENARIO("driver", "driver: what a reservation is rounded to is the driver's affair",
                "[DRV-52]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  for (const std::uint64_t size :
       {std::uint64_t{4096}, std::uint64_t{65536}, std::uint64_t{1} << 20, unit + 4096}) {
    const Called made = driver.call("cuMemAddressReserve", {{"size", size}});
    driver.observed("reserve.size_" + std::to_string(size), made, kInvalidValue);
    if (made.ok()) driver.free_address(made.get("pointer"), size);
  }
  const std::uint64_t base = driver.reserve(4 * unit);
  const Called unaligned =
      driver.call("cuMemAddressReserve", {{"size", unit}, {"address", base + 4 * unit + 4096}});
  driver.observed("reserve.hint_unaligned_4096", unaligned, kInvalidValue);
  const Called outside =
      driver.call("cuMemAddressReserve", {{"size", unit}, {"address", std::uint64_t{1} << 60}});
  driver.observed("reserve.hint_noncanonical", outside, kOutOfMemory);
  driver.works("DRV-52", driver.call("cuMemAddressFree", {{"pointer", base}, {"size", 4 * unit}}));
}

VMMCTS_SCENARIO("driver", "driver: only the whole reservation can be freed and only once",
                "[DRV-05]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int handle = driver.create(unit);
  const std::uint64_t base = driver.reserve(4 * unit);
  refuse_all(
      driver, "DRV-05", "cuMemAddressFree", {{"pointer", base}, {"size", 4 * unit}},
      {{"a smaller size", {{"size", unit}}, "reserve.free_wrong_size_small", kInvalidValue},
       {"a larger size", {{"size", 8 * unit}}, "reserve.free_wrong_size_large", kInvalidValue},
       {"no size", {{"size", 0}}},
       {"an inner address",
        {{"pointer", base + unit}, {"size", unit}},
        "reserve.free_interior",
        kInvalidValue},
       {"all but the first unit",
        {{"pointer", base + unit}, {"size", 3 * unit}},
        "reserve.free_interior_rest",
        kInvalidValue},
       {"address 0", {{"pointer", 0}}, "reserve.free_null_size", kInvalidValue},
       {"address 0 and no size",
        {{"pointer", 0}, {"size", 0}},
        "reserve.free_zero",
        kInvalidValue}});
  // The reservation is whole: memory works in its first and last unit.
  for (const std::uint64_t at : {base, base + 3 * unit}) {
    driver.works("DRV-05",
                 driver.call("cuMemMap", {{"pointer", at}, {"size", unit}, {"handle", handle}}),
                 "after the refusals");
    driver.unmap(at, unit);
  }
  driver.works("DRV-05", driver.call("cuMemAddressFree", {{"pointer", base}, {"size", 4 * unit}}));
  driver.refused("DRV-05", driver.call("cuMemAddressFree", {{"pointer", base}, {"size", 4 * unit}}),
                 "a second time");
}

VMMCTS_SCENARIO("driver", "driver: a reservation is not freed under its mapping", "[DRV-52]") {
  Driver driver(s, "a");
  const Piece piece = driver.piece(2);
  driver.fill(piece.pointer, piece.size, 13);
  const Called freed =
      driver.call("cuMemAddressFree", {{"pointer", piece.pointer}, {"size", piece.size}});
  driver.observed("reserve.free_while_mapped", freed, kInvalidValue);
  if (freed.ok()) throw NotExercised("this driver frees a reservation that is mapped");
  s.check("DRV-52", driver.holds(piece.pointer, piece.size, 13), "the mapping works on");
}

VMMCTS_SCENARIO("driver", "driver: a reservation too large is refused and costs nothing",
                "[DRV-06]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t free = s.free_memory();
  const std::uint64_t most = ~std::uint64_t{0} / unit * unit;
  driver.refused("DRV-06", driver.call("cuMemAddressReserve", {{"size", most}}), "of everything");
  driver.refused("DRV-06", driver.call("cuMemAddressReserve", {{"size", std::uint64_t{1} << 62}}),
                 "of 4 EiB");
  // The largest power of two that the driver grants; each one granted is given back.
  std::uint64_t largest = 0;
  for (std::uint64_t size = std::uint64_t{1} << 32; size < std::uint64_t{1} << 50; size *= 2) {
    const Called made = driver.call("cuMemAddressReserve", {{"size", size}});
    if (!made.ok()) {
      driver.observed("reserve.too_large", made, kOutOfMemory);
      break;
    }
    largest = size;
    s.check_free_memory("DRV-06", free, "with a reservation of " + std::to_string(size));
    driver.free_address(made.get("pointer"), size);
  }
  s.check("DRV-06", largest >= std::uint64_t{1} << 32, "4 GiB of addresses are there");
  driver.observed("reserve.largest_power_of_two", largest, std::uint64_t{1} << 46);
  const std::uint64_t after = driver.reserve(unit);
  driver.free_address(after, unit);
}
