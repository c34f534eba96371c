"""The clauses: what an implementation must do (``conformance/clauses``)."""

from __future__ import annotations

import dataclasses
import pathlib
import re

from vmmcts import toml
from vmmcts.errors import UsageError

LEVELS = {"M": "must", "S": "should", "O": "observed"}
PROFILES = ("core", "rawfd", "python", "driver")
_ID = re.compile(r"[A-Z]+-\d\d")
_KEYS = {"id", "level", "profile", "text", "source", "facts"}


@dataclasses.dataclass(frozen=True)
class Clause:
    """One rule."""

    id: str
    level: str
    profile: str
    text: str
    source: str
    facts: tuple[str, ...] = ()

    @property
    def area(self) -> str:
        """The area that the id begins with."""
        return self.id.partition("-")[0]


def load(directory: pathlib.Path) -> dict[str, Clause]:
    """Every clause by its id, in the order of the files. UsageError names what is malformed."""
    clauses: dict[str, Clause] = {}
    for path in sorted(directory.glob("*.toml")):
        for entry in toml.load(path).get("clause", []):
            name = f"{path.name}: {entry.get('id', 'a clause without id')}"
            if unknown := set(entry) - _KEYS:
                raise UsageError(f"{name}: unknown keys {', '.join(sorted(unknown))}")
            if missing := _KEYS - {"facts"} - set(entry):
                raise UsageError(f"{name}: no {', '.join(sorted(missing))}")
            clause = Clause(
                entry["id"],
                entry["level"],
                entry["profile"],
                " ".join(entry["text"].split()),
                entry["source"],
                tuple(entry.get("facts", ())),
            )
            if not _ID.fullmatch(clause.id) or clause.id in clauses:
                raise UsageError(f"{name}: ids are AREA-NN, each once")
            if clause.area.lower() != path.stem:
                raise UsageError(f"{name}: belongs in {clause.area.lower()}.toml")
            if clause.level not in LEVELS or clause.profile not in PROFILES:
                raise UsageError(f"{name}: level is one of M S O, profile one of {PROFILES}")
            if not clause.text or not clause.source.strip():
                raise UsageError(f"{name}: text and source are not empty")
            clauses[clause.id] = clause
    if not clauses:
        raise UsageError(f"no clauses in {directory}")
    return clauses
