"""Buffers and descriptors through multiprocessing."""

from __future__ import annotations

import gc
import multiprocessing as mp
import resource as resource_limits
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from conftest import open_fds
from vmmref import VirtualMemoryBuffer, VirtualMemoryIPCBufferDescriptor, VirtualMemoryResource

TIMEOUT = 60
METHODS = ["spawn", "forkserver"]


def bytes_of(thing: Any) -> bytes:
    if isinstance(thing, VirtualMemoryIPCBufferDescriptor):
        thing = VirtualMemoryBuffer.from_ipc_descriptor(VirtualMemoryResource(), thing)
    assert thing.is_mapped
    data: bytes = thing.read(5)
    return data


def report(connection: Any, *things: Any, **named: Any) -> None:
    connection.send([bytes_of(thing) for thing in (*things, *named.values())])


def echo(incoming: Any, outgoing: Any) -> None:
    while (thing := incoming.get()) is not None:
        outgoing.put(bytes_of(thing))


def receive_at_the_limit(incoming: Any, outgoing: Any) -> None:
    VirtualMemoryResource().allocate(1).read(1)
    limits = resource_limits.getrlimit(resource_limits.RLIMIT_NOFILE)
    low = (len(open_fds()) + 8, limits[1])
    resource_limits.setrlimit(resource_limits.RLIMIT_NOFILE, low)
    try:
        incoming.get()
    except (RuntimeError, OSError) as error:
        outgoing.put(type(error).__name__)
    resource_limits.setrlimit(resource_limits.RLIMIT_NOFILE, limits)
    outgoing.put(bytes_of(incoming.get()))


def reexport(thing: VirtualMemoryBuffer) -> VirtualMemoryBuffer:
    return thing


def use_inherited(connection: Any, buffer: VirtualMemoryBuffer) -> None:
    try:
        buffer.ipc_descriptor  # noqa: B018
    except RuntimeError as error:
        connection.send(str(error))
    buffer.close()
    connection.close()


def filled(resource: VirtualMemoryResource, chunks: int = 1) -> VirtualMemoryBuffer:
    buffer = resource.allocate(1)
    granule = buffer.size
    for n in range(2, chunks + 1):
        buffer = resource.modify_allocation(buffer, n * granule)
    buffer.write(b"bytes")
    return buffer


@pytest.mark.parametrize("method", METHODS)
def test_process_arguments(method: str, resource: VirtualMemoryResource) -> None:
    context: Any = mp.get_context(method)
    if method == "forkserver":  # its server stays, with fds of its own
        warm = context.Process(target=int)
        warm.start()
        warm.join(TIMEOUT)
        warm.close()
    buffer = filled(resource)
    before = open_fds()
    parent, child = context.Pipe()
    descriptor = buffer.ipc_descriptor
    twin = VirtualMemoryIPCBufferDescriptor.from_fds(descriptor.handles, descriptor.sizes)
    process = context.Process(
        target=report,
        args=(child, buffer, buffer, descriptor, descriptor, twin),
        kwargs={"again": buffer, "nested": descriptor},
    )
    process.start()
    assert parent.poll(TIMEOUT)
    assert parent.recv() == [b"bytes"] * 7
    process.join(TIMEOUT)
    assert process.exitcode == 0
    process.close()
    descriptor.close()
    for end in (parent, child):
        end.close()
    del process, twin
    gc.collect()
    assert open_fds() == before


@pytest.mark.parametrize("method", METHODS)
def test_many_allocations_as_an_argument(method: str, resource: VirtualMemoryResource) -> None:
    context: Any = mp.get_context(method)
    parent, child = context.Pipe()
    process = context.Process(target=report, args=(child, filled(resource, 300)))
    process.start()
    assert parent.poll(TIMEOUT)
    assert parent.recv() == [b"bytes"]
    process.join(TIMEOUT)


