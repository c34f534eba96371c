"""Pickling for multiprocessing only: ForkingPickler finds these reductions, plain pickle finds
``__reduce__``, which refuses."""

from __future__ import annotations

from multiprocessing import resource_sharer
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

from ._core import (
    IPCAllocationHandle,
    VirtualMemoryBuffer,
    VirtualMemoryIPCBufferDescriptor,
    VirtualMemoryResource,
)

# A forkserver takes 251 fds with one request; a descriptor with more than this leaves them to the
# resource sharer, which fetches one at a time and has no limit.
_MAX_FORKSERVER_FDS = 64

_Reduced = tuple[Any, tuple[Any, ...]]


def _reduce_handle(handle: IPCAllocationHandle, many: bool = False) -> _Reduced:
    """A Queue, Pipe or Pool duplicates the fd now. A Process that is being spawned only notes its
    number and inherits it later: it gets a duplicate of its own, so that no number is passed twice
    [MP-06] or reused before the spawn [MP-07], which lives on the Popen, and so until the Process
    object is released [MP-05]."""
    popen = get_spawning_popen()
    copy = handle._native.duplicate()
    if popen is None or (many and getattr(popen, "method", "") == "forkserver"):
        return _rebuild_handle, (resource_sharer.DupFd(copy.fd()),)
    kept: list[Any] = popen.__dict__.setdefault("_vmmref_kept", [])
    kept.append(copy)
    return _rebuild_handle, (DupFd(copy.fd()),)


def _rebuild_handle(fd: Any) -> IPCAllocationHandle:
    return IPCAllocationHandle(fd.detach())


class _Many:
    """Handles of a descriptor that has too many of them for one forkserver request."""

    def __init__(self, handle: IPCAllocationHandle) -> None:
        self.handle = handle


def _reduce_many(item: _Many) -> _Reduced:
    return _reduce_handle(item.handle, many=True)


def _reduce_descriptor(descriptor: VirtualMemoryIPCBufferDescriptor) -> _Reduced:
    handles: list[Any] = list(descriptor.handles)
    if len(handles) > _MAX_FORKSERVER_FDS:
        handles = [_Many(handle) for handle in handles]
    return VirtualMemoryIPCBufferDescriptor._from_parts, (
        descriptor.handle_type,
        descriptor.size,
        descriptor.sizes,
        handles,
    )


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
    ForkingPickler.register(_Many, _reduce_many)
    ForkingPickler.register(VirtualMemoryIPCBufferDescriptor, _reduce_descriptor)
    ForkingPickler.register(VirtualMemoryBuffer, _reduce_buffer)
