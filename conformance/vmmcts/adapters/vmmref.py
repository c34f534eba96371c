"""The reference implementation's Python face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import vmmref
from vmmcts.adapters.implementation import Implementation, Options


class SubclassedResource(vmmref.VirtualMemoryResource):
    """A user's subclass."""


class Adapter(Implementation):
    """The package ``vmmref``."""

    name = "reference"
    version = vmmref.__version__
    profiles = ("core", "rawfd", "python")

    def make_resource(self, options: Options) -> Any:
        return vmmref.VirtualMemoryResource(options.device, self._options(options))

    def make_subclassed_resource(self, options: Options) -> Any:
        return SubclassedResource(options.device, self._options(options))

    def modify(self, resource: Any, buffer: Any, size: int, config: Options | None) -> Any:
        return resource.modify_allocation(
            buffer, size, None if config is None else self._options(config)
        )

    def write(self, buffer: Any, offset: int, data: bytes) -> None:
        buffer.write(data, offset)

    def read(self, buffer: Any, offset: int, size: int) -> bytes:
        return bytes(buffer.read(size, offset))

    def import_buffer(self, resource: Any, descriptor: Any) -> Any:
        return vmmref.VirtualMemoryBuffer.from_ipc_descriptor(resource, descriptor)

    def from_fds(
        self, fds: Sequence[Any], sizes: Sequence[int], handle_type: str | None, size: int | None
    ) -> Any:
        more: dict[str, Any] = {}
        if handle_type is not None:
            more["handle_type"] = handle_type
        if size is not None:
            more["size"] = size
        return vmmref.VirtualMemoryIPCBufferDescriptor.from_fds(fds, sizes, **more)

    def is_buffer(self, thing: Any) -> bool:
        return isinstance(thing, vmmref.VirtualMemoryBuffer)

    @staticmethod
    def _options(options: Options) -> vmmref.VirtualMemoryResourceOptions:
        return vmmref.VirtualMemoryResourceOptions(
            handle_type=None if options.handle_type == "none" else options.handle_type,
            location_type=options.location_type,
            self_access=options.self_access,
            peer_access=options.peer_access,
            peers=options.peers,
        )
