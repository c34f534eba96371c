"""The operations on multiprocessing, so that both ends of a transport are driven step by step.

| op | arguments | result |
| --- | --- | --- |
| queue | out, method, maxsize (0) | |
| put | queue, object | |
| put_data | queue, value | |
| get | queue, out, timeout | type and description of what arrived |
| feeder_errors | queue | errors: what _on_queue_feeder_error was called with |
| feeder_wait | queue, count, timeout | waits until it was called that often |
| queue_close | queue | closes and joins the feeder thread |
| pipe | out: two numbers, method | |
| send | connection, object | |
| recv | connection, out, timeout | type and description |
| child | out, method, connect, objects {number: object} | pid; the child connects to ``connect`` |
| child_join | child, timeout | exitcode |
| pool | out, method, kind: "pool" or "executor" | |
| pool_call | pool, function, object (optional), timeout | value |
| pool_close | pool | |
| pickle | object | plain pickle.dumps; size |
| forking_pickle | object | ForkingPickler.dumps in this thread; size |
| pickle_resource | resource, out | a copy that went through pickle; what it is and its options |
| describe_resource | resource | what it is and its options |
| put_many | queues, objects, rounds | one thread a queue, each puts its object in every round |
| dlpack | buffer | device, shape and pointer of its DLPack capsule |
| cycle | objects | keeps them in a cycle and a module global until the interpreter ends |

Functions of a pool: "last_byte" of a buffer, "import_last_byte" of a descriptor, "allocate"
(returns an own buffer of the pool's process), "return_import" (returns its argument, which is
imported there), "nothing".

A child holds the objects it was given under the numbers of ``objects``, and serves the protocol as
its parent does.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.queues
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import TYPE_CHECKING, Any

from vmmcts.adapters.implementation import Implementation, Options
from vmmcts.worker import dlpack
from vmmcts.worker.channel import Channel
from vmmcts.worker.implementation_operations import ImplementationOperations, arrived_json
from vmmcts.worker.objects import Objects
from vmmcts.worker.pattern import pattern
from vmmcts.worker.server import Server, error_json

_PR_SET_PDEATHSIG = 1
_POOL_SEED = 7
_module_globals: list[Any] = []  # what `cycle` leaves to the interpreter's shutdown
_TIMEOUT = 10.0  # seconds, where a request names none


if TYPE_CHECKING:
    _Queue = multiprocessing.queues.Queue[Any]
else:
    _Queue = multiprocessing.queues.Queue  # no subscript before Python 3.12


class WatchedQueue(_Queue):
    """A Queue that keeps what its feeder thread reports, as a subclass is meant to."""

    def __init__(self, maxsize: int, context: BaseContext) -> None:
        super().__init__(maxsize, ctx=context)
        self._watch()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._watch()

    def _watch(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self.reported = threading.Condition()

    def shut(self) -> None:
        """Close both ends and end the feeder thread."""
        self.close()
        self.join_thread()
        self._reader.close()  # type: ignore[attr-defined]
        self._writer.close()  # type: ignore[attr-defined]

    def _on_queue_feeder_error(self, e: Exception, obj: Any) -> None:
        with self.reported:
            self.errors.append({**error_json(e), "object": type(obj).__name__})
            # The frames of the failed pickling hold the item.
            e.__traceback__ = None
            self.reported.notify_all()


def warm_up() -> None:
    """Start what multiprocessing starts lazily in this process, so that it is there from the first
    measurement on: the resource sharer, the resource tracker and the fork server."""
    with open(os.devnull, "rb") as null:
        os.close(DupFd(null.fileno()).detach())
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def _context(request: dict[str, Any]) -> BaseContext:
    context: BaseContext = multiprocessing.get_context(request.get("method", "spawn"))
    return context


def run_child(adapter: Callable[[], Implementation], connect: str, objects: dict[int, Any]) -> None:
    """The main of a child: connects back and serves until the coordinator closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel.connect(connect)
    from vmmcts.worker.main import make_server

    server, table = make_server(adapter())
    while objects:
        number, thing = objects.popitem()
        table[number] = thing
        del thing
    server.run(channel)
    table.clear()


