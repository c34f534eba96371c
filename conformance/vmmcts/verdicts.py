"""From results to verdicts.

A clause is

- **not applicable** when no worker declares its profile;
- **violated** when a failure speaks of it: evidence that names it, or evidence that names no clause
  in a scenario that carries it (then the scenario counts against all its clauses);
- **waived** when an expectation covers everything that speaks against it, or, where nothing passed,
  everything that kept it from being exercised;
- **proven** when nothing speaks against it and at least one scenario that carries it passed;
- **not exercised** otherwise: no scenario carries it, or each one was not exercised, or gave no
  result, or failed for another clause.

Evidence that names a clause narrows the failure: for the other clauses of that scenario it is
neutral. They are not violated by it, and not proven by it either.

A run is judged by the clauses at level M, with ``strict`` also S. In order of precedence:
**violated** (1), **infrastructure** (3: a result is missing, the suite itself failed, or a witness
missed its canary), **too little exercised** (4: a declared profile has a clause whose scenarios
were all not exercised), **conformant** (0). A wrong expectation (stale, expired, unexpectedly
passing) makes a run violated: it says something untrue of the implementation.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping

from vmmcts.catalog import Scenario
from vmmcts.clauses import PROFILES, Clause
from vmmcts.errors import ExitCode
from vmmcts.events import TROUBLE, Evidence, ScenarioResult
from vmmcts.expectations import Expectation

PROVEN = "proven"
VIOLATED = "violated"
NOT_EXERCISED = "not exercised"
WAIVED = "waived"
NOT_APPLICABLE = "not applicable"

CONFORMANT = "conformant"
INFRASTRUCTURE = "infrastructure"
TOO_LITTLE = "too little exercised"

#: The one switch that makes a clause that no scenario carries count as too little exercised.
CLAUSES_NEED_SCENARIOS = False

EXIT_CODES = {
    CONFORMANT: ExitCode.CONFORMANT,
    VIOLATED: ExitCode.VIOLATED,
    INFRASTRUCTURE: ExitCode.INFRASTRUCTURE,
    TOO_LITTLE: ExitCode.TOO_LITTLE,
}
_PRECEDENCE = (VIOLATED, INFRASTRUCTURE, TOO_LITTLE, CONFORMANT)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a run was made on, for the conditions of expectations."""

    driver_version: int = 0
    device: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that speaks against a clause, and the expectation that waives it."""

    worker: str
    scenario: str
    evidence: Evidence
    waived_by: Expectation | None = None


@dataclasses.dataclass
class ClauseVerdict:
    """The verdict on one clause and what it rests on."""

    clause: Clause
    verdict: str = NOT_EXERCISED
    reason: str = ""
    results: list[ScenarioResult] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    #: Carried by scenarios of which none was exercised, or, with the switch, by none.
    too_little: bool = False


@dataclasses.dataclass(frozen=True)
class ExpectationProblem:
    """An expectation that says something untrue: stale, expired or unexpectedly passing."""

    expectation: Expectation
    kind: str
    text: str


@dataclasses.dataclass
class ProfileVerdict:
    """The verdict on one profile and how many of its clauses came to what."""

    profile: str
    verdict: str
    counts: dict[str, int]


@dataclasses.dataclass
class Verdicts:
    """Everything that was judged of one run."""

    verdict: str
    clauses: dict[str, ClauseVerdict]
    profiles: dict[str, ProfileVerdict]
    results: list[ScenarioResult]
    problems: list[ExpectationProblem]
    troubles: list[str]
    strict: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that the verdict stands for."""
        return EXIT_CODES[self.verdict]

    def counts(self, clause: Clause) -> bool:
        """Whether the clause decides the verdict."""
        return clause.level == "M" or (self.strict and clause.level == "S")


