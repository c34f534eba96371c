"""The HTML report: one self-contained page, clauses × implementations."""

from __future__ import annotations

from typing import Any

import jinja2

from vmmcts import verdicts
from vmmcts.clauses import LEVELS


def render(reports: list[dict[str, Any]]) -> str:
    """The page of one run or several; each is a column."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vmmcts.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows: dict[str, dict[str, Any]] = {}
    for column, report in enumerate(reports):
        reproduce = {(s["worker"], s["name"]): s["reproduce"] for s in report["scenarios"]}
        for clause in report["clauses"]:
            row = rows.setdefault(clause["id"], {**clause, "cells": [None] * len(reports)})
            for evidence in clause["evidence"]:
                evidence["reproduce"] = reproduce.get(
                    (evidence["worker"], evidence["scenario"]), ""
                )
            row["cells"][column] = clause
    return environment.get_template("report.html.j2").render(
        reports=reports, rows=list(rows.values()), levels=LEVELS, violated=verdicts.VIOLATED
    )
