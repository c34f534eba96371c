"""Fixtures: a private device directory, and the fd set before and after."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest

os.environ.setdefault("SOFTCUDA_DIR", tempfile.mkdtemp(prefix="vmmref-"))

from vmmref import VirtualMemoryResource


def open_fds() -> dict[int, str]:
    """The fd set: each number and what it refers to."""
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the directory's own fd
            pass
    return found


@pytest.fixture
def resource() -> VirtualMemoryResource:
    made = VirtualMemoryResource()
    made.allocate(1).read(1)  # what the driver opens once is open now
    resource_tracker.ensure_running()
    return made


@pytest.fixture
def same_fds(resource: VirtualMemoryResource) -> Iterator[None]:
    """Fails the test that leaves an fd open."""
    before = open_fds()
    yield
    assert open_fds() == before
