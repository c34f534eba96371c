"""The JUnit report: a suite for each worker, a test case for each scenario."""

from __future__ import annotations

import collections
import re
import xml.etree.ElementTree as ET
from typing import Any

from vmmcts.events import FAILED, TROUBLE

# What XML 1.0 cannot hold.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: dict[str, Any]) -> str:
    """The report as XML. A scenario whose failure is waived counts as skipped."""
    waived = {
        (e["worker"], e["scenario"])
        for clause in report["clauses"]
        for e in clause["evidence"]
        if "waived_by" in e
    } - {
        (e["worker"], e["scenario"])
        for clause in report["clauses"]
        for e in clause["evidence"]
        if "waived_by" not in e
    }
    by_worker = collections.defaultdict(list)
    for scenario in report["scenarios"]:
        by_worker[scenario["worker"]].append(scenario)
    root = ET.Element("testsuites", name=report["implementation"], time=str(report["seconds"]))
    for worker, scenarios in by_worker.items():
        suite = ET.SubElement(root, "testsuite", name=f"{report['implementation']}.{worker}")
        counts = collections.Counter[str]()
        for scenario in scenarios:
            counts[_case(suite, scenario, (worker, scenario["name"]) in waived)] += 1
        suite.set("tests", str(len(scenarios)))
        for kind in ("failures", "errors", "skipped"):
            suite.set(kind, str(counts[kind]))
        suite.set("time", f"{sum(s['seconds'] for s in scenarios):.4f}")
        suite.set("timestamp", report["date"])
    _expectations(root, report)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, scenario: dict[str, Any], waived: bool) -> str:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=f"{suite.get('name')}.{scenario['profile']}",
        name=_clean(scenario["name"]),
        time=f"{scenario['seconds']:.4f}",
    )
    outcome, reason = scenario["outcome"], _clean(scenario["reason"])
    kind = ""
    if outcome in FAILED and not waived:
        kind = "failures"
        failure = ET.SubElement(case, "failure", type=outcome, message=reason)
        lines = [
            f"[{e['clause'] or 'every clause'}] {e['witness']}: {e['text']}"
            for e in scenario["evidence"]
        ]
        failure.text = _clean("\n".join([*lines, scenario["reproduce"]]))
    elif outcome in TROUBLE:
        kind = "errors"
        ET.SubElement(case, "error", type=outcome, message=reason)
    elif outcome != "pass":
        kind = "skipped"
        ET.SubElement(case, "skipped", message=f"waived: {reason}" if waived else reason)
    if scenario["notes"]:
        ET.SubElement(case, "system-out").text = _clean("\n".join(scenario["notes"]))
    return kind


def _expectations(root: ET.Element, report: dict[str, Any]) -> None:
    problems = report["expectations"]
    if not problems:
        return
    suite = ET.SubElement(
        root, "testsuite", name="expectations", tests=str(len(problems)),
        failures=str(len(problems)), errors="0", skipped="0",
    )  # fmt: skip
    for problem in problems:
        case = ET.SubElement(suite, "testcase", classname="expectations", name=problem["target"])
        message = f"{problem['problem']}: {problem['text']}"
        ET.SubElement(case, "failure", type=problem["problem"], message=_clean(message))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
