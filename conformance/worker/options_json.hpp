// Options of a resource, from a request.
#pragma once

#include <string>
#include <vector>

#include "protocol/channel.hpp"
#include "vmmcts/implementation.h"

namespace cts {

// vmmcts_options with the peers that it points to.
struct Options {
  explicit Options(const Json& request);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  vmmcts_options value{};

 private:
  std::vector<int32_t> peers_;
};

int32_t handle_type_from(const std::string& name);
std::string handle_type_name(int32_t type);

}  // namespace cts
