#!/usr/bin/env python3
"""Print line and branch figures per directory of a tracefile, and hold them to the floors.

    figures.py TRACEFILE FLOORS

A line of FLOORS is a directory, the least percentage of lines, and that of branches.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import sys


@dataclasses.dataclass
class Figures:
    """How many lines and branches there are, and how many were run."""

    lines: int = 0
    lines_hit: int = 0
    branches: int = 0
    branches_hit: int = 0

    def add(self, key: str, count: int) -> None:
        """Take in one total of the tracefile."""
        name = {"LF": "lines", "LH": "lines_hit", "BRF": "branches", "BRH": "branches_hit"}[key]
        setattr(self, name, getattr(self, name) + count)

    def percentages(self) -> tuple[float, float]:
        """The share of lines and of branches that was run."""
        return (
            100.0 * self.lines_hit / self.lines if self.lines else 100.0,
            100.0 * self.branches_hit / self.branches if self.branches else 100.0,
        )


def read(trace: str) -> dict[str, Figures]:
    """Figures by directory, as reference/vmm, of a tracefile's text."""
    found: dict[str, Figures] = collections.defaultdict(Figures)
    directory = ""
    for line in trace.splitlines():
        key, _, value = line.partition(":")
        if key == "SF":
            parts = pathlib.PurePath(value).parts
            start = parts.index("reference") if "reference" in parts else 0
            directory = "/".join(parts[start : start + 2])
        elif key in ("LF", "LH", "BRF", "BRH"):
            found[directory].add(key, int(value))
    return dict(found)


def problems(figures: dict[str, Figures], floors: str) -> list[str]:
    """What is below its floor, or was not measured."""
    found = []
    for line in floors.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        directory, least_lines, least_branches = words[0], float(words[1]), float(words[2])
        if directory not in figures:
            found.append(f"{directory}: no figures")
            continue
        lines, branches = figures[directory].percentages()
        if lines < least_lines:
            found.append(f"{directory}: {lines:.1f}% of lines, the floor is {least_lines:g}%")
        if branches < least_branches:
            found.append(
                f"{directory}: {branches:.1f}% of branches, the floor is {least_branches:g}%"
            )
    return found


def main() -> int:
    """Run the program."""
    figures = read(pathlib.Path(sys.argv[1]).read_text())
    for directory, of_it in sorted(figures.items()):
        lines, branches = of_it.percentages()
        print(
            f"{directory:22} lines {lines:5.1f}% ({of_it.lines_hit}/{of_it.lines}), "
            f"branches {branches:5.1f}% ({of_it.branches_hit}/{of_it.branches})"
        )
    found = problems(figures, pathlib.Path(sys.argv[2]).read_text())
    for problem in found:
        print(f"coverage: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
