"""Buffers, descriptors and errors within one process."""

from __future__ import annotations

import copy
import ctypes
import errno
import os
import pickle
import subprocess
import sys

import pytest
from vmmref import (
    IPCAllocationHandle,
    VirtualMemoryBuffer,
    VirtualMemoryIPCBufferDescriptor,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

Descriptor = VirtualMemoryIPCBufferDescriptor


class Special(VirtualMemoryResource):
    pass


def test_bytes_survive_a_grow_and_an_import(
    resource: VirtualMemoryResource, same_fds: None
) -> None:
    buffer = resource.allocate(1)
    buffer.write(b"bytes")
    grown = resource.modify_allocation(buffer, 2 * buffer.size)
    descriptor = grown.ipc_descriptor
    assert descriptor.sizes == (buffer.size, buffer.size)
    imported = VirtualMemoryBuffer.from_ipc_descriptor(resource, descriptor)
    assert imported.is_mapped and not grown.is_mapped
    assert imported.read(5) == b"bytes"
    imported.write(b"B", offset=imported.size - 1)
    assert grown.read(1, offset=grown.size - 1) == b"B"


def test_a_closed_buffer_is_an_error(resource: VirtualMemoryResource) -> None:
    buffer = resource.allocate(1)
    buffer.close()
    buffer.close()
    for use in (lambda: buffer.size, lambda: buffer.pointer, lambda: buffer.ipc_descriptor):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_imported_memory_is_not_exported_again(
    resource: VirtualMemoryResource, same_fds: None
) -> None:
    buffer = resource.allocate(1)
    imported = VirtualMemoryBuffer.from_ipc_descriptor(resource, buffer.ipc_descriptor)
    grown = resource.modify_allocation(imported, 2 * buffer.size)
    for refused in (imported, grown):
        with pytest.raises(RuntimeError, match="forward the descriptor.*copy"):
            _ = refused.ipc_descriptor


def test_errors_have_the_type_that_the_clauses_name(resource: VirtualMemoryResource) -> None:
    plain = VirtualMemoryResource(0, VirtualMemoryResourceOptions(handle_type=None))
    buffer = plain.allocate(1)
    with pytest.raises(RuntimeError):
        _ = buffer.ipc_descriptor
    with pytest.raises(TypeError):
        resource.modify_allocation(buffer, 1)
    with pytest.raises(ValueError):
        plain.modify_allocation(buffer, 1, VirtualMemoryResourceOptions())
    with pytest.raises(ValueError):
        resource.allocate(2**64 - 1)
    with pytest.raises(ValueError):
        VirtualMemoryResource(0, VirtualMemoryResourceOptions(location_type="host"))
    with pytest.raises(TypeError):
        VirtualMemoryBuffer.from_ipc_descriptor(resource, object())  # type: ignore[arg-type]
    read, write = os.pipe()
    with pytest.raises(RuntimeError, match="chunk 1 of 1") as caught:
        size = resource.allocate(1).size
        VirtualMemoryBuffer.from_ipc_descriptor(resource, Descriptor.from_fds([read], [size]))
    assert caught.value.cuda_result != 0  # type: ignore[attr-defined]
    os.close(read)
    os.close(write)


def test_from_fds_shares_handles_and_duplicates_integers(
    resource: VirtualMemoryResource, same_fds: None
) -> None:
    exported = resource.allocate(1).ipc_descriptor
    mine = os.dup(exported.fds[0])
    rebuilt = Descriptor.from_fds([mine], exported.sizes)
    os.close(mine)
    shared = Descriptor.from_fds(exported.handles, exported.sizes, size=10)
    assert shared.fds == exported.fds
    exported.close()
    assert VirtualMemoryBuffer.from_ipc_descriptor(resource, rebuilt).is_mapped
    assert VirtualMemoryBuffer.from_ipc_descriptor(resource, shared).size == 10
    for use in (lambda: exported.fds, lambda: exported.handles):
        with pytest.raises(RuntimeError):
            use()
    for fds in ([10**6], [-1], [2**40]):
        with pytest.raises(OSError) as caught:
            Descriptor.from_fds(fds, [1])
        assert caught.value.errno == errno.EBADF
    closed = shared.handles[0]
    closed.close()
    with pytest.raises(RuntimeError):
        int(closed)
    with pytest.raises(RuntimeError):
        Descriptor.from_fds([closed], [1])
    with pytest.raises(ValueError):
        VirtualMemoryBuffer.from_ipc_descriptor(resource, shared)


def test_plain_pickle_carries_resources_only(
    resource: VirtualMemoryResource, same_fds: None
) -> None:
    options = VirtualMemoryResourceOptions(self_access="r")
    special = pickle.loads(pickle.dumps(Special(0, options)))
    assert type(special) is Special and special.options == options
    buffer = resource.allocate(1)
    descriptor = buffer.ipc_descriptor
    for thing in (buffer, descriptor, descriptor.handles[0]):
        with pytest.raises(TypeError, match="multiprocessing"):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.copy(thing)


def test_dlpack_names_the_bytes_and_keeps_them(resource: VirtualMemoryResource) -> None:
    buffer = resource.allocate(1)
    pointer, size = buffer.pointer, buffer.size
    capsule = buffer.__dlpack__()
    buffer.close()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = get(capsule, b"dltensor")
    assert tensor is not None
    assert ctypes.c_uint64.from_address(tensor).value == pointer
    assert ctypes.c_int32.from_address(tensor + 8).value == 2
    shape = ctypes.c_uint64.from_address(tensor + 24).value
    assert ctypes.c_int64.from_address(shape).value == size


def test_objects_alive_at_exit_make_no_noise() -> None:
    code = (
        "from vmmref import *; r = VirtualMemoryResource(); b = r.allocate(1); "
        "d = b.ipc_descriptor; i = VirtualMemoryBuffer.from_ipc_descriptor(r, d); b.cycle = b"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_handle_owns_the_number_it_is_given() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    handle = IPCAllocationHandle(fd)
    assert handle.fd == int(handle) == fd
    handle.close()
    with pytest.raises(OSError):
        os.fstat(fd)
