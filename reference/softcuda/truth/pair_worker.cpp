// A process of the pair walk: holds handles, ranges and fds by slot, and does what it is told.
#include "pair_worker.hpp"

#include <cuda.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace truth {
namespace {

constexpr size_t kUnit = size_t{2} << 20;

struct Slots {
  CUmemGenericAllocationHandle handles[8] = {};
  CUdeviceptr ranges[4] = {};
  size_t range_sizes[4] = {};
  int fds[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
};

CUresult create(CUmemGenericAllocationHandle* handle, size_t size, int handle_types) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
  return cuMemCreate(handle, size, &prop, 0);
}

CUresult set_access(CUdeviceptr base, size_t size, int flags) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = static_cast<CUmemAccess_flags>(flags);
  return cuMemSetAccess(base, size, &access, 1);
}

// Does one request. `out` becomes the fd to send back, if any.
Reply serve(Slots& s, const Request& q, int received_fd, int* out) {
  Reply reply{0, 0, 0};
  auto at = [&] { return s.ranges[q.a] + static_cast<size_t>(q.b) * kUnit; };
  size_t size = static_cast<size_t>(q.c) * kUnit;
  constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  switch (q.operation) {
    case 'C':
      reply.result = create(&s.handles[q.a], static_cast<size_t>(q.b) * kUnit, q.c);
      break;
    case 'L': reply.result = cuMemRelease(s.handles[q.a]); break;
    case 'R':
      s.range_sizes[q.a] = static_cast<size_t>(q.b) * kUnit;
      reply.result = cuMemAddressReserve(&s.ranges[q.a], s.range_sizes[q.a], 0, 0, 0);
      break;
    case 'F': reply.result = cuMemAddressFree(s.ranges[q.a], s.range_sizes[q.a]); break;
    case 'M': reply.result = cuMemMap(at(), size, 0, s.handles[q.d], 0); break;
    case 'U': reply.result = cuMemUnmap(at(), size); break;
    case 'A': reply.result = set_access(at(), size, q.d); break;
    case 'W':
      reply.result = cuMemsetD8(at(), static_cast<unsigned char>(q.d), size);
      cuCtxSynchronize();
      break;
    case 'V': {
      unsigned char byte = 0;
      reply.result = cuMemcpyDtoH(&byte, at() + static_cast<size_t>(q.c), 1);
      reply.value = byte;
      break;
    }
    case 'X':
      reply.result = cuMemExportToShareableHandle(&s.fds[q.b], s.handles[q.a], kFd, 0);
      if (reply.result != CUDA_SUCCESS) s.fds[q.b] = -1;
      break;
    case 'I': {
      void* fd = reinterpret_cast<void*>(static_cast<uintptr_t>(s.fds[q.a]));
      reply.result = cuMemImportFromShareableHandle(&s.handles[q.b], fd, kFd);
      break;
    }
    case 'K':
      close(s.fds[q.a]);
      s.fds[q.a] = -1;
      break;
    case 'S': *out = s.fds[q.a]; break;
    case 'G':
      s.fds[q.a] = received_fd;
      reply.result = received_fd < 0;
      break;
    case 'N': {
      size_t free = 0, total = 0;
      reply.result = cuMemGetInfo(&free, &total);
      reply.value = static_cast<long>(free / kUnit);
      break;
    }
    case 'P': {
      CUmemAllocationProp prop{};
      reply.result = cuMemGetAllocationPropertiesFromHandle(&prop, s.handles[q.a]);
      reply.value = prop.requestedHandleTypes;
      break;
    }
    default: reply.result = -1;
  }
  return reply;
}

}  // namespace

bool send_message(int socket, const void* bytes, size_t size, int fd) {
  msghdr message{};
  iovec part{const_cast<void*>(bytes), size};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool receive_message(int socket, void* bytes, size_t size, int* fd) {
  msghdr message{};
  iovec part{bytes, size};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof *fd)];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *fd = -1;
  ssize_t n = recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC);
  if (n <= 0) return false;
  if (cmsghdr* header = CMSG_FIRSTHDR(&message)) memcpy(fd, CMSG_DATA(header), sizeof *fd);
  return n == static_cast<ssize_t>(size);
}

void serve_requests(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  CUcontext context;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) _exit(2);
  cuCtxSetCurrent(context);
  Slots slots;
  Request request;
  int fd = -1;
  while (receive_message(socket, &request, sizeof request, &fd)) {
    int out = -1;
    Reply reply = serve(slots, request, fd, &out);
    if (!send_message(socket, &reply, sizeof reply, out)) break;
  }
  _exit(0);
}

}  // namespace truth
