"""Wrong Python implementations: the reference adapter with one thing broken.

Each is loaded as ``mutants.python_mutants:Class`` in every worker process, children included, and
replaces what multiprocessing pickles buffers, descriptors and handles with when it is made.
mutants.toml says which clause each one breaks; the first line of a docstring says how.
"""

from __future__ import annotations

import atexit
import copyreg
import itertools
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import resource_sharer
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd, ForkingPickler, recv_handle
from typing import Any

import vmmref
from vmmcts.adapters.implementation import Options
from vmmcts.adapters.vmmref import Adapter
from vmmref import _multiprocessing as reference

_IMPORTER_PID = os.getpid()
_kept: list[Any] = []  # what a mutant never lets go of

Buffer = vmmref.VirtualMemoryBuffer
Descriptor = vmmref.VirtualMemoryIPCBufferDescriptor
Handle = vmmref.IPCAllocationHandle
Reduced = tuple[Any, ...]


def _in_feeder() -> bool:
    return threading.current_thread().name.startswith("QueueFeederThread")


def _in_caller() -> bool:
    return threading.current_thread() is threading.main_thread() and get_spawning_popen() is None


def _in_pool_handler() -> bool:
    return not _in_feeder() and threading.current_thread() is not threading.main_thread()


def _is_refusal(error: RuntimeError) -> bool:
    return "imported" in str(error)


def _own_copy(buffer: Any) -> Any:
    """A buffer of this process with the same bytes."""
    copy = buffer.memory_resource.allocate(buffer.size)
    Adapter.write(_adapter(), copy, 0, Adapter.read(_adapter(), buffer, 0, buffer.size))
    return copy


def _adapter() -> Adapter:
    return Adapter.__new__(Adapter)


def _none(*_: Any) -> None:
    """What arrives when an item was lost."""


def _own(fd: Any) -> Any:
    """The handle of an fd that arrived by itself."""
    return Handle(fd.detach())


def _one_by_one(descriptor: Any) -> Reduced:
    """A descriptor whose handles are pickled one by one."""
    return Descriptor._from_parts, (
        descriptor.handle_type,
        descriptor.size,
        descriptor.sizes,
        list(descriptor.handles),
    )


class Mutant(Adapter):
    """The reference; subclasses override a reduction."""

    def __init__(self) -> None:
        super().__init__()
        ForkingPickler.register(Buffer, self.reduce_buffer)
        ForkingPickler.register(Descriptor, self.reduce_descriptor)
        ForkingPickler.register(Handle, self.reduce_handle)

    def reduce_buffer(self, buffer: Any) -> Reduced:
        """As the reference."""
        return reference._reduce_buffer(buffer)

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        """As the reference."""
        return reference._reduce_descriptor(descriptor)

    def reduce_handle(self, handle: Any) -> Reduced:
        """As the reference."""
        return reference._reduce_handle(handle)


# Resources.


class _ForgetfulResource(vmmref.VirtualMemoryResource):
    def __reduce__(self) -> Reduced:
        return type(self), (self.device,)


class ResourceForgetsOptions(Mutant):
    """A resource pickles without its options."""

    def make_resource(self, options: Options) -> Any:
        return _ForgetfulResource(options.device, self._options(options))


class _PlainOnArrival(vmmref.VirtualMemoryResource):
    def __reduce__(self) -> Reduced:
        return vmmref.VirtualMemoryResource, (self.device, self.options)


class SubclassForgotten(Mutant):
    """A subclass of the resource comes back as the resource."""

    def make_subclassed_resource(self, options: Options) -> Any:
        return _PlainOnArrival(options.device, self._options(options))


# Delivery.


def _import_copy(resource: Any, descriptor: Any) -> Any:
    count = len(descriptor.sizes)
    imported = reference._import_buffer(resource, descriptor)
    return _own_copy(imported) if count > 1 else imported


class ArrivesAsCopy(Mutant):
    """A buffer of several allocations arrives as a copy."""

    def reduce_buffer(self, buffer: Any) -> Reduced:
        return _import_copy, (buffer.memory_resource, buffer.ipc_descriptor)


class DescriptorArrivesShort(Mutant):
    """A descriptor of several allocations arrives with the first alone."""

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        sizes, handles = descriptor.sizes[:1], descriptor.handles[:1]
        size = min(descriptor.size, sum(sizes))
        return Descriptor._from_parts, (descriptor.handle_type, size, sizes, list(handles))


