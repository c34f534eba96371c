"""Reads requests, runs operations, answers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from vmmcts.worker.channel import Channel, Closed, Message


class ProtocolError(Exception):
    """The request cannot be understood."""


@dataclasses.dataclass
class Reply:
    """A result, and descriptors beside it that stay their holder's."""

    result: dict[str, Any] = dataclasses.field(default_factory=dict)
    fds: Sequence[int] = ()


Operation = Callable[[Message], Reply]

# In this order: OSError first, since its subclasses may be ValueError too.
_KINDS: tuple[type[Exception], ...] = (OSError, TypeError, ValueError, RuntimeError)


def error_json(error: BaseException) -> dict[str, Any]:
    """An exception as a reply tells it."""
    kind = next((k.__name__ for k in _KINDS if isinstance(error, k)), type(error).__name__)
    if isinstance(error, ProtocolError):
        kind = "Protocol"
    return {
        "kind": kind,
        "message": str(error),
        "cuda": int(getattr(error, "cuda_result", 0) or 0),
        "errno": int(getattr(error, "errno", 0) or 0),
    }


def _reply_to(operation: Callable[[dict[str, Any]], dict[str, Any]], message: Message) -> Reply:
    return Reply(operation(message.body))


class Server:
    """Operations by name, served one request at a time."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}

    def add(self, name: str, operation: Operation) -> None:
        """Serve ``name`` with ``operation``."""
        self._operations[name] = operation

    def add_all(self, operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
        """Serve operations that take the body of a request and give the result."""
        for name, operation in operations.items():
            self._operations[name] = functools.partial(_reply_to, operation)

    def run(self, channel: Channel) -> None:
        """Serve until the coordinator closes the connection."""
        try:
            while True:
                self._serve_one(channel)
        except (Closed, ConnectionError):
            pass
        finally:
            channel.close()

    def _serve_one(self, channel: Channel) -> None:
        request = channel.receive()
        identity = request.body.get("id", 0)
        try:
            reply = self._find(request.body["op"])(request)
            answer, fds = {"ok": True, "result": reply.result}, reply.fds
        except Exception as error:
            answer, fds = {"ok": False, "error": error_json(error)}, []
            # The traceback holds the frames, and they hold the objects of the request.
            error.__traceback__ = None
        # Not inside: before Python 3.11 the exception being handled keeps its traceback.
        channel.send({"id": identity, **answer}, fds)

    def _find(self, name: str) -> Operation:
        try:
            return self._operations[name]
        except KeyError:
            raise ProtocolError(f"this worker has no operation {name}") from None
