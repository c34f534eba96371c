"""The JSON report: the one that is kept and compared, and that the others are made from."""

from __future__ import annotations

import datetime
import json
import pathlib
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from vmmcts.drivers import SOFTCUDA, Driver
from vmmcts.errors import UsageError
from vmmcts.events import Evidence, ScenarioResult
from vmmcts.manifest import Manifest, WorkerSpec
from vmmcts.verdicts import ClauseVerdict, Finding, Verdicts

_VERSION = 1


def make(
    verdicts: Verdicts,
    manifest: Manifest,
    workers: Iterable[WorkerSpec],
    versions: Mapping[str, str],
    driver: Driver,
    started: datetime.datetime,
    seconds: float,
) -> dict[str, Any]:
    """The report of a run."""
    return {
        "version": _VERSION,
        "verdict": verdicts.verdict,
        "exit_code": int(verdicts.exit_code),
        "strict": verdicts.strict,
        "implementation": manifest.name,
        "target": manifest.target,
        "workers": {
            w.name: {"kind": w.kind, "profiles": list(w.profiles), "version": versions[w.name]}
            for w in workers
        },
        "driver": {
            "name": driver.name,
            "version": driver.version,
            "release": driver.release,
            "variant": driver.variant,
        },
        "device": driver.device,
        "devices": driver.devices,
        "date": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "profiles": {
            name: {
                "verdict": profile.verdict,
                **{word.replace(" ", "_"): count for word, count in profile.counts.items()},
            }
            for name, profile in verdicts.profiles.items()
        },
        "clauses": [_clause(v, verdicts) for v in verdicts.clauses.values()],
        "scenarios": [_scenario(r, manifest, driver) for r in verdicts.results],
        "expectations": [
            {
                "target": p.expectation.target,
                "problem": p.kind,
                "text": p.text,
                "owner": p.expectation.owner,
                "link": p.expectation.link,
            }
            for p in verdicts.problems
        ],
        "troubles": verdicts.troubles,
    }


def _clause(verdict: ClauseVerdict, verdicts: Verdicts) -> dict[str, Any]:
    clause = verdict.clause
    return {
        "id": clause.id,
        "level": clause.level,
        "profile": clause.profile,
        "text": clause.text,
        "source": clause.source,
        "verdict": verdict.verdict,
        "counts": verdicts.counts(clause),
        "too_little": verdict.too_little,
        "reason": verdict.reason,
        "scenarios": [
            {
                "name": r.name,
                "worker": r.worker,
                "outcome": r.outcome,
                "seconds": round(r.seconds, 4),
            }
            for r in verdict.results
        ],
        "evidence": [_finding(finding) for finding in verdict.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    entry = {"worker": finding.worker, "scenario": finding.scenario, **_evidence(finding.evidence)}
    if finding.waived_by is not None:
        entry["waived_by"] = {"link": finding.waived_by.link, "owner": finding.waived_by.owner}
    return entry


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {"witness": evidence.witness, "text": evidence.text, "clause": evidence.clause}


def _scenario(result: ScenarioResult, manifest: Manifest, driver: Driver) -> dict[str, Any]:
    return {
        "name": result.name,
        "worker": result.worker,
        "profile": result.profile,
        "clauses": list(result.clauses),
        "outcome": result.outcome,
        "seconds": round(result.seconds, 4),
        "reason": result.reason,
        "file": result.file,
        "line": result.line,
        "evidence": [_evidence(evidence) for evidence in result.evidence],
        "notes": result.notes,
        "reproduce": reproduce(manifest.target, result, driver),
    }


def reproduce(target: str, result: ScenarioResult, driver: Driver) -> str:
    """The command that runs one scenario again."""
    words = ["ci/vmmcts", "run", target, "--worker", result.worker, "--filter", result.name]
    if driver.name != SOFTCUDA:
        words += ["--driver", driver.name]
    variant = f"SOFTCUDA_VARIANT={shlex.quote(driver.variant)} " if driver.variant else ""
    return variant + shlex.join(words)


def load(path: pathlib.Path) -> dict[str, Any]:
    """Reads a report. UsageError when the file is none."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(report, dict) or report.get("version") != _VERSION or "clauses" not in report:
        raise UsageError(f"{path} is no report of `vmmcts run --json` of this version")
    return report


def write(report: dict[str, Any], path: pathlib.Path) -> None:
    """Writes a report."""
    save(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def save(path: pathlib.Path, text: str) -> None:
    """Writes the file of a report. UsageError when it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
