"""One run of one implementation, from its manifest to its report."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from vmmcts import catalog, clauses, manifest, plan
from vmmcts.catalog import Scenario
from vmmcts.clauses import Clause
from vmmcts.drivers import Driver
from vmmcts.errors import UsageError
from vmmcts.events import ScenarioResult
from vmmcts.layout import Layout
from vmmcts.manifest import Manifest, WorkerSpec
from vmmcts.reports import document
from vmmcts.runner import JobResult, Progress, Runner
from vmmcts.verdicts import Judge, Machine, Verdicts


@dataclasses.dataclass(frozen=True)
class Selection:
    """What of a run the command line chose; nothing chosen is everything."""

    profiles: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    pattern: str | None = None
    clauses: tuple[str, ...] = ()

    @property
    def narrows(self) -> bool:
        """Whether single scenarios are chosen, so that clauses may go without."""
        return self.pattern is not None or bool(self.clauses)

    def workers(self, of: Manifest) -> list[WorkerSpec]:
        """The workers with the profiles that are left. UsageError when none is."""
        names = {worker.name for worker in of.workers}
        kinds = set(self.kinds) - names  # a word is a name where there is one
        chosen = []
        for worker in of.workers:
            if self.kinds and worker.name not in self.kinds and worker.kind not in kinds:
                continue
            profiles = tuple(p for p in worker.profiles if not self.profiles or p in self.profiles)
            if profiles:
                chosen.append(dataclasses.replace(worker, profiles=profiles))
        if not chosen:
            raise UsageError(f"{of.name} has no such worker or profile")
        return chosen


@dataclasses.dataclass(frozen=True)
class Suite:
    """The clauses and the scenarios."""

    clauses: dict[str, Clause]
    catalog: list[Scenario]

    @classmethod
    def load(cls, layout: Layout) -> Suite:
        """Both of them, as this build has them."""
        return cls(clauses.load(layout.clauses), catalog.load(layout.program("vmmcts-scenarios")))

    def select(self, selection: Selection) -> list[Scenario]:
        """The scenarios that the command line chose. UsageError for a clause that is not there."""
        for clause in selection.clauses:
            if clause not in self.clauses:
                raise UsageError(f"no clause {clause}: `vmmcts clauses` lists them")
        if not selection.narrows:
            return self.catalog
        return catalog.select(self.catalog, selection.pattern, selection.clauses)


class Timings:
    """How long each scenario took last, kept in the build directory."""

    def __init__(self, layout: Layout) -> None:
        self._path = layout.build / "vmmcts-seconds.json"
        self.seconds: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(self._path.read_text())
            self.seconds = {str(key): float(value) for key, value in loaded.items()}

    def keep(self, results: Iterable[ScenarioResult]) -> None:
        """Remembers the results for the next run."""
        for result in results:
            self.seconds[f"{result.worker}/{result.name}"] = round(result.seconds, 4)
        with contextlib.suppress(OSError):
            self._path.write_text(json.dumps(self.seconds, indent=0, sort_keys=True))


class Session:
    """Prepares, runs and judges one implementation on one driver."""

    def __init__(
        self,
        layout: Layout,
        suite: Suite,
        of: Manifest,
        driver: Driver,
        selection: Selection,
        *,
        strict: bool = False,
    ) -> None:
        self.manifest = of
        self.driver = driver
        self._layout = layout
        self._suite = suite
        self._selection = selection
        self._strict = strict
        self._timings = Timings(layout)
        self.workers = selection.workers(of)
        self._chosen = suite.select(selection)

    def check(self) -> None:
        """Checks every worker before anything is started. UsageError says what is wrong."""
        for worker in self.workers:
            manifest.check(worker, self.driver.library)

    def scenarios_of(self, worker: WorkerSpec) -> list[str]:
        """The scenarios that a worker runs."""
        return [s.name for s in self._chosen if s.profile in worker.profiles]

    def total(self) -> int:
        """How many results there will be."""
        return sum(len(self.scenarios_of(worker)) for worker in self.workers)

    def jobs(self, parallel: int, environment: Mapping[str, str]) -> list[plan.Job]:
        """The work, split for so many coordinators at a time."""
        jobs = plan.jobs_for(
            self.manifest.name,
            [(worker, self.scenarios_of(worker)) for worker in self.workers],
            parallel,
            self._timings.seconds,
        )
        return [dataclasses.replace(job, environment=environment) for job in jobs]

    def run(
        self,
        work_dir: pathlib.Path,
        *,
        parallel: int,
        seed: int | None = None,
        rounds: int = 1,
        progress: Progress = lambda *_: None,
    ) -> dict[str, Any]:
        """Runs everything, ``rounds`` times in the same processes, and returns the report."""
        started = datetime.datetime.now(datetime.timezone.utc)
        runner = Runner(
            self._layout, self.driver, work_dir, parallel=parallel, seed=seed, rounds=rounds
        )
        done = runner.run(self.jobs(parallel, {}), progress)
        self._timings.keep(result for job in done for result in job.results)
        seconds = (datetime.datetime.now(datetime.timezone.utc) - started).total_seconds()
        return self.report(done, started, seconds)

    def report(
        self, done: Iterable[JobResult], started: datetime.datetime, seconds: float
    ) -> dict[str, Any]:
        """Judges what the jobs came to."""
        done = list(done)
        judge = Judge(
            self._suite.clauses,
            self._suite.catalog,
            {worker.name: worker.profiles for worker in self.workers},
            expectations=self.manifest.expectations,
            machine=Machine(self.driver.version, self.driver.device),
            selected=[s.name for s in self._chosen] if self._selection.narrows else None,
            strict=self._strict,
        )
        verdicts: Verdicts = judge.judge(
            (result for job in done for result in job.results),
            (trouble for job in done for trouble in job.troubles),
        )
        versions: dict[str, str] = collections.defaultdict(str)
        for job in done:
            if job.info is not None:
                versions[job.job.worker.name] = job.info.worker_version
        return document.make(
            verdicts, self.manifest, self.workers, versions, self.driver, started, seconds
        )
