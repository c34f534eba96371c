"""The public classes. Sizes and offsets are bytes; a failed driver call is a RuntimeError whose
``cuda_result`` is the driver's status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from . import _vmmref

_HANDLE_TYPES = {"none": 0, "posix_fd": 1, "win32": 2, "win32_kmt": 4, "fabric": 8}
_HANDLE_NAMES = {number: name for name, number in _HANDLE_TYPES.items()}
_LOCATIONS = {"device": 1, "host": 2, "host_numa": 3}
_ACCESS = {"none": 0, "r": 1, "rw": 3}
_UINT64_END = 1 << 64
_INT64_END = 1 << 63


def _lookup(table: dict[str, int], what: str, name: str) -> int:
    if name not in table:
        raise ValueError(f"unknown {what} {name!r}; use one of {', '.join(table)}")
    return table[name]


def _unsigned(what: str, value: int) -> int:
    if not 0 <= value < _UINT64_END:
        raise ValueError(f"{what} {value} is not in [0, 2**64)")
    return value


def _refuse_pickle(thing: object) -> NoReturn:
    raise TypeError(
        f"{type(thing).__name__} holds file descriptors, which plain pickle cannot carry; send it "
        "through multiprocessing (a Queue, a Pipe, Process arguments, or a Pool)"
    )


@dataclass(frozen=True)
class VirtualMemoryResourceOptions:
    """What a resource makes buffers of. ``handle_type`` is the one switch for sharing: None or
    "none" makes buffers that cannot be shared [RES-01]."""

    handle_type: str | None = "posix_fd"
    location_type: str = "device"
    self_access: str = "rw"
    peer_access: str = "rw"
    peers: tuple[int, ...] = ()

    def _native(self) -> _vmmref.Options:
        return _vmmref.Options(
            _lookup(_HANDLE_TYPES, "handle type", self.handle_type or "none"),
            _lookup(_LOCATIONS, "location type", self.location_type),
            _lookup(_ACCESS, "access", self.self_access),
            _lookup(_ACCESS, "access", self.peer_access),
            list(self.peers),
        )


class IPCAllocationHandle:
    """A shared owner of one exported file descriptor, which closes with its last holder, or for
    all of them with :meth:`close`."""

    def __init__(self, owned_fd: int) -> None:
        self._native = _vmmref.Handle(owned_fd)

    @classmethod
    def _wrap(cls, native: _vmmref.Handle) -> IPCAllocationHandle:
        self = cls.__new__(cls)
        self._native = native
        return self

    @property
    def fd(self) -> int:
        """The number, valid until the handle closes; a RuntimeError after that [DESC-09]."""
        return self._native.fd()

    def __int__(self) -> int:
        return self.fd

    def close(self) -> None:
        self._native.close()

    def __reduce__(self) -> NoReturn:
        _refuse_pickle(self)


class VirtualMemoryIPCBufferDescriptor:
    """One file descriptor for each allocation of a buffer, with sizes. It owns the file
    descriptors and pins the memory until it is closed or released; nothing else does [PIN-01]."""

    _native: _vmmref.Descriptor

    def __init__(self) -> None:
        raise TypeError("use VirtualMemoryBuffer.ipc_descriptor or from_fds()")

    @classmethod
    def _wrap(cls, native: _vmmref.Descriptor) -> VirtualMemoryIPCBufferDescriptor:
        self = cls.__new__(cls)
        self._native = native
        return self

    @classmethod
    def _from_parts(
        cls,
        handle_type: str,
        size: int,
        sizes: Iterable[int],
        handles: Iterable[IPCAllocationHandle],
    ) -> VirtualMemoryIPCBufferDescriptor:
        """As a peer described it, unchecked: the import validates every field [IMP-15]."""
        return cls._wrap(
            _vmmref.Descriptor(
                _lookup(_HANDLE_TYPES, "handle type", handle_type),
                _unsigned("size", size),
                [_unsigned("size", chunk) for chunk in sizes],
                [handle._native for handle in handles],
            )
        )

    @classmethod
    def from_fds(
        cls,
        fds: Iterable[int | IPCAllocationHandle],
        sizes: Iterable[int],
        *,
        handle_type: str = "posix_fd",
        size: int | None = None,
    ) -> VirtualMemoryIPCBufferDescriptor:
        """Rebuilds a descriptor from file descriptors that another transport brought.

        An ``int`` is duplicated and stays the caller's; an :class:`IPCAllocationHandle` is shared.
        Raises ValueError (counts, sizes, handle type), RuntimeError (a closed handle) or OSError
        (an int that is not an open fd, or no free number), and then leaves nothing open [RAW-11].
        """
        items: list[int | _vmmref.Handle] = []
        for item in fds:
            if isinstance(item, IPCAllocationHandle):
                items.append(item._native)
            elif isinstance(item, int):
                items.append(item if 0 <= item < 1 << 31 else -1)
            else:
                raise TypeError(f"{item!r} is neither an int nor an IPCAllocationHandle")
        chunks = list(sizes)
        if any(not -_INT64_END <= n < _INT64_END for n in [*chunks, size or 0]):
            raise ValueError("a size does not fit 64 bits")
        kind = _lookup(_HANDLE_TYPES, "handle type", handle_type)
        return cls._wrap(_vmmref.Descriptor.from_fds(items, chunks, kind, size))

    @property
    def handle_type(self) -> str:
        return _HANDLE_NAMES[self._native.handle_type]

    @property
    def size(self) -> int:
        """Bytes of the buffer: at most the sum of ``sizes`` [DESC-05]."""
        return self._native.size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each allocation, in address order."""
        return tuple(self._native.sizes)

    @property
    def handles(self) -> tuple[IPCAllocationHandle, ...]:
        """Shares of the descriptor's handles; a RuntimeError when it is closed."""
        return tuple(map(IPCAllocationHandle._wrap, self._native.handles()))

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptor's own numbers, valid while it lives [RAW-20]."""
        return tuple(self._native.fds())

    def close(self) -> None:
        """Lets go of the handles; may be repeated."""
        self._native.close()

    def __reduce__(self) -> NoReturn:
        _refuse_pickle(self)