def test_queue_carries_buffers_and_descriptors_and_keeps_no_fd(
    resource: VirtualMemoryResource,
) -> None:
    context: Any = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=echo, args=(there, back))
    process.start()
    buffer = filled(resource)
    there.put(buffer)
    assert back.get(timeout=TIMEOUT) == b"bytes"
    before = open_fds()
    for _ in range(20):
        there.put(buffer)
        descriptor = buffer.ipc_descriptor
        there.put(descriptor)
        assert back.get(timeout=TIMEOUT) == b"bytes"
        assert back.get(timeout=TIMEOUT) == b"bytes"
        descriptor.close()
    there.put(filled(resource, 300))
    assert back.get(timeout=TIMEOUT) == b"bytes"
    assert open_fds() == before
    there.put(None)
    process.join(TIMEOUT)
    assert process.exitcode == 0


def test_a_receiver_at_its_fd_limit_gets_an_error_and_the_next_item(
    resource: VirtualMemoryResource,
) -> None:
    context: Any = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=receive_at_the_limit, args=(there, back))
    process.start()
    there.put("warm")
    there.put(filled(resource))
    assert back.get(timeout=TIMEOUT) == b"bytes"
    process.join(TIMEOUT)
    process = context.Process(target=receive_at_the_limit, args=(there, back))
    process.start()
    before = open_fds()
    there.put(filled(resource, 60))
    assert back.get(timeout=TIMEOUT) in ("RuntimeError", "OSError")
    there.put(filled(resource))
    assert back.get(timeout=TIMEOUT) == b"bytes"
    assert open_fds() == before
    process.join(TIMEOUT)


def test_the_refusal_reaches_whom_it_should(resource: VirtualMemoryResource) -> None:
    context: Any = mp.get_context("spawn")
    buffer = filled(resource)
    imported = VirtualMemoryBuffer.from_ipc_descriptor(resource, buffer.ipc_descriptor)
    parent, child = context.Pipe()
    with pytest.raises(RuntimeError, match="imported"):
        parent.send(imported)
    parent.send(1)
    assert child.recv() == 1
    before = open_fds()
    with pytest.raises(RuntimeError, match="imported"):
        context.Process(target=report, args=(child, buffer, imported)).start()
    assert not mp.active_children()
    assert open_fds() == before
    with pytest.raises(RuntimeError, match="imported"):
        ForkingPickler.dumps(imported)


def test_the_feeder_reports_the_refusal_and_goes_on(
    resource: VirtualMemoryResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = mp.get_context("spawn")
    seen: list[BaseException] = []
    monkeypatch.setattr(
        Queue, "_on_queue_feeder_error", staticmethod(lambda error, _item: seen.append(error))
    )
    buffer = filled(resource)
    imported = VirtualMemoryBuffer.from_ipc_descriptor(resource, buffer.ipc_descriptor)
    queue = context.Queue(1)
    queue.put(imported)
    queue.put("next", timeout=TIMEOUT)
    assert queue.get(timeout=TIMEOUT) == "next"
    assert [type(error) for error in seen] == [RuntimeError]


def test_pool_carries_arguments_and_reports_results_that_are_refused(
    resource: VirtualMemoryResource,
) -> None:
    context: Any = mp.get_context("spawn")
    buffer = filled(resource)
    imported = VirtualMemoryBuffer.from_ipc_descriptor(resource, buffer.ipc_descriptor)
    with context.Pool(1) as pool:
        assert pool.apply_async(bytes_of, (buffer,)).get(TIMEOUT) == b"bytes"
        with pytest.raises(Exception, match="imported"):
            pool.apply_async(reexport, (buffer,)).get(TIMEOUT)
        with pytest.raises(RuntimeError, match="imported"):
            pool.apply_async(bytes_of, (imported,)).get(TIMEOUT)
        assert pool.apply_async(bytes_of, (buffer.ipc_descriptor,)).get(TIMEOUT) == b"bytes"


def test_a_forked_child_gets_a_clear_error_and_does_no_harm(
    resource: VirtualMemoryResource,
) -> None:
    context: Any = mp.get_context("fork")
    buffer = filled(resource)
    parent, child = context.Pipe()
    process = context.Process(target=use_inherited, args=(child, buffer))
    process.start()
    assert parent.poll(TIMEOUT)
    assert "spawn or forkserver" in parent.recv()
    process.join(TIMEOUT)
    assert process.exitcode == 0
    assert buffer.read(5) == b"bytes"
