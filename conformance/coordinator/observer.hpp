// Witness: free device memory, seen from a third process.
#pragma once

#include <chrono>
#include <cstdint>

#include "coordinator/plan.hpp"
#include "coordinator/process.hpp"
#include "protocol/channel.hpp"

namespace cts {

class Observer {
 public:
  // Starts the plan's observer over its driver, without the tap. Throws std::runtime_error.
  explicit Observer(const Plan& plan);

  // Bytes that cuMemGetInfo calls free. Throws std::runtime_error when the observer fails.
  std::uint64_t free_memory(int device);

 private:
  Json call(Json request);

  std::chrono::milliseconds deadline_;
  Process process_;
  Channel channel_;
};

}  // namespace cts
