"""The operations on the implementation under test (PROTOCOL.md)."""

from __future__ import annotations

import threading
from typing import Any

from vmmcts.adapters.implementation import Implementation, Options
from vmmcts.worker.objects import Objects
from vmmcts.worker.pattern import find_mismatch, pattern
from vmmcts.worker.server import Server

_COPY_BYTES = 2 << 20  # host memory for one copy
_PROBE_BYTES = 256


def options_from(request: dict[str, Any]) -> Options:
    """The options in a request."""
    return Options(
        device=request.get("device", 0),
        handle_type=request.get("handle_type", "posix_fd"),
        location_type=request.get("location_type", "device"),
        self_access=request.get("self_access", "rw"),
        peer_access=request.get("peer_access", "rw"),
        peers=tuple(request.get("peers", ())),
    )


class ImplementationOperations:
    """Calls the implementation and keeps what it makes."""

    def __init__(self, implementation: Implementation, objects: Objects) -> None:
        self._implementation = implementation
        self._objects = objects

    def add_to(self, server: Server) -> None:
        """Serve the operations."""
        server.add_all(
            {
                "resource": self._resource,
                "allocate": self._allocate,
                "modify": self._modify,
                "info": self._info,
                "close": self._close,
                "drop": self._drop,
                "fill": self._fill,
                "verify": self._verify,
                "read": self._read,
                "copy": self._copy,
                "export": self._export,
                "import": self._import,
                "foreign_kinds": self._foreign_kinds,
                "import_foreign": self._import_foreign,
                "from_fds": self._from_fds,
                "descriptor": self._descriptor,
                "handle": self._handle,
                "concurrent": self._concurrent,
                "import_rounds": self._import_rounds,
            }
        )

    def buffer_json(self, buffer: Any) -> dict[str, Any]:
        """A buffer as a reply tells it."""
        info = self._implementation.buffer_info(buffer)
        return {"pointer": info.pointer, "size": info.size, "is_mapped": info.is_mapped}

    def descriptor_json(self, descriptor: Any) -> dict[str, Any]:
        """A descriptor as a reply tells it."""
        info = self._implementation.descriptor_info(descriptor)
        return {
            "handle_type": info.handle_type,
            "size": info.size,
            "sizes": list(info.sizes),
            "fds_open": list(info.fds),
        }

    def _keep_buffer(self, request: dict[str, Any], buffer: Any) -> dict[str, Any]:
        self._objects[request["out"]] = buffer
        return self.buffer_json(buffer)

    def _keep_descriptor(self, request: dict[str, Any], descriptor: Any) -> dict[str, Any]:
        self._objects[request["out"]] = descriptor
        return self.descriptor_json(descriptor)

    def _resource(self, request: dict[str, Any]) -> dict[str, Any]:
        make = self._implementation.make_resource
        if request.get("subclass", False):
            make = self._implementation.make_subclassed_resource
        resource = make(options_from(request))
        self._objects[request["out"]] = resource
        return {"is_ipc_enabled": self._implementation.is_ipc_enabled(resource)}

    def _allocate(self, request: dict[str, Any]) -> dict[str, Any]:
        resource = self._objects[request["resource"]]
        return self._keep_buffer(request, self._implementation.allocate(resource, request["size"]))

    def _modify(self, request: dict[str, Any]) -> dict[str, Any]:
        config = options_from(request["config"]) if "config" in request else None
        buffer = self._implementation.modify(
            self._objects[request["resource"]],
            self._objects[request["buffer"]],
            request["size"],
            config,
        )
        return self._keep_buffer(request, buffer)

    def _info(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.buffer_json(self._objects[request["buffer"]])

    def _close(self, request: dict[str, Any]) -> dict[str, Any]:
        self._implementation.close(self._objects[request["object"]])
        return {}

    def _drop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._objects.drop(request["object"])
        return {}

    def _fill(self, request: dict[str, Any]) -> dict[str, Any]:
        buffer = self._objects[request["buffer"]]
        for offset, size in _pieces(request):
            self._implementation.write(buffer, offset, pattern(request["seed"], offset, size))
        return {}

    def _verify(self, request: dict[str, Any]) -> dict[str, Any]:
        buffer = self._objects[request["buffer"]]
        for offset, size in _pieces(request):
            data = self._implementation.read(buffer, offset, size)
            wrong = find_mismatch(data, request["seed"], offset)
            if wrong >= 0:
                return {"mismatch": wrong}
        return {"mismatch": -1}

    def _read(self, request: dict[str, Any]) -> dict[str, Any]:
        buffer = self._objects[request["buffer"]]
        data = self._implementation.read(buffer, request["offset"], request["size"])
        return {"hex": data.hex()}

    def _copy(self, request: dict[str, Any]) -> dict[str, Any]:
        source, target = self._objects[request["from"]], self._objects[request["to"]]
        for offset, size in _pieces({"offset": 0, **request}):
            data = self._implementation.read(source, offset, size)
            self._implementation.write(target, offset, data)
        return {}

    def _export(self, request: dict[str, Any]) -> dict[str, Any]:
        buffer = self._objects[request["buffer"]]
        return self._keep_descriptor(request, self._implementation.export(buffer))

    def _import(self, request: dict[str, Any]) -> dict[str, Any]:
        resource = self._objects[request["resource"]]
        descriptor = self._objects[request["descriptor"]]
        return self._keep_buffer(request, self._implementation.import_buffer(resource, descriptor))

    def _foreign_kinds(self, request: dict[str, Any]) -> dict[str, Any]:
        descriptor = self._objects[request["descriptor"]]
        return {"kinds": list(self._implementation.foreign_descriptors(descriptor))}

    def _import_foreign(self, request: dict[str, Any]) -> dict[str, Any]:
        foreign = self._implementation.foreign_descriptors(self._objects[request["descriptor"]])
        resource = self._objects[request["resource"]]
        buffer = self._implementation.import_buffer(resource, foreign[request["kind"]])
        return self._keep_buffer(request, buffer)

    def _from_fds(self, request: dict[str, Any]) -> dict[str, Any]:
        fds = [self._objects[f["handle"]] if isinstance(f, dict) else f for f in request["fds"]]
        descriptor = self._implementation.from_fds(
            fds, request["sizes"], request.get("handle_type"), request.get("size")
        )
        return self._keep_descriptor(request, descriptor)

    def _descriptor(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.descriptor_json(self._objects[request["descriptor"]])

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        descriptor = self._objects[request["descriptor"]]
        handle = self._implementation.handle(descriptor, request["index"])
        self._objects[request["out"]] = handle
        return {"fd": self._implementation.handle_fd(handle)}

    def _concurrent(self, request: dict[str, Any]) -> dict[str, Any]:
        """Each thread does rounds of allocate, fill, grow, export, import, verify, close."""
        resource = self._objects[request["resource"]]
        threads, rounds = request["threads"], request["rounds"]
        lock = threading.Lock()
        errors: set[str] = set()
        wrong_bytes = 0

        def run(thread: int) -> None:
            nonlocal wrong_bytes
            for n in range(rounds):
                try:
                    good = self._round(resource, thread * rounds + n)
                except Exception as error:
                    with lock:
                        errors.add(str(error))
                else:
                    with lock:
                        wrong_bytes += not good

        running = [threading.Thread(target=run, args=(t,)) for t in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return {"wrong_bytes": wrong_bytes, "errors": sorted(errors)}

    def _import_rounds(self, request: dict[str, Any]) -> dict[str, Any]:
        """Rounds of import, read and close of one descriptor."""
        implementation = self._implementation
        resource = self._objects[request["resource"]]
        descriptor = self._objects[request["descriptor"]]
        wrong_bytes = 0
        for _ in range(request["rounds"]):
            imported = implementation.import_buffer(resource, descriptor)
            data = implementation.read(imported, 0, _PROBE_BYTES)
            wrong_bytes += find_mismatch(data, request["seed"], 0) >= 0
            implementation.close(imported)
        return {"wrong_bytes": wrong_bytes}

    def _round(self, resource: Any, seed: int) -> bool:
        implementation = self._implementation
        first = implementation.allocate(resource, 1)
        implementation.write(first, 0, pattern(seed, 0, _PROBE_BYTES))
        size = implementation.buffer_info(first).size
        grown = implementation.modify(resource, first, size + 1, None)
        implementation.close(first)
        descriptor = implementation.export(grown)
        imported = implementation.import_buffer(resource, descriptor)
        implementation.close(descriptor)
        implementation.close(grown)
        good = find_mismatch(implementation.read(imported, 0, _PROBE_BYTES), seed, 0) < 0
        implementation.close(imported)
        return good


def _pieces(request: dict[str, Any]) -> list[tuple[int, int]]:
    """The range of a request in pieces of at most _COPY_BYTES: (offset, size)."""
    begin, end = request["offset"], request["offset"] + request["size"]
    return [(at, min(_COPY_BYTES, end - at)) for at in range(begin, end, _COPY_BYTES)]


def arrived_json(
    operations: ImplementationOperations, implementation: Implementation, thing: Any
) -> dict[str, Any]:
    """Something that came from another process: a buffer, a descriptor or plain data."""
    if implementation.is_buffer(thing):
        return {"type": "buffer", **operations.buffer_json(thing)}
    if hasattr(thing, "sizes"):
        return {"type": "descriptor", **operations.descriptor_json(thing)}
    return {"type": "data", "value": thing}
