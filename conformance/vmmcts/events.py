"""The event log (PROTOCOL.md): reading it as it grows, and what it says of each scenario."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

#: What a scenario that ran can have come to.
FAILED = frozenset({"fail", "crash", "hang", "protocol"})
#: No result: the suite's own trouble.
TROUBLE = frozenset({"infrastructure", "missing"})
OUTCOMES = FAILED | TROUBLE | {"pass", "not_applicable", "not_exercised"}


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Something that a witness saw. ``clause`` is None where every clause is affected."""

    witness: str
    text: str
    clause: str | None = None


@dataclasses.dataclass
class ScenarioResult:
    """One scenario on one worker. Without an end it did not survive: infrastructure."""

    name: str
    worker: str
    profile: str = ""
    clauses: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    outcome: str = "infrastructure"
    seconds: float = 0.0
    reason: str = "the coordinator ended in the middle of it"
    ended: bool = False
    evidence: list[Evidence] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the implementation failed it."""
        return self.outcome in FAILED

    def findings(self) -> list[Evidence]:
        """The evidence of a failure; its reason where a witness left none."""
        if not self.failed or self.evidence:
            return self.evidence
        return [Evidence("process", f"{self.outcome}: {self.reason}")]


@dataclasses.dataclass
class RunInfo:
    """What the ``run`` event says."""

    implementation: str = ""
    worker: str = ""
    worker_version: str = ""
    driver_version: int = 0
    time: str = ""


class EventTail:
    """Reads the lines that a log has gained, whole ones only."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """The events since the last call. A line that is no JSON object becomes ``malformed``."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict) or "event" not in event:
                event = {"event": "malformed", "line": line.decode(errors="replace")}
            events.append(event)
        return events


class EventReader:
    """Turns the events of one worker, from any number of logs, into results."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.info: RunInfo | None = None
        self.results: dict[str, ScenarioResult] = {}
        self._latest: dict[str, ScenarioResult] = {}
        self.malformed: list[str] = []

    def feed(self, event: dict[str, Any]) -> None:
        """Takes one event in; what does not fit is kept in ``malformed``."""
        handler = getattr(self, "_on_" + str(event["event"]).replace(".", "_"), None)
        try:
            if handler is None:
                raise KeyError(event["event"])
            handler(event)
        except (KeyError, TypeError, ValueError):
            self.malformed.append(event.get("line", json.dumps(event))[:200])

    def running(self) -> list[str]:
        """The scenarios that started and have no end."""
        return [name for name, result in self._latest.items() if not result.ended]

    def _on_run(self, event: dict[str, Any]) -> None:
        self.info = RunInfo(
            event["implementation"],
            event["worker"],
            event.get("worker_version", ""),
            int(event.get("driver_version", 0)),
            event.get("time", ""),
        )

    def _on_scenario_start(self, event: dict[str, Any]) -> None:
        name = event["name"]
        started = ScenarioResult(
            name,
            self.worker,
            event["profile"],
            tuple(event["clauses"]),
            event.get("file", ""),
            int(event.get("line", 0)),
        )
        # Of several rounds the first that failed counts.
        if name not in self.results or self.results[name].outcome not in FAILED | TROUBLE:
            self.results[name] = started
        self._latest[name] = started

    def _on_note(self, event: dict[str, Any]) -> None:
        self._latest[event["scenario"]].notes.append(event["text"])

    def _on_evidence(self, event: dict[str, Any]) -> None:
        self._latest[event["scenario"]].evidence.append(
            Evidence(event["witness"], event["text"], event.get("clause"))
        )

    def _on_scenario_end(self, event: dict[str, Any]) -> None:
        result = self._latest[event["name"]]
        if event["outcome"] not in OUTCOMES:
            raise ValueError(event["outcome"])
        result.outcome = event["outcome"]
        result.seconds = float(event["seconds"])
        result.reason = str(event.get("reason", ""))
        result.ended = True

    def _on_run_end(self, event: dict[str, Any]) -> None:
        pass
