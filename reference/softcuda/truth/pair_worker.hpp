// The two processes of a pair walk: what the coordinator asks of them, and how.
#pragma once

#include <sys/types.h>

namespace truth {

// A request: one letter of the walk's alphabet and up to four arguments.
struct Request {
  int operation;
  int a, b, c, d;
};

struct Reply {
  int result;
  long value;
  long unused;
};

// Sends or receives one message, with an fd beside it when there is one. False at the peer's end.
bool send_message(int socket, const void* bytes, size_t size, int fd);
bool receive_message(int socket, void* bytes, size_t size, int* fd);

// Serves requests until the socket closes. Never returns. Dies with the coordinator.
[[noreturn]] void serve_requests(int socket);

}  // namespace truth