class _PoolFunctions:
    """What a pool's process can be asked for; pickled as the adapter's class and a name."""

    def __init__(self, adapter: type[Implementation], name: str) -> None:
        self._adapter = adapter
        self._name = name

    def __call__(self, *arguments: Any) -> Any:
        return getattr(self, self._name)(self._adapter(), *arguments)

    def last_byte(self, adapter: Implementation, buffer: Any) -> int:
        """Last byte of a buffer that arrived."""
        return adapter.read(buffer, adapter.buffer_info(buffer).size - 1, 1)[0]

    def import_last_byte(self, adapter: Implementation, descriptor: Any) -> int:
        """Last byte of a buffer imported from a descriptor that arrived."""
        resource = adapter.make_resource(Options())
        return self.last_byte(adapter, adapter.import_buffer(resource, descriptor))

    def allocate(self, adapter: Implementation, *_: Any) -> Any:
        """A buffer of the pool's process with a known pattern."""
        buffer = adapter.allocate(adapter.make_resource(Options()), 1)
        size = adapter.buffer_info(buffer).size
        adapter.write(buffer, 0, pattern(_POOL_SEED, 0, size))
        return buffer

    def return_import(self, adapter: Implementation, buffer: Any) -> Any:
        """What arrived, sent back."""
        return buffer

    def nothing(self, adapter: Implementation, *_: Any) -> None:
        """Nothing."""


