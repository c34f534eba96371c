"""The objects that the coordinator knows by number."""

from __future__ import annotations

import gc
from typing import Any

from vmmcts.worker.server import ProtocolError


class Objects:
    """One table for everything that this worker holds for the coordinator."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def __getitem__(self, number: int) -> Any:
        try:
            return self._objects[number]
        except KeyError:
            raise ProtocolError(f"no such object {number}") from None

    def __setitem__(self, number: int, thing: Any) -> None:
        self._objects[number] = thing

    def drop(self, number: int) -> None:
        """Give an object up; nothing else here refers to it."""
        _shut(self[number])
        del self._objects[number]
        gc.collect()

    def clear(self) -> None:
        """Give every object up, the newest first."""
        while self._objects:
            _shut(self._objects.popitem()[1])
        gc.collect()


def _shut(thing: Any) -> None:
    """End what an object runs in the background, such as the feeder thread of a queue."""
    shut = getattr(thing, "shut", None)
    if shut is not None:
        shut()
