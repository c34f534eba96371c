"""Runs jobs: one coordinator for each, some at a time, and gathers what their event logs say."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable

from vmmcts import plan as plans
from vmmcts import processes
from vmmcts.drivers import Driver
from vmmcts.events import EventReader, EventTail, RunInfo, ScenarioResult
from vmmcts.layout import Layout
from vmmcts.plan import Job

#: How often the logs are looked at while coordinators run.
_TAIL_SECONDS = 0.1
#: A coordinator that reports nothing for so long is stuck: each of its requests has a deadline of
#: 20 seconds, and no scenario makes more than a few that can miss it.
STUCK_SECONDS = 300.0
_LOG_LINES = 5

Progress = Callable[[Job, ScenarioResult], None]


@dataclasses.dataclass
class JobResult:
    """What one job came to. ``troubles`` are failures that no scenario tells of."""

    job: Job
    info: RunInfo | None
    results: list[ScenarioResult]
    troubles: list[str]


class _Coordinator:
    """One running coordinator."""

    def __init__(
        self,
        job: Job,
        names: tuple[str, ...],
        process: subprocess.Popen[bytes],
        tail: EventTail,
        reader: EventReader,
        work_dir: pathlib.Path,
    ) -> None:
        self.job = job
        self.names = names
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.tail = tail
        self.reader = reader
        self.work_dir = work_dir
        self.last_event = time.monotonic()

    def last_words(self) -> str:
        """The end of what it printed, in one line."""
        with contextlib.suppress(OSError):
            text = (self.work_dir / "coordinator.log").read_text(errors="replace")
            return " | ".join(line.strip() for line in text.splitlines()[-_LOG_LINES:])
        return ""


class Runner:
    """Runs jobs in ``work_dir``; use it inside ``interruptible`` from the main thread."""

    def __init__(
        self,
        layout: Layout,
        driver: Driver,
        work_dir: pathlib.Path,
        *,
        parallel: int,
        seed: int | None = None,
        rounds: int = 1,
        program: pathlib.Path | None = None,
    ) -> None:
        self._layout = layout
        self._driver = driver
        self._work_dir = work_dir
        self._parallel = max(1, parallel)
        self._arguments = (
            [] if seed is None else ["--order", "rand", "--rng-seed", str(seed & 0xFFFFFFFF)]
        )
        self._rounds = rounds
        self._program = program or layout.program("vmmcts-scenarios")
        self._started = 0
        self._done: dict[int, JobResult] = {}

    def run(self, jobs: Iterable[Job], progress: Progress = lambda *_: None) -> list[JobResult]:
        """Runs every job; the results are in the order of the jobs.

        Whatever ends this, no process of it is left.
        """
        ordered = list(jobs)
        self._done = {}
        waiting = collections.deque(
            (job, job.scenarios) for job in sorted(ordered, key=lambda j: j.seconds, reverse=True)
        )
        processes.become_subreaper()
        selector = selectors.DefaultSelector()
        running: list[_Coordinator] = []
        try:
            while waiting or running:
                while waiting and len(running) < self._parallel:
                    running.append(self._start(*waiting.popleft()))
                    selector.register(running[-1].pidfd, selectors.EVENT_READ)
                selector.select(_TAIL_SECONDS)
                for coordinator in list(running):
                    if self._look(coordinator, progress):
                        continue
                    running.remove(coordinator)
                    selector.unregister(coordinator.pidfd)
                    rest = self._finish(coordinator, progress)
                    if rest:
                        waiting.appendleft((coordinator.job, rest))
        finally:
            for coordinator in running:
                self._end(coordinator)
            processes.kill_orphans(set())
            selector.close()
        return [self._done[id(job)] for job in ordered]

    def _start(self, job: Job, names: tuple[str, ...]) -> _Coordinator:
        self._started += 1
        work_dir = self._work_dir / str(self._started)
        self._driver.prepare(work_dir)
        part = dataclasses.replace(job, scenarios=names)
        plan = plans.plan_of(part, self._layout, self._driver, work_dir, self._rounds)
        plans.write(plan, work_dir / "plan.json")
        reader = EventReader(job.worker.name)
        process = processes.start(
            [str(self._program), "--plan", str(work_dir / "plan.json"), *self._arguments],
            {**os.environ, **plan["environment"]},
            work_dir / "coordinator.log",
        )
        tail = EventTail(work_dir / "events.jsonl")
        return _Coordinator(job, names, process, tail, reader, work_dir)

    def _look(self, coordinator: _Coordinator, progress: Progress) -> bool:
        """Takes in what is new. False when the coordinator has ended or is stuck."""
        ended = coordinator.process.poll() is not None
        self._read(coordinator, progress)
        if ended:
            return False
        return time.monotonic() - coordinator.last_event < STUCK_SECONDS

    @staticmethod
    def _read(coordinator: _Coordinator, progress: Progress) -> None:
        for event in coordinator.tail.read():
            coordinator.last_event = time.monotonic()
            coordinator.reader.feed(event)
            if event["event"] == "scenario.end" and event.get("name") in coordinator.reader.results:
                progress(coordinator.job, coordinator.reader.results[event["name"]])

    def _finish(self, coordinator: _Coordinator, progress: Progress) -> tuple[str, ...]:
        """Keeps the results of a coordinator. What it never came to is run by another one."""
        stuck = coordinator.process.poll() is None
        self._end(coordinator)
        self._read(coordinator, progress)
        reader, status = coordinator.reader, coordinator.process.returncode
        done = self._done.setdefault(id(coordinator.job), JobResult(coordinator.job, None, [], []))
        done.info = done.info or reader.info
        how = "it reported nothing for too long" if stuck else _ending(status)
        for name in reader.running():
            reader.results[name].reason = f"the coordinator ended in the middle: {how}"
        done.results += reader.results.values()
        done.troubles += [
            f"{coordinator.job.worker.name}: bad event: {m}" for m in reader.malformed
        ]
        rest = tuple(name for name in coordinator.names if name not in reader.results)
        if status not in (0, 1) or (rest and not reader.results):
            words = coordinator.last_words()
            done.troubles.append(
                f"{coordinator.job.worker.name}: the coordinator: {how}"
                + (f": {words}" * bool(words))
            )
        return rest if reader.results else ()

    @staticmethod
    def _end(coordinator: _Coordinator) -> None:
        processes.kill_group(coordinator.process)
        with contextlib.suppress(OSError):
            os.close(coordinator.pidfd)


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
