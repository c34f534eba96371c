// Steps that many scenarios share.
#pragma once

#include <catch2_compat.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/scenario.hpp"

namespace cts {

// Chunk layouts that scenarios run over, in granules of the driver.
using Layout = std::vector<int>;
std::string to_string(const Layout& layout);  // "3 allocations of 1+2+3 granules"

// The driver's granule: the size of the smallest buffer.
std::uint64_t granule(Worker& worker, const Resource& resource);

// A buffer of one allocation per element, each of so many granules, made by growing; the
// intermediate buffers are dropped.
Buffer allocate_chunks(Worker& worker, const Resource& resource, const Layout& layout);

// The descriptor rebuilt in another worker over SCM_RIGHTS; the transport's copies are closed.
Descriptor forward(Worker& from, const Descriptor& descriptor, Worker& to);
// The same for descriptors that the coordinator already took out of `from`.
Descriptor rebuild(const std::vector<UniqueFd>& fds, const Descriptor& like, Worker& to);

// Exports in one worker and imports in another, over SCM_RIGHTS; no descriptor is left in either.
Buffer share(Worker& from, const Buffer& buffer, Worker& to, const Resource& into);

// A buffer and what became of it by growing one granule along the wanted path, told by its pointer.
// `make` makes the input: it is asked again, with its earlier ones still open, until a driver takes
// that path; then those are dropped. Throws NotExercised when the path cannot be reached.
enum class GrowPath { in_place, moved };
std::string to_string(GrowPath path);
// Grows by one granule to another address: what a first grow in place has taken, a second cannot.
Buffer grow_moved(Worker& worker, const Resource& resource, const Buffer& buffer);
struct Grown {
  Buffer input;
  Buffer result;
};
Grown grow_along(Worker& worker, const Resource& resource, GrowPath path,
                 const std::function<Buffer()>& make);

// Those of `calls` that are the given driver call.
std::vector<tap::Call> only(const std::vector<tap::Call>& calls, std::string_view name);

// The answer is an error with the status that the last call of this name answered with; without a
// tap, with any.
template <class T>
void check_status(Scenario& s, std::string_view clauses, const Answer<T>& answer,
                  std::string_view name) {
  const int status = answer.ok() ? 0 : answer.error().cuda;
  const auto calls = only(answer.calls, name);
  s.check(clauses, status != 0, answer.operation() + " fails with a status of the driver");
  if (!s.plan().tap) return;
  s.check_equal(clauses, "the status of " + std::string(name), status,
                calls.empty() ? 0 : calls.back().result);
}

}  // namespace cts
