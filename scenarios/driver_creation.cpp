// Physical memory: creation, properties that are refused, granularity, running out.
#include <set>

#include "driver.hpp"

using namespace cts;

VMMCTS_SCENARIO("driver", "driver: the granularity is a size that works", "[DRV-14][DRV-07]") {
  Driver driver(s, "a");
  for (int device = 0; device < s.plan().devices; ++device) {
    for (const int handle_types : {kNoHandle, kPosixFd}) {
      const auto in_case = s.in_case("device " + std::to_string(device) + " handle type " +
                                     std::to_string(handle_types));
      const Json prop = {{"location_id", device}, {"handle_types", handle_types}};
      const Called least =
          driver.call("cuMemGetAllocationGranularity", {{"prop", prop}, {"option", 0}});
      const Called best =
          driver.call("cuMemGetAllocationGranularity", {{"prop", prop}, {"option", 1}});
      driver.works("DRV-14", least);
      driver.works("DRV-14", best);
      if (!least.ok() || !best.ok()) continue;
      s.check("DRV-14", least.get() > 0, "the least granularity is positive");
      s.check("DRV-14", best.get() >= least.get() && best.get() % least.get() == 0,
              "the recommended granularity is a multiple of the least");
      for (const std::uint64_t size : {least.get(), best.get(), 3 * least.get()}) {
        const int out = driver.object();
        const Called made =
            driver.call("cuMemCreate", {{"out", out}, {"size", size}, {"prop", prop}});
        driver.works("DRV-14 DRV-07", made, "of " + std::to_string(size) + " bytes");
        if (made.ok()) driver.release(out);
      }
    }
  }
}

VMMCTS_SCENARIO("driver", "driver: a granularity that cannot be told is refused", "[DRV-14]") {
  Driver driver(s, "a");
  refuse_all(
      driver, "DRV-14", "cuMemGetAllocationGranularity", Json::object(),
      {{"no place for the result", {{"no_out", true}}, "granularity.out_null", kInvalidValue},
       {"no properties", {{"prop", nullptr}}, "granularity.prop_null", kInvalidValue},
       {"an unknown option", {{"option", 7}}, "granularity.bad_option", kInvalidValue}});
}

VMMCTS_SCENARIO("driver", "driver: what the granularity query does not validate", "[DRV-53]") {
  Driver driver(s, "a");
  const std::vector<std::pair<const char*, Json>> cases = {
      {"granularity.bad_device", {{"location_id", 99}}},
      {"granularity.neg_device", {{"location_id", -1}}},
      {"granularity.type_invalid0", {{"type", 0}}},
      {"granularity.type_9", {{"type", 9}}},
      {"granularity.loctype_0_fd", {{"location_type", 0}}},
      {"granularity.loctype_2_fd", {{"location_type", kOnHost}}},
      {"granularity.loctype_3_fd", {{"location_type", kOnHostNuma}}},
      {"granularity.handletype_8", {{"handle_types", kFabric}}}};
  for (const auto& [fact, prop] : cases) {
    driver.observed(fact, driver.call("cuMemGetAllocationGranularity", {{"prop", prop}}),
                    kCudaSuccess);
  }
  driver.works("DRV-53", driver.call("cuMemGetAllocationGranularity"));
}

VMMCTS_SCENARIO("driver", "driver: the attributes tell what works", "[DRV-15]") {
  Driver driver(s, "a");
  for (int device = 0; device < s.plan().devices; ++device) {
    const auto in_case = s.in_case("device " + std::to_string(device));
    s.check("DRV-15", driver.has(kUnifiedAddressing, device),
            "reservations need unified addressing");
    if (!driver.has(kVirtualMemory, device)) continue;
    const Piece piece = driver.piece(1, {{"location_id", device}});
    const Called exported = driver.call("cuMemExportToShareableHandle", {{"handle", piece.handle}});
    if (driver.has(kPosixFdHandles, device)) driver.works("DRV-15", exported);
    if (exported.ok()) driver.close_fd(exported.get<int>("fd"));
    driver.undo(piece);
  }
}

VMMCTS_SCENARIO("driver", "driver: allocations of many sizes are made and counted", "[DRV-07]") {
  Driver driver(s, "a");
  const std::uint64_t free = s.free_memory();
  std::set<std::uint64_t> values;
  std::vector<int> handles;
  std::uint64_t total = 0;
  for (std::uint64_t units = 1; units <= 16; ++units) {
    const int out = driver.object();
    const Called made = driver.call("cuMemCreate", {{"out", out}, {"size", units * driver.unit()}});
    driver.works("DRV-07", made, "of " + std::to_string(units) + " units");
    if (!made.ok()) continue;
    values.insert(made.get());
    handles.push_back(out);
    total += units * driver.unit();
  }
  s.check_equal("DRV-07", "handles that differ", values.size(), handles.size());
  s.check_free_memory("DRV-07", free - total, "with sixteen allocations");
  for (const int handle : handles) {
    driver.works("DRV-07", driver.call("cuMemRelease", {{"handle", handle}}));
  }
  s.check_free_memory("DRV-07", free, "after they were released");
}

