#include "protocol/channel.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace cts {
namespace {

using Reason = ChannelError::Reason;

[[noreturn]] void fail(const char* what, int error) {
  throw ChannelError(Reason::closed, std::string(what) + ": " + std::strerror(error));
}

// Waits until the socket is ready for `events`; false when instead the peer has ended.
bool wait_ready(int socket, short events, const Deadline& deadline, int peer = -1) {
  for (;;) {
    std::array<pollfd, 2> entries{pollfd{socket, events, 0}, pollfd{peer, POLLIN, 0}};
    const int ready = ::poll(entries.data(), entries.size(), deadline.poll_timeout());
    if (ready > 0) return entries[0].revents != 0;
    if (ready == 0) throw ChannelError(Reason::timed_out, "no answer before the deadline");
    if (errno != EINTR) fail("poll", errno);
  }
}

// Sends one piece with at most kMaxFdsPerMessage descriptors; returns the bytes taken.
std::size_t send_piece(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                       const Deadline& deadline) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFdsPerMessage)> control{};
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN) {
      wait_ready(socket, POLLOUT, deadline);
    } else if (errno != EINTR) {
      fail("sendmsg", errno);
    }
  }
}

}  // namespace

void send_with_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   const Deadline& deadline) {
  while (!bytes.empty()) {
    const bool last_batch = fds.size() <= kMaxFdsPerMessage;
    const auto batch = fds.first(last_batch ? fds.size() : kMaxFdsPerMessage);
    const std::size_t sent =
        send_piece(socket, last_batch ? bytes : bytes.first(1), batch, deadline);
    fds = fds.subspan(batch.size());
    bytes = bytes.subspan(sent);
  }
}

std::size_t receive_with_fds(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>& fds,
                             bool& truncated, const Deadline& deadline, int peer) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFdsPerMessage)> control{};
  iovec data{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  for (;;) {
    if (!wait_ready(socket, POLLIN, deadline, peer)) return 0;
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got >= 0) break;
    if (errno == ECONNRESET) return 0;
    if (errno != EINTR && errno != EAGAIN) fail("recvmsg", errno);
  }
  if (message.msg_flags & MSG_CTRUNC) truncated = true;
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return static_cast<std::size_t>(got);
}

void Channel::send(Json body, std::span<const int> fds, const Deadline& deadline) {
  if (!fds.empty()) body["attached"] = fds.size();
  std::string line = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  line += '\n';
  send_with_fds(socket_.get(), std::as_bytes(std::span(line)), fds, deadline);
}

Message Channel::receive(const Deadline& deadline) {
  Message message;
  std::size_t searched = 0;
  std::size_t end = std::string::npos;
  while ((end = buffer_.find('\n', searched)) == std::string::npos) {
    searched = buffer_.size();
    if (searched > kMaxMessageBytes) {
      throw ChannelError(Reason::malformed, "a line of more than 64 MiB");
    }
    std::array<std::byte, 1 << 16> piece;
    const std::size_t got = receive_with_fds(socket_.get(), piece, message.fds, message.truncated,
                                             deadline, peer_.get());
    if (got == 0) throw ChannelError(Reason::closed, "the connection ended");
    buffer_.append(reinterpret_cast<const char*>(piece.data()), got);
  }
  const std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  message.body = Json::parse(line, nullptr, false);
  if (!message.body.is_object()) {
    throw ChannelError(Reason::malformed, "not a JSON object: " + line.substr(0, 200));
  }
  std::size_t announced = 0;
  if (const auto attached = message.body.find("attached"); attached != message.body.end()) {
    announced = attached->is_number_unsigned() ? attached->get<std::size_t>() : 0;
  }
  if (message.fds.size() > announced) {
    throw ChannelError(Reason::malformed, std::to_string(message.fds.size()) +
                                              " descriptors where " + std::to_string(announced) +
                                              " were announced");
  }
  return message;
}

}  // namespace cts