class PlainPickleAllowed(Mutant):
    """Plain pickle takes a descriptor and carries its numbers."""

    def __init__(self) -> None:
        super().__init__()
        copyreg.pickle(Descriptor, self._take)

    @staticmethod
    def _take(descriptor: Any) -> Any:
        return tuple, (descriptor.fds,)


class PlainPickleLeaks(Mutant):
    """The refusal of plain pickle comes after the fds were duplicated."""

    def __init__(self) -> None:
        super().__init__()
        copyreg.pickle(Descriptor, self._refuse)

    @staticmethod
    def _refuse(descriptor: Any) -> Any:
        _kept.extend(os.dup(fd) for fd in descriptor.fds)
        raise TypeError("a descriptor cannot be pickled")


class CachedInReduce(Mutant):
    """A buffer keeps the descriptor that it was sent with."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def reduce_buffer(self, buffer: Any) -> Reduced:
        kept = self._cache.setdefault(buffer, buffer.ipc_descriptor)
        return reference._import_buffer, (buffer.memory_resource, kept)


class TransientNotHeld(Mutant):
    """The Popen does not hold the duplicates: they are closed before the child is spawned."""

    def reduce_handle(self, handle: Any) -> Reduced:
        if get_spawning_popen() is None:
            return super().reduce_handle(handle)
        return _own, (DupFd(handle._native.duplicate().fd()),)


class TransientHeldForGood(Mutant):
    """The duplicates for a child outlive the Process object."""

    def reduce_handle(self, handle: Any) -> Reduced:
        reduced = super().reduce_handle(handle)
        popen = get_spawning_popen()
        if popen is not None:
            _kept.append(popen.__dict__.pop("_vmmref_kept", None))
        return reduced


class NumberPassedTwice(Mutant):
    """A descriptor in Process arguments has its first number passed twice."""

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        reduced = super().reduce_descriptor(descriptor)
        if get_spawning_popen() is not None and descriptor.fds:
            for _ in range(2):
                DupFd(descriptor.fds[0])
        return reduced


class ChildGetsStrangersFd(Mutant):
    """The first fd of every argument of a Process is that of the first argument."""

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        popen: Any = get_spawning_popen()
        if popen is None:
            return super().reduce_descriptor(descriptor)
        first = popen.__dict__.setdefault("_mutant_first", descriptor.handles[0])
        handles = [first, *descriptor.handles[1:]]
        return Descriptor._from_parts, (
            descriptor.handle_type,
            descriptor.size,
            descriptor.sizes,
            handles,
        )


class SpawnOnly(Mutant):
    """Process arguments by forkserver are refused."""

    def reduce_handle(self, handle: Any) -> Reduced:
        if getattr(get_spawning_popen(), "method", "") == "forkserver":
            raise ValueError("use the start method spawn")
        return super().reduce_handle(handle)


# Refusals.


class _Forgets(Mutant):
    where: Callable[[], bool]

    def reduce_buffer(self, buffer: Any) -> Reduced:
        try:
            return super().reduce_buffer(buffer)
        except RuntimeError as error:
            if not _is_refusal(error) or not type(self).where():
                raise
        return super().reduce_buffer(_own_copy(buffer))


class PipeForgetsMark(_Forgets):
    """A Pipe carries an imported buffer as a copy."""

    where = staticmethod(_in_caller)


class ProcessForgetsMark(_Forgets):
    """Process arguments carry an imported buffer as a copy."""

    where = staticmethod(lambda: get_spawning_popen() is not None)


class QueueForgetsMark(_Forgets):
    """A Queue carries an imported buffer as a copy."""

    where = staticmethod(_in_feeder)


class PoolForgetsMark(_Forgets):
    """A Pool takes an imported buffer as a copy."""

    where = staticmethod(_in_pool_handler)


class _Loses(Mutant):
    where: Callable[[], bool]

    def reduce_buffer(self, buffer: Any) -> Reduced:
        try:
            return super().reduce_buffer(buffer)
        except RuntimeError:
            if not type(self).where():
                raise
        return _none, ()


class FeederLosesError(_Loses):
    """What a Queue's feeder cannot pickle arrives as None instead of being reported."""

    where = staticmethod(_in_feeder)


class PoolLosesResult(_Loses):
    """A result that a pool's process cannot send arrives as None."""

    where = staticmethod(lambda: multiprocessing.parent_process() is not None and _in_caller())