VMMCTS_SCENARIO("driver", "driver: a bad allocation is refused and nothing is taken", "[DRV-08]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t free = s.free_memory();
  const auto prop = [](const char* name, int value) { return Json{{"prop", {{name, value}}}}; };
  const FdSet before = driver.worker().fds();
  refuse_all(driver, "DRV-08", "cuMemCreate", {{"out", driver.object()}, {"size", unit}},
             {{"no size", {{"size", 0}}, "create.size0", kInvalidValue},
              {"a size of one byte", {{"size", 1}}, "create.size_unaligned_1", kInvalidValue},
              {"one byte less than the granularity", {{"size", unit - 1}}},
              {"a size that is no multiple",
               {{"size", unit + 4096}},
               "create.size_unaligned_G+4096",
               kInvalidValue},
              {"no properties", {{"prop", nullptr}}, "create.prop_null", kInvalidValue},
              {"no place for the handle", {{"no_out", true}}, "create.out_null", kInvalidValue},
              {"flags", {{"flags", 1}}, "create.flags1", kInvalidValue},
              {"type 0", prop("type", 0), "create.type_0", kInvalidValue},
              {"type 9", prop("type", 9), "create.type_9", kInvalidValue},
              {"location type 0", prop("location_type", 0), "create.loctype_0_ht_1", kInvalidValue},
              {"location type 9", prop("location_type", 9), "create.loctype_9_ht_1", kInvalidValue},
              {"device 99", prop("location_id", 99), "create.bad_device", kInvalidDevice},
              {"device -1", prop("location_id", -1), "create.neg_device", kInvalidDevice},
              {"the device after the last", prop("location_id", s.plan().devices)}});
  s.check_free_memory("DRV-08", free, "after the refusals");
  s.check_fds("DRV-08", driver.worker(), before, "after the refusals");
}

VMMCTS_SCENARIO("driver", "driver: host memory cannot be shared and says so", "[DRV-09]") {
  Driver driver(s, "a");
  const Called made = driver.call(
      "cuMemCreate", {{"out", driver.object()},
                      {"size", driver.unit()},
                      {"prop", {{"location_type", kOnHost}, {"handle_types", kPosixFd}}}});
  driver.refused_with("DRV-09", made, kInvalidValue, "for host memory with a handle type");
  driver.observed("create.loctype_2_ht_1", made, kInvalidValue);
}

VMMCTS_SCENARIO("driver", "driver: the current NUMA node is no location of an allocation",
                "[DRV-10]") {
  Driver driver(s, "a");
  for (const int handle_types : {kNoHandle, kPosixFd}) {
    const Called made = driver.call(
        "cuMemCreate",
        {{"out", driver.object()},
         {"size", driver.unit()},
         {"prop", {{"location_type", kOnHostNumaCurrent}, {"handle_types", handle_types}}}});
    driver.refused_with("DRV-10", made, kInvalidValue, "for the current NUMA node");
    driver.observed("create.loctype_4_ht_" + std::to_string(handle_types), made, kInvalidValue);
  }
}

VMMCTS_SCENARIO("driver", "driver: memory of a NUMA node of the host can be made and shared",
                "[DRV-11]") {
  Driver driver(s, "a");
  if (!driver.has(kHostNumaVirtualMemory)) throw NotExercised("no memory of NUMA nodes");
  for (const int handle_types : {kNoHandle, kPosixFd}) {
    const auto in_case = s.in_case("handle type " + std::to_string(handle_types));
    const Json prop = {{"location_type", kOnHostNuma}, {"handle_types", handle_types}};
    const int out = driver.object();
    const Called made =
        driver.call("cuMemCreate", {{"out", out}, {"size", driver.unit()}, {"prop", prop}});
    driver.works("DRV-11", made);
    if (!made.ok()) continue;
    const Json found =
        driver.must("cuMemGetAllocationPropertiesFromHandle", {{"handle", out}}).reply.at("prop");
    s.check_equal("DRV-11", "location type", found.at("location_type").get<int>(),
                  int{kOnHostNuma});
    s.check_equal("DRV-11", "node", found.at("location_id").get<int>(), 0);
    const Called exported = driver.call("cuMemExportToShareableHandle", {{"handle", out}});
    if (handle_types == kPosixFd) {
      driver.works("DRV-11", exported);
    } else {
      driver.refused("DRV-11", exported, "of memory made without a handle type");
    }
    driver.release(out);
  }
}

