"""Virtual memory buffers that processes share: the Python face of the reference implementation."""

from . import _multiprocessing
from ._core import (
    IPCAllocationHandle,
    VirtualMemoryBuffer,
    VirtualMemoryIPCBufferDescriptor,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

__version__ = "0.1.0"

_multiprocessing.register()

__all__ = [
    "IPCAllocationHandle",
    "VirtualMemoryBuffer",
    "VirtualMemoryIPCBufferDescriptor",
    "VirtualMemoryResource",
    "VirtualMemoryResourceOptions",
]
