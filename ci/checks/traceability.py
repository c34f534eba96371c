#!/usr/bin/env python3
"""Check that clauses, scenarios and mutants go together.

Scenarios and mutants name clauses that exist, in a profile that fits, and each clause has a
scenario. (That each has a mutant is checked where those are.) Reads the sources: it needs no build.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "conformance"))

from vmmcts import clauses, toml  # noqa: E402

_SCENARIO = re.compile(
    r"VMMCTS_SCENARIO\(\s*\"(\w+)\"\s*,\s*((?:\"(?:[^\"\\]|\\.)*\"\s*)+),\s*\"([^\"]*)\"\s*\)"
)
_MACRO = re.compile(r"^VMMCTS_SCENARIO\(", re.MULTILINE)
# A worker with the key's profile may be told of clauses of these.
_FITS = {
    "core": {"core"},
    "rawfd": {"core", "rawfd"},
    "python": {"core", "rawfd", "python"},
    "driver": {"driver"},
}


def scenario_problems(
    file: str, text: str, known: dict[str, clauses.Clause], carried: set[str]
) -> Iterator[str]:
    """What is wrong with the scenarios of one source; ``carried`` gains their clauses."""
    matches = list(_SCENARIO.finditer(text))
    if len(matches) != len(_MACRO.findall(text)):
        yield f"{file}: a VMMCTS_SCENARIO that cannot be read"
    for profile, name, tags in (match.groups() for match in matches):
        for clause in re.findall(r"\[([^\]]+)\]", tags):
            carried.add(clause)
            if clause not in known:
                yield f"{file}: {name.strip()}: no clause {clause}"
            elif known[clause].profile not in _FITS.get(profile, set()):
                yield (
                    f"{file}: {name.strip()}: {clause} is of profile {known[clause].profile}, "
                    f"the scenario of {profile}"
                )


def main() -> int:
    """Run the check."""
    known = clauses.load(ROOT / "conformance" / "clauses")
    carried: set[str] = set()
    found: list[str] = []
    for path in sorted((ROOT / "scenarios").glob("*.cpp")):
        found += scenario_problems(path.name, path.read_text(), known, carried)
    for mutant in toml.load(ROOT / "conformance" / "mutants" / "mutants.toml")["mutant"]:
        found += [
            f"mutants.toml: {mutant['name']}: no clause {clause}"
            for clause in mutant["breaks"]
            if clause not in known
        ]
    found += [f"{c} has no scenario" for c in known if c not in carried]
    for problem in found:
        print(f"traceability: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