VMMCTS_SCENARIO("driver", "driver: other handle types and hints as observed", "[DRV-53]") {
  Driver driver(s, "a");
  struct Wish {
    std::string fact;
    Json prop;
    int h200;
  };
  const std::vector<Wish> wishes = {
      {"create.handletype_0", {{"handle_types", 0}}, kCudaSuccess},
      {"create.handletype_2", {{"handle_types", kWin32}}, kInvalidValue},
      {"create.handletype_4", {{"handle_types", kWin32Kmt}}, kInvalidValue},
      {"create.handletype_8", {{"handle_types", kFabric}}, kNotPermitted},
      {"create.handletype_3", {{"handle_types", 3}}, kInvalidValue},
      {"create.handletype_16", {{"handle_types", 16}}, kCudaSuccess},
      {"create.type_2_managed", {{"type", 2}}, kInvalidValue},
      {"create.loctype_2_ht_0", {{"location_type", kOnHost}, {"handle_types", 0}}, kCudaSuccess},
      {"create.gdr", {{"rdma", 1}}, kCudaSuccess},
      {"create.compression", {{"compression", 1}}, kCudaSuccess},
      {"create.reserved_nonzero", {{"reserved", 1}}, kInvalidValue}};
  for (const Wish& wish : wishes) {
    const int out = driver.object();
    const Called made =
        driver.call("cuMemCreate", {{"out", out}, {"size", driver.unit()}, {"prop", wish.prop}});
    driver.observed(wish.fact, made, wish.h200);
    if (made.ok()) driver.release(out);
  }
  // The documentation wants no metadata beside a file descriptor; no answer has been measured.
  const int out = driver.object();
  const Called made = driver.call(
      "cuMemCreate", {{"out", out}, {"size", driver.unit()}, {"prop", {{"metadata", true}}}});
  s.note("create with metadata for a file descriptor: " + made.name());
  if (made.ok()) driver.release(out);
  driver.works("DRV-53", driver.call("cuMemGetAllocationGranularity"));
}

VMMCTS_SCENARIO("driver", "driver: running out of memory takes nothing and undoes nothing",
                "[DRV-13]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const std::uint64_t free = s.free_memory();
  const std::uint64_t total = driver.must("cuMemGetInfo").get("total");
  const std::uint64_t quarter = total / 4 / unit * unit;
  for (const std::uint64_t size : {(total / unit + 1) * unit, std::uint64_t{1} << 50}) {
    const Called made = driver.call("cuMemCreate", {{"out", driver.object()}, {"size", size}});
    driver.refused("DRV-13", made, "of more than the device has");
    driver.observed(size == std::uint64_t{1} << 50 ? "create.huge_1PiB" : "create.over_free", made,
                    kOutOfMemory);
    s.check_free_memory("DRV-13", free, "after the refusal");
  }
  std::vector<int> batch;
  const Piece first = driver.piece();
  driver.fill(first.pointer, first.size, 14);
  for (int i = 0; i < 8; ++i) {
    const int out = driver.object();
    const Called made = driver.call("cuMemCreate", {{"out", out}, {"size", quarter}});
    if (!made.ok()) break;
    batch.push_back(out);
  }
  s.check("DRV-13", batch.size() <= 4, "the batch ends where memory does");
  s.check("DRV-13", driver.holds(first.pointer, first.size, 14), "older memory is untouched");
  for (const int handle : batch) driver.release(handle);
  driver.undo(first);
  s.check_free_memory("DRV-13", free, "after the batch was given up");
}

VMMCTS_SCENARIO("driver", "driver: a failed call leaves its output alone", "[DRV-54]") {
  Driver driver(s, "a");
  const std::uint64_t unit = driver.unit();
  const int local = driver.create(unit, {{"handle_types", kNoHandle}});
  const Called create = driver.call("cuMemCreate", {{"out", driver.object()}, {"size", 0}});
  const Called reserve = driver.call("cuMemAddressReserve", {{"size", 0}});
  const Called exported = driver.call("cuMemExportToShareableHandle", {{"handle", local}});
  const Called retained =
      driver.call("cuMemRetainAllocationHandle", {{"out", driver.object()}, {"pointer", unit}});
  for (const Called& called : {create, reserve, exported, retained}) {
    driver.refused("DRV-54", called);
    driver.observed(called.entry_point + ".output_untouched", called.untouched(), true);
  }
}
