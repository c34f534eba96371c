"""Pickling for multiprocessing only: ForkingPickler finds these reductions, plain pickle finds
``__reduce__``, which refuses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from multiprocessing import resource_sharer
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd, ForkingPickler, recvfds, send_handle
from typing import Any

from ._core import (
    IPCAllocationHandle,
    VirtualMemoryBuffer,
    VirtualMemoryIPCBufferDescriptor,
    VirtualMemoryResource,
)

# A forkserver takes 251 fds with one request: a descriptor with more than this sends a batch.
_MAX_FORKSERVER_FDS = 64

_Reduced = tuple[Any, tuple[Any, ...]]
_sharer: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]


class _Batch:
    """Duplicates of the fds of some handles, parked for one receiver, who fetches all of them over
    one connection. Once it has connected they are closed here, also when it could not take them
    all [MP-15]. Each fd is a message of its own, so that none can arrive in part."""

    def __init__(self, handles: Sequence[IPCAllocationHandle]) -> None:
        copies = [handle._native.duplicate() for handle in handles]

        def send(connection: Any, receiver: int) -> None:
            with contextlib.suppress(ConnectionError):  # the receiver reports what went wrong
                for copy in copies:
                    send_handle(connection, copy.fd(), receiver)

        def close() -> None:
            for copy in copies:
                copy.close()

        self._count = len(copies)
        self._key = _sharer.register(send, close)

    def fetch(self) -> list[IPCAllocationHandle]:
        # recv_handle would lose the fd that it received when its own end fails to close.
        with (
            _sharer.get_connection(self._key) as connection,
            socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end,
        ):
            return [IPCAllocationHandle(recvfds(end, 1)[0]) for _ in range(self._count)]


def _fetch_one(batch: _Batch) -> IPCAllocationHandle:
    return batch.fetch()[0]


def _inherited(fd: Any) -> IPCAllocationHandle:
    return IPCAllocationHandle(fd.detach())


def _reduce_handle(handle: IPCAllocationHandle) -> _Reduced:
    """A Queue, Pipe or Pool duplicates the fd now. A Process that is being spawned only notes its
    number and inherits it later: it gets a duplicate of its own, so that no number is passed twice
    [MP-06] or reused before the spawn [MP-07], which lives on the Popen, and so until the Process
    object is released [MP-05]."""
    popen = get_spawning_popen()
    if popen is None:
        return _fetch_one, (_Batch([handle]),)
    copy = handle._native.duplicate()
    popen.__dict__.setdefault("_vmmref_kept", []).append(copy)
    return _inherited, (DupFd(copy.fd()),)


def _reduce_descriptor(descriptor: VirtualMemoryIPCBufferDescriptor) -> _Reduced:
    popen = get_spawning_popen()
    handles = descriptor.handles
    inherit = popen is not None and (
        getattr(popen, "method", "") != "forkserver" or len(handles) <= _MAX_FORKSERVER_FDS
    )
    carried = handles if inherit or not handles else _Batch(handles)
    return _rebuild_descriptor, (
        descriptor.handle_type,
        descriptor.size,
        descriptor.sizes,
        carried,
    )


def _rebuild_descriptor(
    handle_type: str,
    size: int,
    sizes: tuple[int, ...],
    carried: _Batch | tuple[IPCAllocationHandle, ...],
) -> VirtualMemoryIPCBufferDescriptor:
    handles = carried.fetch() if isinstance(carried, _Batch) else carried
    return VirtualMemoryIPCBufferDescriptor._from_parts(handle_type, size, sizes, handles)


def _reduce_buffer(buffer: VirtualMemoryBuffer) -> _Reduced:
    """Exports anew: the descriptor is gone when the pickle is made [MP-04]."""
    return _import_buffer, (buffer.memory_resource, buffer.ipc_descriptor)


def _import_buffer(
    resource: VirtualMemoryResource, descriptor: VirtualMemoryIPCBufferDescriptor
) -> VirtualMemoryBuffer:
    try:
        return VirtualMemoryBuffer.from_ipc_descriptor(resource, descriptor)
    finally:
        descriptor.close()


def register() -> None:
    ForkingPickler.register(IPCAllocationHandle, _reduce_handle)
    ForkingPickler.register(VirtualMemoryIPCBufferDescriptor, _reduce_descriptor)
    ForkingPickler.register(VirtualMemoryBuffer, _reduce_buffer)