class Transports:
    """The multiprocessing objects of this worker."""

    def __init__(
        self,
        implementation: Implementation,
        operations: ImplementationOperations,
        objects: Objects,
    ) -> None:
        self._implementation = implementation
        self._operations = operations
        self._objects = objects

    def add_to(self, server: Server) -> None:
        """Serve the operations."""
        server.add_all(
            {
                "queue": self._queue,
                "put": self._put,
                "put_data": self._put_data,
                "get": self._get,
                "feeder_errors": self._feeder_errors,
                "feeder_wait": self._feeder_wait,
                "queue_close": self._queue_close,
                "pipe": self._pipe,
                "send": self._send,
                "recv": self._recv,
                "child": self._child,
                "child_join": self._child_join,
                "pool": self._pool,
                "pool_call": self._pool_call,
                "pool_close": self._pool_close,
                "pickle": self._pickle,
                "forking_pickle": self._forking_pickle,
                "pickle_resource": self._pickle_resource,
                "describe_resource": self._describe_resource,
                "put_many": self._put_many,
                "dlpack": self._dlpack,
                "cycle": self._cycle,
            }
        )

    def _arrived(self, request: dict[str, Any], thing: Any) -> dict[str, Any]:
        described = arrived_json(self._operations, self._implementation, thing)
        self._objects[request["out"]] = thing
        return described

    def _queue(self, request: dict[str, Any]) -> dict[str, Any]:
        made = WatchedQueue(request.get("maxsize", 0), _context(request))
        self._objects[request["out"]] = made
        return {}

    def _put(self, request: dict[str, Any]) -> dict[str, Any]:
        timeout = request.get("timeout", _TIMEOUT)
        self._objects[request["queue"]].put(self._objects[request["object"]], timeout=timeout)
        return {}

    def _put_data(self, request: dict[str, Any]) -> dict[str, Any]:
        timeout = request.get("timeout", _TIMEOUT)
        self._objects[request["queue"]].put(request["value"], timeout=timeout)
        return {}

    def _get(self, request: dict[str, Any]) -> dict[str, Any]:
        source: WatchedQueue = self._objects[request["queue"]]
        return self._arrived(request, source.get(timeout=request.get("timeout", _TIMEOUT)))

    def _feeder_errors(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"errors": list(self._objects[request["queue"]].errors)}

    def _feeder_wait(self, request: dict[str, Any]) -> dict[str, Any]:
        watched: WatchedQueue = self._objects[request["queue"]]
        with watched.reported:
            done = watched.reported.wait_for(
                lambda: len(watched.errors) >= request["count"],
                timeout=request.get("timeout", _TIMEOUT),
            )
        if not done:
            raise queue.Empty("the feeder reported nothing in time")
        return {"errors": list(watched.errors)}

    def _queue_close(self, request: dict[str, Any]) -> dict[str, Any]:
        self._objects[request["queue"]].shut()
        return {}

    def _pipe(self, request: dict[str, Any]) -> dict[str, Any]:
        ends = _context(request).Pipe()
        for number, end in zip(request["out"], ends, strict=True):
            self._objects[number] = end
        return {}

    def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        self._objects[request["connection"]].send(self._objects[request["object"]])
        return {}

    def _recv(self, request: dict[str, Any]) -> dict[str, Any]:
        connection = self._objects[request["connection"]]
        if not connection.poll(request.get("timeout", _TIMEOUT)):
            raise queue.Empty("nothing arrived in time")
        return self._arrived(request, connection.recv())

    def _child(self, request: dict[str, Any]) -> dict[str, Any]:
        # Process is not the same class in every context.
        context: Any = _context(request)
        given = {int(number): self._objects[o] for number, o in request["objects"].items()}
        process = context.Process(
            target=run_child,
            args=(type(self._implementation), request["connect"], given),
        )
        process.start()
        self._objects[request["out"]] = process
        return {"pid": process.pid}

    def _child_join(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._objects[request["child"]]
        process.join(request.get("timeout", _TIMEOUT))
        return {"exitcode": process.exitcode}

    def _pool(self, request: dict[str, Any]) -> dict[str, Any]:
        context = _context(request)
        if request.get("kind") == "executor":
            self._objects[request["out"]] = ProcessPoolExecutor(1, mp_context=context)
        else:
            self._objects[request["out"]] = context.Pool(1)
        return {}

    def _pool_call(self, request: dict[str, Any]) -> dict[str, Any]:
        pool = self._objects[request["pool"]]
        function = _PoolFunctions(type(self._implementation), request["function"])
        arguments = (self._objects[request["object"]],) if "object" in request else ()
        timeout = request.get("timeout", _TIMEOUT)
        if isinstance(pool, ProcessPoolExecutor):
            value = pool.submit(function, *arguments).result(timeout)
        else:
            value = pool.apply_async(function, arguments).get(timeout)
        if "out" in request:
            return self._arrived(request, value)
        return {"value": value}

    def _pool_close(self, request: dict[str, Any]) -> dict[str, Any]:
        pool = self._objects[request["pool"]]
        if isinstance(pool, ProcessPoolExecutor):
            pool.shutdown()
        else:
            pool.close()
            pool.join()
        return {}

    def _pickle(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"size": len(pickle.dumps(self._objects[request["object"]]))}

    def _forking_pickle(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"size": len(ForkingPickler.dumps(self._objects[request["object"]]))}

    def _pickle_resource(self, request: dict[str, Any]) -> dict[str, Any]:
        copy = pickle.loads(pickle.dumps(self._objects[request["resource"]]))
        self._objects[request["out"]] = copy
        return {
            **self._implementation.describe_resource(copy),
            "is_ipc_enabled": self._implementation.is_ipc_enabled(copy),
        }

    def _describe_resource(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._implementation.describe_resource(self._objects[request["resource"]])

    def _put_many(self, request: dict[str, Any]) -> dict[str, Any]:
        def put(queue_number: int, object_number: int) -> None:
            for _ in range(request["rounds"]):
                self._objects[queue_number].put(self._objects[object_number])

        pairs = zip(request["queues"], request["objects"], strict=True)
        running = [threading.Thread(target=put, args=pair) for pair in pairs]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return {}

    def _cycle(self, request: dict[str, Any]) -> dict[str, Any]:
        cycle: list[Any] = [self._objects[o] for o in request["objects"]]
        cycle.append(cycle)
        _module_globals.append(cycle)
        return {}

    def _dlpack(self, request: dict[str, Any]) -> dict[str, Any]:
        return dlpack.describe(self._objects[request["buffer"]])
