#include "worker/options_json.hpp"

#include <array>
#include <utility>

#include "worker/server.hpp"

namespace cts {
namespace {

using Names = std::pair<const char*, int32_t>;

constexpr std::array kHandleTypes{Names{"none", VMMCTS_HANDLE_NONE},
                                  Names{"posix_fd", VMMCTS_HANDLE_POSIX_FD},
                                  Names{"win32", VMMCTS_HANDLE_WIN32},
                                  Names{"win32_kmt", VMMCTS_HANDLE_WIN32_KMT},
                                  Names{"fabric", VMMCTS_HANDLE_FABRIC}};
constexpr std::array kLocations{Names{"device", VMMCTS_LOCATION_DEVICE},
                                Names{"host", VMMCTS_LOCATION_HOST},
                                Names{"host_numa", VMMCTS_LOCATION_HOST_NUMA}};
constexpr std::array kAccess{Names{"none", VMMCTS_ACCESS_NONE}, Names{"r", VMMCTS_ACCESS_READ},
                             Names{"rw", VMMCTS_ACCESS_READWRITE}};

template <class Table>
int32_t look_up(const Table& table, const std::string& name, const char* what) {
  for (const auto& [known, value] : table) {
    if (name == known) return value;
  }
  throw OperationError("Protocol", std::string("unknown ") + what + " " + name);
}

}  // namespace

int32_t handle_type_from(const std::string& name) {
  return look_up(kHandleTypes, name, "handle type");
}

std::string handle_type_name(int32_t type) {
  for (const auto& [name, value] : kHandleTypes) {
    if (value == type) return name;
  }
  return "unknown " + std::to_string(type);
}

Options::Options(const Json& request)
    : peers_(request.value("peers", std::vector<int32_t>{})) {
  value.device = request.value("device", 0);
  value.handle_type = handle_type_from(request.value("handle_type", "posix_fd"));
  value.location_type =
      look_up(kLocations, request.value("location_type", "device"), "location type");
  value.self_access = look_up(kAccess, request.value("self_access", "rw"), "access");
  value.peer_access = look_up(kAccess, request.value("peer_access", "rw"), "access");
  value.peers = peers_.data();
  value.peer_count = peers_.size();
}

}  // namespace cts
