"""Puts a Python worker together: ``python -m vmmcts.worker MODULE:CLASS``."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from typing import Any

from vmmcts.adapters.implementation import Implementation
from vmmcts.worker.channel import Channel, Message
from vmmcts.worker.fd_operations import FdOperations
from vmmcts.worker.implementation_operations import ImplementationOperations
from vmmcts.worker.objects import Objects
from vmmcts.worker.server import Reply, Server
from vmmcts.worker.transports import Transports, warm_up

PROTOCOL_VERSION = 1


def load_adapter(name: str) -> type[Implementation]:
    """The class that MODULE:CLASS names. ValueError says in one line what is wrong."""
    module_name, _, class_name = name.partition(":")
    try:
        adapter: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot load {name}: {error}; name it as MODULE:CLASS") from error
    if not (isinstance(adapter, type) and issubclass(adapter, Implementation)):
        raise ValueError(f"{name} is not a subclass of vmmcts.adapters.Implementation")
    return adapter


def make_server(implementation: Implementation) -> tuple[Server, Objects]:
    """A server with every operation, and its table of objects."""
    objects = Objects()
    fds = FdOperations()
    server = Server()

    def hello(_: Message) -> Reply:
        return Reply(
            {
                "protocol": PROTOCOL_VERSION,
                "implementation": implementation.name,
                "version": implementation.version,
                "profiles": list(implementation.profiles),
                "pid": os.getpid(),
                "driver_version": _driver_version(),
            }
        )

    def reset(_: Message) -> Reply:
        fds.reset()
        objects.clear()
        return Reply()

    server.add("hello", hello)
    server.add("reset", reset)
    fds.add_to(server)
    operations = ImplementationOperations(implementation, objects)
    operations.add_to(server)
    Transports(implementation, operations, objects).add_to(server)
    return server, objects


def _driver_version() -> int:
    """What cuDriverGetVersion says in this process, 0 without a driver."""
    import ctypes

    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def _name_semaphores() -> None:
    """Begins the names of semaphores as the plan says, for killed processes leave them."""
    if prefix := os.environ.get("VMMCTS_SEMAPHORE_PREFIX"):
        process: Any = multiprocessing.current_process()
        process._config["semprefix"] = prefix  # there is no public way


def main() -> int:
    """Serve; with --check only say what is wrong with the class."""
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    if len(arguments) != 1 + check:
        print("usage: python -m vmmcts.worker [--check] MODULE:CLASS", file=sys.stderr)
        return 2
    try:
        implementation = load_adapter(arguments[-1])()
    except (ValueError, TypeError) as error:
        print(f"vmmcts.worker: {error}", file=sys.stderr)
        return 2
    if check:
        return 0
    if "VMMCTS_FD" not in os.environ:
        print("vmmcts.worker: VMMCTS_FD is not set; the coordinator sets it", file=sys.stderr)
        return 2
    _name_semaphores()
    warm_up()
    server, objects = make_server(implementation)
    server.run(Channel.from_environment())
    objects.clear()
    return 0
