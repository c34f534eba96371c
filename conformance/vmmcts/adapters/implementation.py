"""The class to subclass to have a Python implementation tested (see ADAPTERS.md)."""

from __future__ import annotations

import abc
import dataclasses
import types
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """What a resource is made of, in the words of PROTOCOL.md."""

    device: int = 0
    handle_type: str = "posix_fd"
    location_type: str = "device"
    self_access: str = "rw"
    peer_access: str = "rw"
    peers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class BufferInfo:
    """A buffer as the coordinator is told of it; sizes in bytes."""

    pointer: int
    size: int
    is_mapped: bool


@dataclasses.dataclass(frozen=True)
class DescriptorInfo:
    """A descriptor as the coordinator is told of it; ``fds`` are numbers in this process."""

    handle_type: str
    size: int
    sizes: tuple[int, ...]
    fds: tuple[int, ...]


class Implementation(abc.ABC):
    """An implementation under test.

    The objects that the methods make and take are the implementation's own; vmmcts holds them and
    sends them through multiprocessing, and asks this class for everything else. Exceptions pass
    through: RuntimeError, ValueError, TypeError and OSError are what the clauses speak of. The
    bodies given here serve an implementation with the names of the source document.
    """

    #: Short name, for reports.
    name: str
    version: str
    #: Of "core", "rawfd", "python"; what is named here is tested.
    profiles: tuple[str, ...]

    @abc.abstractmethod
    def make_resource(self, options: Options) -> Any:
        """Make a VirtualMemoryResource."""

    @abc.abstractmethod
    def modify(self, resource: Any, buffer: Any, size: int, config: Options | None) -> Any:
        """Return a new buffer of at least ``size`` bytes over the memory of ``buffer``."""

    @abc.abstractmethod
    def write(self, buffer: Any, offset: int, data: bytes) -> None:
        """Copy host bytes into the buffer; complete on return."""

    @abc.abstractmethod
    def read(self, buffer: Any, offset: int, size: int) -> bytes:
        """Copy bytes of the buffer to the host."""

    @abc.abstractmethod
    def import_buffer(self, resource: Any, descriptor: Any) -> Any:
        """Import a descriptor; neither consumes nor keeps it."""

    @abc.abstractmethod
    def from_fds(
        self, fds: Sequence[Any], sizes: Sequence[int], handle_type: str | None, size: int | None
    ) -> Any:
        """Rebuild a descriptor from integers and handles; None leaves a default alone."""

    @abc.abstractmethod
    def is_buffer(self, thing: Any) -> bool:
        """Whether an object that arrived from another process is a buffer."""

    def make_subclassed_resource(self, options: Options) -> Any:
        """Make a resource of an importable subclass, for RES-11."""
        raise NotImplementedError

    def describe_resource(self, resource: Any) -> dict[str, Any]:
        """What a resource is and its options, for comparing a copy with the original."""
        return {"type": type(resource).__qualname__, "options": repr(resource.options)}

    def is_ipc_enabled(self, resource: Any) -> bool:
        """Whether buffers of the resource can be shared."""
        return bool(resource.is_ipc_enabled)

    def allocate(self, resource: Any, size: int) -> Any:
        """Allocate a buffer of at least ``size`` bytes."""
        return resource.allocate(size)

    def buffer_info(self, buffer: Any) -> BufferInfo:
        """Describe a buffer."""
        return BufferInfo(int(buffer.handle), buffer.size, buffer.is_mapped)

    def export(self, buffer: Any) -> Any:
        """Export the buffer; every call makes a new descriptor."""
        return buffer.ipc_descriptor

    def descriptor_info(self, descriptor: Any) -> DescriptorInfo:
        """Describe a descriptor."""
        return DescriptorInfo(
            str(descriptor.handle_type),
            descriptor.size,
            tuple(descriptor.sizes),
            tuple(descriptor.fds),
        )

    def foreign_descriptors(self, descriptor: Any) -> dict[str, Any]:
        """Return things that are not a descriptor of this kind, by name, for RES-09.

        Extend it by the descriptors that the package makes for other memory, a pool's above all.
        """
        fields = ("handle_type", "size", "sizes", "handles", "fds")
        return {
            "look-alike": types.SimpleNamespace(
                **{field: getattr(descriptor, field) for field in fields}
            ),
            "payload of a pool": b"\0" * 64,
            "fd": self.descriptor_info(descriptor).fds[0],
        }

    def handle(self, descriptor: Any, index: int) -> Any:
        """Return the IPCAllocationHandle of one allocation."""
        return descriptor.handles[index]

    def handle_fd(self, handle: Any) -> int:
        """Return the fd that a handle owns."""
        return int(handle)

    def close(self, thing: Any) -> None:
        """Close a buffer, a descriptor or a handle."""
        thing.close()
