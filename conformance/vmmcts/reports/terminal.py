"""What a run prints: verdict per profile, and what has to be looked at."""

from __future__ import annotations

import collections
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vmmcts import verdicts

STYLES = {
    verdicts.CONFORMANT: "green",
    verdicts.PROVEN: "green",
    verdicts.VIOLATED: "bold red",
    verdicts.INFRASTRUCTURE: "bold magenta",
    verdicts.TOO_LITTLE: "bold yellow",
    verdicts.NOT_EXERCISED: "yellow",
    verdicts.WAIVED: "cyan",
    verdicts.NOT_APPLICABLE: "dim",
}
_COLUMNS = (verdicts.PROVEN, verdicts.VIOLATED, verdicts.WAIVED, verdicts.NOT_EXERCISED)
_EVIDENCE_SHOWN = 3


def styled(verdict: str) -> str:
    """A verdict in its colour."""
    return f"[{STYLES.get(verdict, 'default')}]{escape(verdict)}[/]"


def show(report: dict[str, Any], console: Console) -> None:
    """Prints the report: problems first, the verdicts last."""
    violated = [c for c in report["clauses"] if c["verdict"] == verdicts.VIOLATED]
    for clause in violated:
        _violation(clause, report, console)
    for trouble in report["troubles"]:
        console.print(f"[bold magenta]infrastructure[/] {escape(trouble)}", soft_wrap=True)
    for problem in report["expectations"]:
        console.print(
            f"[bold red]expectation {escape(problem['problem'])}[/] {escape(problem['target'])}: "
            f"{escape(problem['text'])} (owner {escape(problem['owner'])})",
            soft_wrap=True,
        )
    _not_exercised(report, console)
    console.print(profiles(report))
    driver = report["driver"]
    version = driver["version"]
    console.print(
        f"{escape(report['implementation'])} on {escape(driver['name'])} "
        f"{version // 1000}.{version % 1000 // 10}"
        f"{escape(' ' + driver['release']) if driver['release'] else ''} "
        f"({escape(report['device'])}, {report['devices']} devices): "
        f"{len(report['scenarios'])} results in {report['seconds']:.1f} s: "
        f"{styled(report['verdict'])}",
        soft_wrap=True,
        highlight=False,
    )


def show_verdict(report: dict[str, Any], clause: str, name: str, console: Console) -> None:
    """Prints what the report came to for one clause."""
    driver = f"{report['driver']['name']} {report['driver']['release']}".strip()
    for found in report["clauses"]:
        if found["id"] == clause:
            text = f"  {styled(found['verdict'])} on {escape(driver)} [dim]{escape(name)}[/]"
            console.print(text, highlight=False)


def _violation(clause: dict[str, Any], report: dict[str, Any], console: Console) -> None:
    word = "violated" if clause["counts"] else f"violated (level {clause['level']}, not decisive)"
    console.print(f"[bold red]{clause['id']} {word}[/] {escape(clause['text'])}", soft_wrap=True)
    reproduce = {(s["worker"], s["name"]): s["reproduce"] for s in report["scenarios"]}
    evidence = [e for e in clause["evidence"] if "waived_by" not in e]
    shown = set()
    for entry in evidence[:_EVIDENCE_SHOWN]:
        console.print(
            f"    {escape(entry['scenario'])} ({escape(entry['worker'])}): "
            f"{escape(entry['witness'])}: {escape(entry['text'])}",
            soft_wrap=True,
            highlight=False,
        )
        key = (entry["worker"], entry["scenario"])
        if key not in shown:
            shown.add(key)
            console.print(f"    [dim]{escape(reproduce.get(key, ''))}[/]", soft_wrap=True)
    if len(evidence) > _EVIDENCE_SHOWN:
        console.print(f"    and {len(evidence) - _EVIDENCE_SHOWN} more")


def _not_exercised(report: dict[str, Any], console: Console) -> None:
    reasons = collections.defaultdict(list)
    for clause in report["clauses"]:
        if clause["verdict"] == verdicts.NOT_EXERCISED and clause["level"] != "O":
            reasons[clause["reason"]].append(clause["id"])
    for reason, ids in reasons.items():
        console.print(
            f"[yellow]not exercised[/] {len(ids)}: {' '.join(ids)}: {escape(reason)}",
            soft_wrap=True,
            highlight=False,
        )


def profiles(report: dict[str, Any]) -> Table:
    """The table of verdicts per profile."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("profile")
    table.add_column("verdict")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for name, profile in report["profiles"].items():
        counts = [profile[column.replace(" ", "_")] for column in _COLUMNS]
        cells = [str(count) if profile["verdict"] != verdicts.NOT_APPLICABLE else ""
                 for count in counts]  # fmt: skip
        table.add_row(name, styled(profile["verdict"]), *cells)
    return table