class RefusedSendLeaks(Mutant):
    """A refused send leaves an fd."""

    def reduce_buffer(self, buffer: Any) -> Reduced:
        try:
            return super().reduce_buffer(buffer)
        except RuntimeError:
            if _in_caller():
                _kept.append(os.open(os.devnull, os.O_RDONLY))
            raise


class RefusedStartLeaks(Mutant):
    """A refused start keeps the duplicates for the arguments before it."""

    def reduce_buffer(self, buffer: Any) -> Reduced:
        try:
            return super().reduce_buffer(buffer)
        except RuntimeError:
            popen = get_spawning_popen()
            if popen is not None:
                _kept.append(popen.__dict__.get("_vmmref_kept"))
            raise


def _raise_on_arrival(message: str) -> None:
    raise RuntimeError(message)


class RefusalOnArrival(Mutant):
    """The refusal of ForkingPickler in the caller's thread is raised where the item arrives."""

    def reduce_buffer(self, buffer: Any) -> Reduced:
        try:
            return super().reduce_buffer(buffer)
        except RuntimeError as error:
            if not _in_caller():
                raise
            return _raise_on_arrival, (str(error),)


# Rough weather.


class _SharesOriginal:
    """What resource_sharer.DupFd is, without the duplicate."""

    def __init__(self, fd: int) -> None:
        self._id = resource_sharer._resource_sharer.register(  # type: ignore[attr-defined]
            lambda connection, pid: _send(connection, fd, pid), _none
        )

    def detach(self) -> int:
        with resource_sharer._resource_sharer.get_connection(  # type: ignore[attr-defined]
            self._id
        ) as connection:
            return multiprocessing.reduction.recv_handle(connection)


def _send(connection: Any, fd: int, pid: int) -> None:
    multiprocessing.reduction.send_handle(connection, fd, pid)


class ParksWithoutDuplicate(Mutant):
    """A descriptor in a Queue is parked under its own number, which its owner may close."""

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        return _one_by_one(descriptor) if _in_feeder() else super().reduce_descriptor(descriptor)

    def reduce_handle(self, handle: Any) -> Reduced:
        if not _in_feeder():
            return super().reduce_handle(handle)
        return _own, (_SharesOriginal(handle.fd),)


class ParksForGood(Mutant):
    """The sender keeps what it parked in a Queue after it was received."""

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        if _in_feeder():
            _kept.extend(os.dup(fd) for fd in descriptor.fds)
        return super().reduce_descriptor(descriptor)


class ClosedArrivesAsZeros(Mutant):
    """A buffer that closed before the feeder came to it arrives as zeros."""

    def reduce_buffer(self, buffer: Any) -> Reduced:
        if not _in_feeder():
            return super().reduce_buffer(buffer)
        size = buffer.size
        time.sleep(0.005)  # let the owner close it
        try:
            return super().reduce_buffer(buffer)
        except RuntimeError as error:
            if _is_refusal(error):
                raise
            blank = buffer.memory_resource.allocate(size)
            Adapter.write(_adapter(), blank, 0, bytes(size))
            return super().reduce_buffer(blank)


class ResidueGrows(Mutant):
    """Each descriptor that is put leaves more fds than the one before."""

    _count = itertools.count(1)

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        if _in_feeder():
            for _ in range(8 * next(self._count)):
                _kept.append(os.open(os.devnull, os.O_RDONLY))
        return super().reduce_descriptor(descriptor)


def _own_or_none(fd: Any) -> Any:
    try:
        return _own(fd)
    except OSError:
        return None


def _from_what_arrived(kind: str, sizes: Any, handles: list[Any]) -> Any:
    arrived = [(size, handle) for size, handle in zip(sizes, handles, strict=True) if handle]
    size = sum(size for size, _ in arrived)
    return Descriptor._from_parts(
        kind, size, [size for size, _ in arrived], [handle for _, handle in arrived]
    )


class PartialAtLimit(Mutant):
    """A receiver at its fd limit gets a buffer of the fds for which it had room."""

    def reduce_descriptor(self, descriptor: Any) -> Reduced:
        if not _in_feeder():
            return super().reduce_descriptor(descriptor)
        handles = list(descriptor.handles)
        return _from_what_arrived, (descriptor.handle_type, descriptor.sizes, handles)

    def reduce_handle(self, handle: Any) -> Reduced:
        if not _in_feeder():
            return super().reduce_handle(handle)
        return _own_or_none, (resource_sharer.DupFd(handle.fd),)


