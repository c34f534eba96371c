#include "coordinator/listener.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace cts {

Listener::Listener(std::string path)
    : path_(std::move(path)), socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    throw std::runtime_error("the path is too long for a socket, choose another TMPDIR: " + path_);
  }
  std::memcpy(address.sun_path, path_.c_str(), path_.size());
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket_.get(), 16) != 0) {
    throw std::runtime_error("cannot listen at " + path_ + ": " + std::strerror(errno));
  }
}

Listener::~Listener() { ::unlink(path_.c_str()); }

UniqueFd Listener::accept(const Deadline& deadline) const {
  pollfd entry{socket_.get(), POLLIN, 0};
  while (::poll(&entry, 1, deadline.poll_timeout()) < 0 && errno == EINTR) {
  }
  if ((entry.revents & POLLIN) == 0) return {};
  return UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

}  // namespace cts
