"""Plans: what the coordinator is told to run (PROTOCOL.md), and how scenarios are split."""

from __future__ import annotations

import dataclasses
import heapq
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vmmcts.drivers import Driver
from vmmcts.layout import Layout
from vmmcts.manifest import WorkerSpec
from vmmcts.processes import semaphore_prefix

_VERSION = 1
DEADLINE_SECONDS = 20.0
_UNKNOWN_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """Some scenarios for one worker, to be run by one coordinator."""

    implementation: str
    worker: WorkerSpec
    scenarios: tuple[str, ...]
    #: Expected duration, for the order in which jobs start.
    seconds: float = 0.0
    #: Set in the environment of everything that the job starts.
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: For one request; what waits for something waits so long before it judges.
    deadline_seconds: float = DEADLINE_SECONDS


def shards(
    names: Sequence[str], count: int, seconds: Mapping[str, float]
) -> list[tuple[list[str], float]]:
    """Splits scenarios so that the parts take about as long: longest first, to the least loaded.

    Returns the parts that are not empty with their expected seconds.
    """
    loads: list[tuple[float, int]] = [(0.0, index) for index in range(max(1, count))]
    parts: list[list[str]] = [[] for _ in loads]

    def expected(name: str) -> float:
        return seconds.get(name, _UNKNOWN_SECONDS)

    for name in sorted(names, key=expected, reverse=True):
        load, index = heapq.heappop(loads)
        parts[index].append(name)
        heapq.heappush(loads, (load + expected(name), index))
    order = {name: position for position, name in enumerate(names)}
    return [
        (sorted(part, key=order.__getitem__), sum(map(expected, part))) for part in parts if part
    ]


def jobs_for(
    implementation: str,
    workers: Iterable[tuple[WorkerSpec, Sequence[str]]],
    parallel: int,
    seconds: Mapping[str, float],
) -> list[Job]:
    """The jobs for the scenarios of each worker. ``seconds`` is by "worker/scenario"."""
    jobs = []
    for worker, names in workers:
        own = {name: seconds.get(f"{worker.name}/{name}", _UNKNOWN_SECONDS) for name in names}
        for part, expected in shards(names, parallel, own):
            jobs.append(Job(implementation, worker, tuple(part), expected))
    return jobs


def plan_of(
    job: Job, layout: Layout, driver: Driver, work_dir: pathlib.Path, rounds: int = 1
) -> dict[str, Any]:
    """The plan of one coordinator that works in ``work_dir``."""
    environment = {
        **job.worker.environment,
        **job.environment,
        **driver.environment(work_dir),
        "TMPDIR": str(work_dir),
        "VMMCTS_SEMAPHORE_PREFIX": semaphore_prefix(work_dir.parent),
    }
    return {
        "version": _VERSION,
        "implementation": job.implementation,
        "worker": job.worker.name,
        "command": list(job.worker.command),
        "kind": job.worker.kind,
        "profiles": list(job.worker.profiles),
        "environment": environment,
        "observer": [str(layout.build / "bin" / "vmmcts-observer")],
        "driver": str(driver.library),
        "tap": str(layout.tap) if layout.tap.exists() else None,
        "fdcalls": str(layout.fdcalls) if layout.fdcalls.exists() else None,
        "deadline_seconds": job.deadline_seconds,
        "devices": driver.devices,
        "work_dir": str(work_dir),
        "events": str(work_dir / "events.jsonl"),
        "scenarios": list(job.scenarios),
        "rounds": rounds,
    }


def write(plan: dict[str, Any], path: pathlib.Path) -> None:
    """Writes a plan."""
    path.write_text(json.dumps(plan, indent=1), encoding="utf-8")
