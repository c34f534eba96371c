// How a call log lies in its file: one header page, then records.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "tap/call_log.hpp"

namespace tap {

constexpr std::uint64_t kLogMagic = 0x2'5041'5453'5443;  // "CTSTAP", version 2 above it
constexpr std::size_t kHeaderBytes = 4096;

enum CallId : std::uint16_t {
#define TRACED(symbol, name, query, arguments) kId_##symbol,
#include "tap/traced.inc"
#undef TRACED
  kId_descriptor_open,
  kCallIds
};
constexpr std::uint32_t kAnyCall = 0xffff;

struct CallKind {
  const char* name;
  bool query;
  const char* arguments;
};
inline constexpr CallKind kCallKinds[] = {
#define TRACED(symbol, name, query, arguments) {#name, query, arguments},
#include "tap/traced.inc"
#undef TRACED
    {kDescriptorOpenAtExit.data(), true, "fd"},
};

// The first of the versions that have one name: what an injection names.
constexpr std::uint32_t first_version(std::uint16_t call) {
  std::uint32_t first = 0;
  while (std::string_view(kCallKinds[first].name) != kCallKinds[call].name) ++first;
  return first;
}

struct Record {
  std::atomic<std::uint64_t> sequence;  // 0 until the record can be read
  std::uint64_t start_ns;
  std::uint64_t duration_ns;
  std::uint64_t arguments[kArguments];
  std::int32_t pid;
  std::int32_t tid;
  std::atomic<std::int32_t> result;
  std::int32_t fd_in;
  std::int32_t fd_out;
  std::uint16_t call;
  std::uint16_t injected;
};

// Written while `remaining` is 0, armed by setting it to nth. Whoever counts it down to 0 carries it
// out.
struct InjectionSlot {
  std::atomic<std::int64_t> remaining;
  std::uint32_t target;  // a CallId, or kAnyCall
  Action action;
  std::int32_t code;
  std::uint64_t delay_ns;
};

struct LogHeader {
  std::uint64_t magic;
  std::uint64_t capacity;
  std::atomic<std::uint64_t> next;
  std::atomic<std::uint64_t> fired;
  std::atomic<std::uint32_t> injections;  // slots in use, from the first on
  InjectionSlot slots[kInjections];

  Record* records() {
    return reinterpret_cast<Record*>(reinterpret_cast<char*>(this) + kHeaderBytes);
  }
};
static_assert(sizeof(LogHeader) <= kHeaderBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share the log");

// Maps the log at `path`, making one of `capacity` records when there is none; the mapping holds no
// descriptor. Throws std::runtime_error.
LogHeader* map_log(const std::string& path, std::size_t capacity, std::size_t& bytes);

}  // namespace tap
