#!/usr/bin/env python3
"""Check mutants.toml: every mutant exists, and every clause that must hold has one that breaks it.

Needs no build: the registries are read as text.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HERE = pathlib.Path(__file__).parent
_CLAUSES = _HERE.parent / "clauses"
_PROFILES = ("core", "rawfd", "python")
_KEYS = {"name", "kind", "class", "breaks", "subtle", "description"}


def load() -> dict[str, Any]:
    """Return mutants.toml."""
    return tomllib.loads((_HERE / "mutants.toml").read_text())


def registered() -> dict[str, set[str]]:
    """Return the names that the registries hold, by kind."""
    table: set[str] = set()
    for source in _HERE.glob("*.cpp"):
        table.update(re.findall(r"^VMMCTS_MUTANT\((\w+)\)", source.read_text(), re.MULTILINE))
    listed = (_HERE / "python_mutants.py").read_text().split("REGISTRY", 1)[1]
    return {
        "table": table,
        "patch": {patch.stem for patch in (_HERE / "patches").glob("*.patch")},
        "python": set(re.findall(r"^        (\w+),$", listed, re.MULTILINE)),
    }


def clauses() -> list[dict[str, Any]]:
    """Return the clauses of conformance/clauses."""
    found = []
    for file in sorted(_CLAUSES.glob("*.toml")):
        found += tomllib.loads(file.read_text()).get("clause", [])
    return found


def registry_problems(mutants: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong between mutants.toml and the registries."""
    listed: dict[str, set[str]] = {"table": set(), "patch": set(), "python": set()}
    names: set[str] = set()
    for mutant in mutants:
        name = mutant["name"]
        if name in names:
            yield f"{name}: listed twice"
        names.add(name)
        if unknown := set(mutant) - _KEYS:
            yield f"{name}: unknown keys {sorted(unknown)}"
        if not mutant["breaks"] or not mutant["description"]:
            yield f"{name}: breaks or description is empty"
        listed[mutant["kind"]].add(mutant["class"] if mutant["kind"] == "python" else name)
    for kind, known in registered().items():
        for name in sorted(listed[kind] - known):
            yield f"{name}: no {kind} mutant has this name"
        for name in sorted(known - listed[kind]):
            yield f"{name}: a {kind} mutant that mutants.toml does not list"


def clause_problems(
    mutants: list[dict[str, Any]], exempt: Iterable[str], known: list[dict[str, Any]]
) -> Iterator[str]:
    """Yield the clauses without a mutant, and those that mutants name and nobody has written."""
    ids = {clause["id"] for clause in known}
    main = {mutant["breaks"][0] for mutant in mutants}
    for clause in known:
        wanted = clause["level"] == "M" and clause["profile"] in _PROFILES
        if wanted and clause["id"] not in main and clause["id"] not in exempt:
            yield f"{clause['id']}: no mutant breaks it"
    for mutant in mutants:
        for broken in mutant["breaks"]:
            if broken not in ids:
                yield f"{mutant['name']}: no clause {broken}"
    for clause_id in exempt:
        if clause_id in main:
            yield f"{clause_id}: exempt, and has a mutant"


def problems() -> list[str]:
    """Return everything that is wrong."""
    loaded = load()
    mutants, known = loaded["mutant"], clauses()
    exempt = [entry["clause"] for entry in loaded.get("exempt", [])]
    found = list(registry_problems(mutants))
    if known:
        found += clause_problems(mutants, exempt, known)
    return found


def main() -> int:
    """Run the check."""
    found = problems()
    for problem in found:
        print(f"mutants.toml: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
