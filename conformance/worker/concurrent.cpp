#include "worker/concurrent.hpp"

#include <array>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "protocol/pattern.hpp"

namespace cts {
namespace {

constexpr std::size_t kProbeBytes = 256;

// What all threads found, together.
struct Findings {
  std::mutex mutex;
  std::set<std::string> errors;
  int wrong_bytes = 0;
};

template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// One round of one thread; `seed` tells its bytes from everybody else's.
class Round {
 public:
  Round(const vmmcts_implementation& table, vmmcts_resource* resource, Findings& findings,
        std::uint64_t seed)
      : table_(table), resource_(resource), findings_(findings), seed_(seed) {}

  void run() {
    Owned<vmmcts_buffer> first(nullptr, table_.buffer_release);
    Owned<vmmcts_buffer> grown(nullptr, table_.buffer_release);
    Owned<vmmcts_buffer> imported(nullptr, table_.buffer_release);
    Owned<vmmcts_descriptor> descriptor(nullptr, table_.descriptor_release);
    vmmcts_buffer_info info{};
    if (!make(first, [&](auto* out, auto* error) {
          return table_.buffer_allocate(resource_, 1, out, error);
        }) ||
        !good([&](auto* error) { return table_.buffer_info(first.get(), &info, error); })) {
      return;
    }
    std::array<std::uint8_t, kProbeBytes> bytes{};
    write_pattern(bytes, seed_, 0);
    if (!good([&](auto* error) {
          return table_.buffer_write(first.get(), 0, bytes.data(), bytes.size(), error);
        }) ||
        !make(grown, [&](auto* out, auto* error) {
          return table_.buffer_modify(resource_, first.get(), info.size + 1, nullptr, out, error);
        })) {
      return;
    }
    first.reset();
    if (!make(descriptor, [&](auto* out, auto* error) {
          return table_.buffer_export(grown.get(), out, error);
        }) ||
        !make(imported, [&](auto* out, auto* error) {
          return table_.buffer_import(resource_, descriptor.get(), out, error);
        })) {
      return;
    }
    descriptor.reset();
    grown.reset();
    bytes.fill(0);
    if (!good([&](auto* error) {
          return table_.buffer_read(imported.get(), 0, bytes.data(), bytes.size(), error);
        })) {
      return;
    }
    if (find_mismatch(bytes, seed_, 0) >= 0) {
      const std::lock_guard lock(findings_.mutex);
      ++findings_.wrong_bytes;
    }
  }

 private:
  template <class Call>
  bool good(Call call) {
    vmmcts_error error{};
    if (call(&error) == VMMCTS_OK) return true;
    const std::lock_guard lock(findings_.mutex);
    findings_.errors.insert(error.message);
    return false;
  }

  template <class T, class Call>
  bool make(Owned<T>& into, Call call) {
    T* made = nullptr;
    if (!good([&](auto* error) { return call(&made, error); })) return false;
    into.reset(made);
    return true;
  }

  const vmmcts_implementation& table_;
  vmmcts_resource* resource_;
  Findings& findings_;
  std::uint64_t seed_;
};

}  // namespace

Json run_concurrently(const vmmcts_implementation& table, vmmcts_resource* resource, int threads,
                      int rounds) {
  Findings findings;
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (int r = 0; r < rounds; ++r) {
        Round(table, resource, findings, static_cast<std::uint64_t>(t * rounds + r)).run();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  return {{"wrong_bytes", findings.wrong_bytes}, {"errors", findings.errors}};
}

}  // namespace cts
