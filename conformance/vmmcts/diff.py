"""Comparing two reports clause by clause."""

from __future__ import annotations

import dataclasses
from typing import Any

from vmmcts import verdicts

ABSENT = "absent"
#: From good to bad; a step to the right is worse.
_ORDER = (verdicts.PROVEN, verdicts.WAIVED, verdicts.NOT_APPLICABLE, verdicts.NOT_EXERCISED, ABSENT,
          verdicts.VIOLATED)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Change:
    """One clause, or one note of a scenario, that differs."""

    id: str
    before: str
    after: str
    reason: str = ""

    @property
    def worse(self) -> bool:
        """Whether a clause got worse."""
        return _ORDER.index(self.after) > _ORDER.index(self.before)


def clauses(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """The clauses whose verdicts differ."""
    old = {clause["id"]: clause for clause in before["clauses"]}
    new = {clause["id"]: clause for clause in after["clauses"]}
    changes = []
    for clause_id in dict.fromkeys([*old, *new]):
        was = old.get(clause_id, {}).get("verdict", ABSENT)
        clause = new.get(clause_id, {})
        now = clause.get("verdict", ABSENT)
        if was != now:
            changes.append(Change(clause_id, was, now, clause.get("reason", "")))
    return changes


def notes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """What scenarios measured and noted, where it differs: "observed" answers of a driver."""
    old, new = _noted(before), _noted(after)
    return [
        Change(f"{worker}: {name}", "; ".join(old[worker, name]), "; ".join(new[worker, name]))
        for worker, name in old
        if (worker, name) in new and old[worker, name] != new[worker, name]
    ]


def _noted(report: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    return {(s["worker"], s["name"]): s["notes"] for s in report["scenarios"]}
