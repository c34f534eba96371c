// One end of the connection between the coordinator and a worker (PROTOCOL.md, Transport).
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "protocol/deadline.hpp"
#include "protocol/unique_fd.hpp"

namespace cts {

using Json = nlohmann::json;

constexpr int kProtocolVersion = 1;
constexpr std::size_t kMaxFdsPerMessage = 253;  // SCM_MAX_FD of the kernel
constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;

// Why a message did not come. The connection is of no more use after any of these.
struct ChannelError : std::runtime_error {
  enum class Reason { closed, timed_out, malformed };
  ChannelError(Reason why, const std::string& text) : std::runtime_error(text), reason(why) {}
  Reason reason;
};

struct Message {
  Json body;
  std::vector<UniqueFd> fds;  // what arrived, at most what the body announces
  bool truncated = false;     // the kernel had no room for all (MSG_CTRUNC)
};

// Sends `bytes` with descriptors beside them, in batches of kMaxFdsPerMessage. The descriptors stay
// the caller's. Throws ChannelError closed or timed_out.
void send_with_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   const Deadline& deadline);

// Reads at most `bytes.size()` bytes, appending descriptors to `fds` (close-on-exec) and setting
// `truncated` when some were lost. Returns 0 at the end of the stream, or when the process behind
// the pidfd `peer` (-1: none) has ended with nothing left to read. Waits until the deadline.
std::size_t receive_with_fds(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>& fds,
                             bool& truncated, const Deadline& deadline, int peer = -1);

class Channel {
 public:
  // `peer` may be a pidfd of the other side: its death ends the connection even where a child of
  // it has inherited the socket.
  explicit Channel(UniqueFd socket, UniqueFd peer = {})
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  // Sends one message; adds "attached" to the body when descriptors go with it.
  void send(Json body, std::span<const int> fds, const Deadline& deadline);

  // The next message. Descriptors beyond what the body announces make it malformed.
  Message receive(const Deadline& deadline);

  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
  UniqueFd peer_;
  std::string buffer_;
};

}  // namespace cts
