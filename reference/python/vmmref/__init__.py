"""Virtual memory buffers that processes share: the Python face of the reference implementation."""

from . import _multiprocessing
from ._core import (
    IPCAllocationHandle,
    VirtualMemoryBuffer,
    VirtualMemoryIPCBufferDescriptor,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

_multiprocessing.register()

__all__ = [
    "IPCAllocationHandle",
    "VirtualMemoryBuffer",
    "VirtualMemoryIPCBufferDescriptor",
    "VirtualMemoryResource",
    "VirtualMemoryResourceOptions",
]
