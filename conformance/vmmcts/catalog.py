"""The scenarios that the coordinator has, as ``vmmcts-scenarios --catalog`` lists them."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import pathlib
import subprocess
from collections.abc import Iterable

from vmmcts.errors import InfrastructureError, UsageError

_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One scenario. Without clauses it is a canary: it checks a witness, and runs every time."""

    name: str
    profile: str
    clauses: tuple[str, ...] = ()
    file: str = ""
    line: int = 0


def load(program: pathlib.Path) -> list[Scenario]:
    """Asks the coordinator. InfrastructureError when it does not answer as agreed."""
    try:
        answer = subprocess.run(
            [str(program), "--catalog"],
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
        found = []
        for line in answer.stdout.splitlines():
            entry = json.loads(line)
            found.append(
                Scenario(
                    entry["name"],
                    entry["profile"],
                    tuple(entry["clauses"]),
                    entry.get("file", ""),
                    entry.get("line", 0),
                )
            )
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{program} --catalog failed: {error}") from error
    return found


def select(
    scenarios: list[Scenario], pattern: str | None, clauses: Iterable[str]
) -> list[Scenario]:
    """The scenarios that a pattern and clauses choose, and every canary.

    The pattern is a part of a name, or with * or ? the whole of one; case does not matter.
    UsageError when nothing is chosen.
    """
    wanted = set(clauses)

    def chosen(scenario: Scenario) -> bool:
        if pattern is not None and not matches(pattern, scenario.name):
            return False
        return not wanted or bool(wanted.intersection(scenario.clauses))

    found = [scenario for scenario in scenarios if chosen(scenario)]
    if not found:
        raise UsageError("no scenario is chosen; `vmmcts scenarios` lists their names and clauses")
    return [s for s in scenarios if s in found or not s.clauses]


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern of the command line means a name."""
    pattern, name = pattern.lower(), name.lower()
    if any(character in pattern for character in "*?"):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern in name
