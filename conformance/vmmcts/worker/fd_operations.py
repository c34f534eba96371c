"""The operations on file descriptors that every worker has (PROTOCOL.md)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Iterator

from vmmcts.worker.channel import MAX_FDS_PER_MESSAGE, Message, receive_with_fds, send_with_fds
from vmmcts.worker.server import Reply, Server

_SYS_PIDFD_GETFD = 438
_SOCKET_TIMEOUT = 5.0  # seconds


class FdOperations:
    """Owns the descriptors that this worker was sent or made."""

    def __init__(self) -> None:
        self._owned: set[int] = set()
        self._fillers: list[int] = []
        self._original_limit: tuple[int, int] | None = None

    def add_to(self, server: Server) -> None:
        """Serve the operations."""
        server.add("send_fds", lambda m: Reply({}, m.body["fds"]))
        server.add("receive_fds", self._receive_fds)
        server.add("dup", self._dup)
        server.add("pidfd_getfd", self._pidfd_getfd)
        server.add("close_fd", self._close_fd)
        server.add("open_fd", self._open_fd)
        server.add("socketpair", self._socketpair)
        server.add("sendmsg", self._sendmsg)
        server.add("recvmsg", self._recvmsg)
        server.add("nofile_free", self._nofile_free)
        server.add("nofile_restore", self._nofile_restore)
        server.add("exit", self._exit)

    def reset(self) -> None:
        """Close every descriptor held here and put RLIMIT_NOFILE back."""
        self._restore_limit()
        for fd in self._owned:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._owned.clear()

    def _keep(self, fd: int) -> int:
        self._owned.add(fd)
        return fd

    def _receive_fds(self, message: Message) -> Reply:
        received = [self._keep(fd) for fd in message.fds]
        return Reply({"received": received, "truncated": message.truncated})

    def _dup(self, message: Message) -> Reply:
        return Reply({"fd": self._keep(os.dup(message.body["fd"]))})

    def _pidfd_getfd(self, message: Message) -> Reply:
        process = os.pidfd_open(message.body["pid"])
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = libc.syscall(_SYS_PIDFD_GETFD, process, message.body["fd"], 0)
        finally:
            os.close(process)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return Reply({"fd": self._keep(fd)})

    def _close_fd(self, message: Message) -> Reply:
        fd = message.body["fd"]
        self._owned.discard(fd)
        os.close(fd)
        return Reply()

    def _open_fd(self, message: Message) -> Reply:
        kind = message.body["kind"]
        if kind == "pipe":
            fd, write_end = os.pipe()
            os.close(write_end)
        elif kind == "socket":
            fd = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()
        elif kind == "memfd":
            fd = os.memfd_create("vmmcts")
        elif kind == "file":
            fd = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        else:
            fd = os.open("/dev/null" if kind == "null" else kind, os.O_RDONLY | os.O_CLOEXEC)
        return Reply({"fd": self._keep(fd)})

    def _socketpair(self, _: Message) -> Reply:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Reply({"fds": [self._keep(end.detach()) for end in ends]})

    def _sendmsg(self, message: Message) -> Reply:
        fds = message.body["fds"]
        batches = max(1, -(-len(fds) // MAX_FDS_PER_MESSAGE))
        with _borrowed_socket(message.body["socket"]) as sock:
            send_with_fds(sock, bytes(batches), fds)
        return Reply()

    def _recvmsg(self, message: Message) -> Reply:
        with _borrowed_socket(message.body["socket"]) as sock:
            data, fds, truncated = receive_with_fds(sock, 1)
        received = [self._keep(fd) for fd in fds]
        return Reply({"received": received, "truncated": truncated, "end": not data})

    def _nofile_free(self, message: Message) -> Reply:
        slots = message.body["slots"]
        self._restore_limit()
        self._original_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        listing = os.listdir("/proc/self/fd")
        # The listing shows its own descriptor, which is closed by now.
        highest = max(int(name) for name in listing if os.path.exists(f"/proc/self/fd/{name}"))
        limit = highest + 1 + slots
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, self._original_limit[1]))
        try:
            while True:
                self._fillers.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        for _ in range(min(slots, len(self._fillers))):
            os.close(self._fillers.pop())
        return Reply()

    def _nofile_restore(self, _: Message) -> Reply:
        self._restore_limit()
        return Reply()

    def _restore_limit(self) -> None:
        for fd in self._fillers:
            os.close(fd)
        self._fillers.clear()
        if self._original_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._original_limit)
            self._original_limit = None

    def _exit(self, message: Message) -> Reply:
        how = message.body["how"]
        if how == "_exit":
            os._exit(0)
        if how == "exec":
            os.execlp("true", "true")
        if how == "abort":
            os.kill(os.getpid(), signal.SIGABRT)
        raise SystemExit(0)


@contextlib.contextmanager
def _borrowed_socket(fd: int) -> Iterator[socket.socket]:
    """A socket object over a number that stays its owner's."""
    sock = socket.socket(fileno=fd)
    sock.settimeout(_SOCKET_TIMEOUT)
    try:
        yield sock
    finally:
        sock.settimeout(None)
        sock.detach()