class ForkErrorUnclear(Mutant):
    """After fork the error does not say what is wrong."""

    def allocate(self, resource: Any, size: int) -> Any:
        try:
            return super().allocate(resource, size)
        except RuntimeError:
            if os.getpid() == _IMPORTER_PID:
                raise
        raise RuntimeError("the allocation failed")


class SendsCreep(Mutant):
    """Every 40th send leaves an fd."""

    _count = itertools.count(1)

    def reduce_buffer(self, buffer: Any) -> Reduced:
        if next(self._count) % 40 == 0:
            _kept.append(os.open(os.devnull, os.O_RDONLY))
        return super().reduce_buffer(buffer)


class OneSenderAtATime(Mutant):
    """Refuses to pickle while another thread does."""

    _inside = threading.Lock()

    def reduce_buffer(self, buffer: Any) -> Reduced:
        if not self._inside.acquire(blocking=False):
            raise RuntimeError("another thread is sending")
        try:
            time.sleep(0.002)
            return super().reduce_buffer(buffer)
        finally:
            self._inside.release()


class ExecutorRefused(Mutant):
    """Buffers do not travel to a ProcessPoolExecutor."""

    def reduce_buffer(self, buffer: Any) -> Reduced:
        threads = {type(thread).__name__ for thread in threading.enumerate()}
        if "_ExecutorManagerThread" in threads and _in_feeder():
            raise RuntimeError("use a Pool")
        return super().reduce_buffer(buffer)


class InterpreterNoise(Mutant):
    """The interpreter complains at exit about descriptors that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self._live: weakref.WeakSet[Any] = weakref.WeakSet()
        atexit.register(self._complain)

    def export(self, buffer: Any) -> Any:
        descriptor = super().export(buffer)
        self._live.add(descriptor)
        return descriptor

    def _complain(self) -> None:
        if len(self._live) > 0:
            print("descriptors are alive at exit", file=sys.stderr)


def _producer_of_device_1(self: Any) -> tuple[int, int]:
    return 2, 1


class DlpackOfAnotherDevice(Mutant):
    """The DLPack protocol names another device."""

    def __init__(self) -> None:
        super().__init__()
        Buffer.__dlpack_device__ = _producer_of_device_1  # type: ignore[method-assign]


class ImportsLookAlikes(Mutant):
    """Imports whatever has the attributes of a descriptor."""

    def import_buffer(self, resource: Any, descriptor: Any) -> Any:
        if not isinstance(descriptor, Descriptor) and hasattr(descriptor, "handles"):
            descriptor = Descriptor.from_fds(
                descriptor.handles, descriptor.sizes, size=descriptor.size
            )
        return super().import_buffer(resource, descriptor)


def _fetch_with_recv_handle(self: Any) -> list[Any]:
    with reference._sharer.get_connection(self._key) as connection:
        return [Handle(recv_handle(connection)) for _ in range(self._count)]


class FetchLosesFd(Mutant):
    """A receiver loses the fd after which its end of the connection fails to close."""

    def __init__(self) -> None:
        super().__init__()
        reference._Batch.fetch = _fetch_with_recv_handle  # type: ignore[method-assign]


REGISTRY: dict[str, type[Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        ArrivesAsCopy,
        CachedInReduce,
        ChildGetsStrangersFd,
        ClosedArrivesAsZeros,
        DescriptorArrivesShort,
        DlpackOfAnotherDevice,
        ExecutorRefused,
        FeederLosesError,
        FetchLosesFd,
        ForkErrorUnclear,
        ImportsLookAlikes,
        InterpreterNoise,
        NumberPassedTwice,
        OneSenderAtATime,
        ParksForGood,
        ParksWithoutDuplicate,
        PartialAtLimit,
        PipeForgetsMark,
        PlainPickleAllowed,
        PlainPickleLeaks,
        PoolForgetsMark,
        PoolLosesResult,
        ProcessForgetsMark,
        QueueForgetsMark,
        RefusalOnArrival,
        RefusedSendLeaks,
        RefusedStartLeaks,
        ResidueGrows,
        ResourceForgetsOptions,
        SendsCreep,
        SpawnOnly,
        SubclassForgotten,
        TransientHeldForGood,
        TransientNotHeld,
    )
}
