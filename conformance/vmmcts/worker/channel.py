"""One end of the connection to the coordinator (PROTOCOL.md, Transport)."""

from __future__ import annotations

import array
import dataclasses
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MAX_FDS_PER_MESSAGE = 253  # SCM_MAX_FD of the kernel
_PIECE = 1 << 16


class Closed(Exception):
    """The coordinator is gone."""


@dataclasses.dataclass
class Message:
    """A request; whoever takes ``fds`` owns them."""

    body: dict[str, Any]
    fds: list[int]
    truncated: bool


def send_with_fds(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send all of ``data`` with descriptors beside it, at most 253 to a message."""
    view = memoryview(data)
    rest = list(fds)
    while view:
        last = len(rest) <= MAX_FDS_PER_MESSAGE
        batch, rest = rest[:MAX_FDS_PER_MESSAGE], rest[MAX_FDS_PER_MESSAGE:]
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", batch))] if batch else []
        sent = sock.sendmsg([view if last else view[:1]], control)
        view = view[sent:]


def receive_with_fds(sock: socket.socket, size: int) -> tuple[bytes, list[int], bool]:
    """Read at most ``size`` bytes; return them, the descriptors beside them, and whether some
    descriptors were lost. No bytes means the end of the stream."""
    room = socket.CMSG_SPACE(MAX_FDS_PER_MESSAGE * array.array("i").itemsize)
    data, control, flags, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds), bool(flags & socket.MSG_CTRUNC)


class Channel:
    """Reads requests and writes replies."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""

    @classmethod
    def from_environment(cls) -> Channel:
        """The connection that this process was started with."""
        fd = int(os.environ["VMMCTS_FD"])
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    @classmethod
    def connect(cls, path: str) -> Channel:
        """A connection back to the coordinator, from a child."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        return cls(sock)

    def receive(self) -> Message:
        """The next request. Raises Closed at the end of the stream."""
        fds: list[int] = []
        truncated = False
        while b"\n" not in self._buffer:
            data, more, lost = receive_with_fds(self._socket, _PIECE)
            if not data:
                raise Closed
            fds += more
            truncated |= lost
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return Message(json.loads(line), fds, truncated)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, body: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one reply with descriptors beside it; they stay the caller's."""
        if fds:
            body = {**body, "attached": len(fds)}
        send_with_fds(self._socket, json.dumps(body).encode() + b"\n", fds)