class Judge:
    """Judges the results of one run of one implementation.

    ``workers`` are the profiles that each worker declares. ``selected`` are the scenarios that were
    chosen to run, None for all: what was not chosen is neither missing nor judged.
    """

    def __init__(
        self,
        clauses: Mapping[str, Clause],
        catalog: Iterable[Scenario],
        workers: Mapping[str, tuple[str, ...]],
        *,
        expectations: Iterable[Expectation] = (),
        machine: Machine | None = None,
        selected: Iterable[str] | None = None,
        strict: bool = False,
        today: datetime.date | None = None,
    ) -> None:
        self._clauses = clauses
        self._catalog = list(catalog)
        self._workers = workers
        self._machine = machine or Machine()
        self._selected = None if selected is None else set(selected)
        self._strict = strict
        self._today = today or datetime.datetime.now(datetime.timezone.utc).date()
        self._expectations = list(expectations)
        self._active = [
            e
            for e in self._expectations
            if not e.expired(self._today) and e.applies(self._machine.driver_version,
                                                        self._machine.device)
        ]  # fmt: skip
        self._used: set[int] = set()

    def due(self) -> list[tuple[str, Scenario]]:
        """The worker and scenario of every result that must be there."""
        return [
            (worker, scenario)
            for worker, profiles in self._workers.items()
            for scenario in self._catalog
            if scenario.profile in profiles
            and (self._selected is None or scenario.name in self._selected)
        ]

    def judge(self, results: Iterable[ScenarioResult], troubles: Iterable[str] = ()) -> Verdicts:
        """The verdicts; ``troubles`` are failures of the suite that no scenario tells of."""
        by_key = {(r.worker, r.name): r for r in results}
        all_results = [
            by_key.get((worker, scenario.name)) or _missing(worker, scenario)
            for worker, scenario in self.due()
        ]
        found = list(troubles)
        found += [
            f"{r.worker}: {r.name}: {r.outcome}: {r.reason}"
            for r in all_results
            if r.outcome in TROUBLE
        ]
        clauses = self._clause_verdicts(all_results)
        told = {(f.worker, f.scenario) for v in clauses.values() for f in v.findings}
        found += [
            f"{r.worker}: {r.name}: failed, and no clause is judged by it: {r.reason}"
            for r in all_results
            if r.failed and (r.worker, r.name) not in told
        ]
        problems = self._expectation_problems(all_results)
        verdicts = Verdicts("", clauses, {}, all_results, problems, found, self._strict)
        for profile in PROFILES:
            verdicts.profiles[profile] = self._profile(profile, verdicts)
        verdicts.verdict = _worst(
            [p.verdict for p in verdicts.profiles.values()]
            + [INFRASTRUCTURE] * bool(found)
            + [VIOLATED] * bool(problems)
        )
        return verdicts

    def _clause_verdicts(self, results: list[ScenarioResult]) -> dict[str, ClauseVerdict]:
        declared = {p for profiles in self._workers.values() for p in profiles}
        verdicts: dict[str, ClauseVerdict] = {}
        for clause in self._clauses.values():
            verdict = ClauseVerdict(clause)
            verdict.results = [r for r in results if clause.id in r.clauses]
            if self._selected is not None and not verdict.results:
                continue
            for result in results:
                if result.failed:
                    verdict.findings += self._findings(clause.id, result)
            if clause.profile not in declared:
                verdict.verdict = NOT_APPLICABLE
                verdict.reason = f"the profile {clause.profile} is not declared"
            else:
                self._decide(verdict)
            verdicts[clause.id] = verdict
        return verdicts

    def _findings(self, clause: str, result: ScenarioResult) -> list[Finding]:
        return [
            Finding(result.worker, result.name, evidence,
                    self._waiver(clause, result, evidence.text))
            for evidence in result.findings()
            if evidence.clause == clause or (evidence.clause is None and clause in result.clauses)
        ]  # fmt: skip

    def _waiver(self, clause: str, result: ScenarioResult, text: str) -> Expectation | None:
        for expectation in self._active:
            if expectation.waives(clause, result.name, result.worker, text):
                self._used.add(id(expectation))
                return expectation
        return None

    def _decide(self, verdict: ClauseVerdict) -> None:
        unwaived = [f for f in verdict.findings if f.waived_by is None]
        if unwaived:
            verdict.verdict = VIOLATED
            verdict.reason = unwaived[0].evidence.text
        elif verdict.findings:
            verdict.verdict = WAIVED
            verdict.reason = verdict.findings[0].evidence.text
        elif any(r.outcome == "pass" for r in verdict.results):
            verdict.verdict = PROVEN
        else:
            self._not_exercised(verdict)

    def _not_exercised(self, verdict: ClauseVerdict) -> None:
        if not verdict.results:
            verdict.reason = "no scenario carries it"
            verdict.too_little = CLAUSES_NEED_SCENARIOS
            return
        reasons = [_why(result) for result in verdict.results]
        verdict.reason = "; ".join(dict.fromkeys(reasons))
        if all(
            self._waiver(verdict.clause.id, result, reason) or self._is_waived(result)
            for result, reason in zip(verdict.results, reasons, strict=True)
        ):
            verdict.verdict = WAIVED
            return
        verdict.too_little = all(r.outcome == "not_exercised" for r in verdict.results)

    def _is_waived(self, result: ScenarioResult) -> bool:
        """Whether a failure that is neutral to a clause is expected as a whole."""
        return result.failed and all(
            e.clause is not None and self._waiver(e.clause, result, e.text)
            for e in result.findings()
        )

    def _expectation_problems(self, results: list[ScenarioResult]) -> list[ExpectationProblem]:
        problems = []
        for expectation in self._expectations:
            problem = self._expectation_problem(expectation, results)
            if problem is not None:
                kind, text = problem
                problems.append(ExpectationProblem(expectation, kind, text))
        return problems

    def _expectation_problem(
        self, expectation: Expectation, results: list[ScenarioResult]
    ) -> tuple[str, str] | None:
        if expectation.expired(self._today):
            return "expired", f"it ended on {expectation.expires}: renew it or remove it"
        exists = (
            expectation.clause in self._clauses
            if expectation.clause
            else any(s.name == expectation.scenario for s in self._catalog)
        )
        if not exists:
            return "stale", "there is no such clause or scenario"
        if expectation not in self._active or id(expectation) in self._used:
            return None
        of_it = [
            r
            for r in results
            if (expectation.clause in r.clauses or r.name == expectation.scenario)
            and expectation.worker in (None, r.worker)
        ]
        if not of_it:
            return None if self._selected is not None else ("stale", "nothing of this runs")
        if all(r.outcome == "pass" for r in of_it):
            return "unexpectedly passing", "it passes now: remove the expectation"
        return "stale", "what is found does not match its reason"

    def _profile(self, profile: str, verdicts: Verdicts) -> ProfileVerdict:
        of_it = [v for v in verdicts.clauses.values() if v.clause.profile == profile]
        counts = {
            word: sum(v.verdict == word for v in of_it)
            for word in (PROVEN, VIOLATED, NOT_EXERCISED, WAIVED, NOT_APPLICABLE)
        }
        if not any(profile in profiles for profiles in self._workers.values()):
            return ProfileVerdict(profile, NOT_APPLICABLE, counts)
        decisive = [v for v in of_it if verdicts.counts(v.clause)]
        trouble = any(r.outcome in TROUBLE for r in verdicts.results if r.profile == profile)
        verdict = _worst(
            [VIOLATED] * any(v.verdict == VIOLATED for v in decisive)
            + [INFRASTRUCTURE] * trouble
            + [TOO_LITTLE] * any(v.too_little for v in decisive)
        )
        return ProfileVerdict(profile, verdict, counts)


def _missing(worker: str, scenario: Scenario) -> ScenarioResult:
    return ScenarioResult(
        scenario.name,
        worker,
        scenario.profile,
        scenario.clauses,
        scenario.file,
        scenario.line,
        outcome="missing",
        reason="there is no result",
    )


def _why(result: ScenarioResult) -> str:
    if result.failed:
        return f"{result.name} failed for another clause"
    return result.reason or result.outcome


def _worst(verdicts: list[str]) -> str:
    return min((v for v in verdicts if v in _PRECEDENCE), key=_PRECEDENCE.index, default=CONFORMANT)