class VirtualMemoryResource:
    """Makes, grows and imports buffers on one device. Pickles as (device, options) [RES-06]."""

    def __init__(
        self, device: int = 0, options: VirtualMemoryResourceOptions | None = None
    ) -> None:
        self._device = int(device)
        self._options = options or VirtualMemoryResourceOptions()
        self._native = _vmmref.Resource(self._device, self._options._native())

    @property
    def device(self) -> int:
        return self._device

    @property
    def options(self) -> VirtualMemoryResourceOptions:
        return self._options

    @property
    def is_ipc_enabled(self) -> bool:
        return self._native.is_ipc_enabled

    def allocate(self, size: int) -> VirtualMemoryBuffer:
        """A buffer of ``size`` bytes, rounded up to the granularity; size 0 costs no driver call."""
        return VirtualMemoryBuffer._wrap(self, self._native.allocate(_unsigned("size", size)))

    def modify_allocation(
        self,
        buffer: VirtualMemoryBuffer,
        size: int,
        config: VirtualMemoryResourceOptions | None = None,
    ) -> VirtualMemoryBuffer:
        """A new buffer of at least ``size`` bytes over the memory of ``buffer``, which stays as it
        is. ``config`` governs the new chunk only and must keep the handle type [RES-07, RES-08]."""
        if not isinstance(buffer, VirtualMemoryBuffer):
            raise TypeError(f"{type(buffer).__name__} is not a VirtualMemoryBuffer")
        native = config._native() if config else None
        grown = self._native.modify(buffer._native, _unsigned("size", size), native)
        return VirtualMemoryBuffer._wrap(self, grown)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._device, self._options)


class VirtualMemoryBuffer:
    """The first ``size`` bytes of a range of mapped allocations. Once closed, every use but
    :meth:`close` is a RuntimeError [ALLOC-08]."""

    _native: _vmmref.Buffer
    _resource: VirtualMemoryResource

    def __init__(self) -> None:
        raise TypeError("use VirtualMemoryResource.allocate() or from_ipc_descriptor()")

    @classmethod
    def _wrap(cls, resource: VirtualMemoryResource, native: _vmmref.Buffer) -> VirtualMemoryBuffer:
        self = cls.__new__(cls)
        self._resource = resource
        self._native = native
        return self

    @classmethod
    def from_ipc_descriptor(
        cls, resource: VirtualMemoryResource, descriptor: VirtualMemoryIPCBufferDescriptor
    ) -> VirtualMemoryBuffer:
        """Maps what ``descriptor`` describes, which is neither consumed nor kept [IMP-04]."""
        if not isinstance(descriptor, VirtualMemoryIPCBufferDescriptor):
            raise TypeError(
                f"{type(descriptor).__name__} is not a VirtualMemoryIPCBufferDescriptor"
            )
        return cls._wrap(resource, resource._native.import_(descriptor._native))

    @property
    def memory_resource(self) -> VirtualMemoryResource:
        return self._resource

    @property
    def pointer(self) -> int:
        """The device pointer; 0 for an empty buffer."""
        return self._native.pointer

    handle = pointer

    @property
    def size(self) -> int:
        return self._native.size

    @property
    def is_mapped(self) -> bool:
        """True for an imported buffer and what is grown from one."""
        return self._native.is_mapped

    @property
    def ipc_descriptor(self) -> VirtualMemoryIPCBufferDescriptor:
        """A new descriptor for each access, exported anew [DESC-01]; a RuntimeError for imported
        memory, before any driver call [PROV-03]."""
        return VirtualMemoryIPCBufferDescriptor._wrap(self._native.export_())

    def write(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copies ``data`` into the buffer; complete on return."""
        self._native.write(_unsigned("offset", offset), bytes(data))

    def read(self, size: int, offset: int = 0) -> bytes:
        """Copies ``size`` bytes out of the buffer."""
        return self._native.read(_unsigned("offset", offset), _unsigned("size", size))

    def close(self) -> None:
        """Gives up this buffer's share of the memory; may be repeated."""
        self._native.close()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> object:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the buffer is exported in place only")
        return self._native.dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._resource.device  # kDLCUDA

    def __reduce__(self) -> NoReturn:
        _refuse_pickle(self)
