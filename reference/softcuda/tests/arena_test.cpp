// Where addresses come from.
#include "arena.hpp"

#include <random>

#include "catch2_compat.hpp"

using softcuda::Arena;

namespace {

constexpr size_t kUnit = size_t{2} << 20;

}  // namespace

TEST_CASE("places do not overlap, are aligned, and can be taken again") {
  Arena arena;
  arena.configure(kUnit, true, false);
  std::mt19937 random(1);
  std::map<CUdeviceptr, size_t> taken;
  for (int i = 0; i < 3000; i++) {
    if (!taken.empty() && random() % 3 == 0) {
      auto it = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      arena.give_back(it->first, it->second);
      taken.erase(it);
      continue;
    }
    size_t size = (1 + random() % 8) * kUnit;
    size_t alignment = kUnit << (random() % 4);
    CUdeviceptr base = 0;
    REQUIRE(arena.take(size, alignment, &base));
    REQUIRE(base % alignment == 0);
    auto above = taken.lower_bound(base);
    REQUIRE((above == taken.end() || base + size <= above->first));
    REQUIRE((above == taken.begin() ||
             std::prev(above)->first + std::prev(above)->second <= base));
    taken[base] = size;
  }
}

TEST_CASE("a place is taken by address only when it is free") {
  Arena arena;
  arena.configure(kUnit, false, false);
  CUdeviceptr base = 0;
  REQUIRE(arena.take(kUnit, 0, &base));
  CHECK_FALSE(arena.take_at(base, kUnit));
  CHECK(arena.take_at(base + kUnit, 2 * kUnit));
  CHECK_FALSE(arena.take_at(base + 2 * kUnit, 2 * kUnit));
  arena.give_back(base + kUnit, 2 * kUnit);
  CHECK(arena.take_at(base + 2 * kUnit, 2 * kUnit));
  CHECK_FALSE(arena.take_at(kUnit, kUnit));
}

TEST_CASE("what is given back is one place again") {
  Arena arena;
  arena.configure(kUnit, false, false);
  CUdeviceptr first = 0, a = 0, b = 0, c = 0;
  REQUIRE(arena.take(3 * kUnit, 0, &first));
  arena.give_back(first, 3 * kUnit);
  REQUIRE(arena.take(kUnit, 0, &a));
  REQUIRE(arena.take(kUnit, 0, &b));
  REQUIRE(arena.take(kUnit, 0, &c));
  arena.give_back(a, kUnit);
  arena.give_back(c, kUnit);
  arena.give_back(b, kUnit);
  CUdeviceptr again = 0;
  REQUIRE(arena.take(3 * kUnit, 0, &again));
  CHECK(again == first);
}

TEST_CASE("descending places come from the top") {
  Arena arena;
  arena.configure(kUnit, false, true);
  CUdeviceptr a = 0, b = 0;
  REQUIRE(arena.take(kUnit, 0, &a));
  REQUIRE(arena.take(kUnit, 0, &b));
  CHECK(b == a - kUnit);
}

TEST_CASE("more than the address space is refused") {
  Arena arena;
  arena.configure(kUnit, false, false);
  CUdeviceptr base = 0;
  CHECK_FALSE(arena.take(size_t{1} << 47, 0, &base));
  CHECK_FALSE(arena.take(size_t{1} << 60, 0, &base));
  CHECK(arena.take(kUnit, 0, &base));
}
