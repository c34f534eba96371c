"""Mutants: wrong implementations, each of which the scenarios of its clause must catch."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Container, Iterable
from typing import Any

from vmmcts import toml
from vmmcts.catalog import Scenario
from vmmcts.errors import UsageError
from vmmcts.events import FAILED, TROUBLE, ScenarioResult
from vmmcts.layout import Layout
from vmmcts.manifest import Manifest, WorkerSpec
from vmmcts.plan import Job
from vmmcts.runner import JobResult

_DEADLINE_SECONDS = 3.0

KILLED = "killed"
SURVIVED = "survived"
KILLED_ELSEWHERE = "killed elsewhere"
NOT_TRIED = "not tried"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One wrong implementation; ``breaks`` begins with the clause that must catch it."""

    name: str
    kind: str
    breaks: tuple[str, ...]
    description: str
    class_name: str = ""

    @property
    def clause(self) -> str:
        """The clause that it breaks first of all."""
        return self.breaks[0]

    def worker(self, layout: Layout) -> WorkerSpec:
        """The worker that is this mutant. UsageError for a kind that nobody can make."""
        program = str(layout.build / "bin" / "vmmcts-worker")
        library = layout.build / "lib"
        if self.kind == "table":
            environment = {
                "VMMCTS_MUTANT": self.name,
                "VMMCTS_MUTANT_BASE": str(library / "libreference.so"),
            }
            command = (program, str(library / "libmutants.so"))
            return WorkerSpec("c", "c", command, ("core", "rawfd"), environment)
        if self.kind == "patch":
            command = (program, str(library / f"mutant_{self.name}.so"))
            return WorkerSpec("c", "c", command, ("core", "rawfd"))
        if self.kind == "python":
            environment = {"PYTHONPATH": f"{layout.build / 'python'}:{layout.source}/conformance"}
            adapter = f"mutants.python_mutants:{self.class_name}"
            return WorkerSpec(
                "python", "python", (sys.executable, "-m", "vmmcts.worker", adapter),
                ("core", "rawfd", "python"), environment,
            )  # fmt: skip
        raise UsageError(f"the mutant {self.name} is of no known kind: {self.kind}")


@dataclasses.dataclass
class Fate:
    """What became of a mutant; ``killers`` are the scenarios of its clause that caught it."""

    mutant: Mutant
    fate: str
    killers: dict[str, str]
    others: dict[str, str]
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the suite did its work."""
        return self.fate == KILLED


def load(layout: Layout, names: Iterable[str] = ()) -> list[Mutant]:
    """The mutants of ``mutants.toml``, or those of these names. UsageError for an unknown one."""
    found = [
        Mutant(m["name"], m["kind"], tuple(m["breaks"]), m["description"], m.get("class", ""))
        for m in toml.load(layout.mutants).get("mutant", [])
    ]
    wanted = set(names)
    if unknown := wanted - {m.name for m in found}:
        raise UsageError(f"no mutant {', '.join(sorted(unknown))}: see {layout.mutants}")
    return [m for m in found if not wanted or m.name in wanted]


def job(mutant: Mutant, layout: Layout, catalog: Iterable[Scenario], everything: bool) -> Job:
    """The scenarios that carry the mutant's clause, or with ``everything`` all of them."""
    worker = mutant.worker(layout)
    names = tuple(
        s.name
        for s in catalog
        if s.profile in worker.profiles and s.clauses and (everything or mutant.clause in s.clauses)
    )
    # What never comes is waited for, and for a mutant it is expected. What a random walk finds is
    # enough; looking for the shortest takes time.
    return Job(
        mutant.name,
        worker,
        names,
        seconds=float(len(names)),
        environment={"VMMCTS_WALK_SHRINK_SECONDS": "0"},
        deadline_seconds=_DEADLINE_SECONDS,
    )


def base_jobs(jobs: Iterable[Job], manifest: Manifest) -> list[Job]:
    """The scenarios of the jobs on the right implementation, for each kind of worker."""
    names: dict[str, dict[str, None]] = {}
    for one in jobs:
        names.setdefault(one.worker.kind, {}).update(dict.fromkeys(one.scenarios))
    return [
        Job(manifest.name, worker, tuple(names[worker.kind]), seconds=float("inf"))
        for worker in manifest.workers
        if worker.kind in names
    ]


def failing(done: Iterable[JobResult]) -> dict[str, set[str]]:
    """By kind of worker, the scenarios that the right implementation does not pass.

    Such a scenario catches nothing: it would fail without the mutant.
    """
    found: dict[str, set[str]] = {}
    for job_result in done:
        passed = {r.name for r in job_result.results if r.outcome == "pass"}
        found[job_result.job.worker.kind] = set(job_result.job.scenarios) - passed
    return found


def judge(mutant: Mutant, done: JobResult | None, failing_anyway: Container[str] = ()) -> Fate:
    """Whether the scenarios of the clause caught the mutant by that clause."""
    if done is None:
        return Fate(mutant, NOT_TRIED, {}, {}, f"no scenario carries {mutant.clause}")
    killers: dict[str, str] = {}
    others: dict[str, str] = {}
    results = [r for r in done.results if r.name not in failing_anyway]
    if not results and not done.troubles:
        return Fate(mutant, NOT_TRIED, {}, {}, "its scenarios fail without the mutant too")
    for result in results:
        if result.outcome not in FAILED:
            continue
        text = _caught(mutant.clause, result)
        (killers if text else others)[result.name] = text or result.reason
    if killers:
        return Fate(mutant, KILLED, killers, others)
    trouble = [r.reason for r in results if r.outcome in TROUBLE] + done.troubles
    if trouble:
        return Fate(mutant, NOT_TRIED, {}, others, trouble[0])
    if others:
        return Fate(mutant, KILLED_ELSEWHERE, {}, others, "none of them by its clause")
    outcomes = sorted({r.reason or r.outcome for r in results})
    return Fate(mutant, SURVIVED, {}, {}, "; ".join(outcomes))


def _caught(clause: str, result: ScenarioResult) -> str:
    if clause not in result.clauses:
        return ""
    for evidence in result.findings():
        if evidence.clause in (None, clause):
            return evidence.text
    return ""


def matrix(fates: Iterable[Fate]) -> list[dict[str, Any]]:
    """The kill matrix as JSON."""
    return [
        {
            "name": f.mutant.name,
            "kind": f.mutant.kind,
            "breaks": list(f.mutant.breaks),
            "description": f.mutant.description,
            "fate": f.fate,
            "killers": f.killers,
            "others": f.others,
            "reason": f.reason,
        }
        for f in fates
    ]
