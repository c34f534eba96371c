import copy
import datetime
import html
import io
import pathlib
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from rich.console import Console

from vmmcts import diff
from vmmcts.drivers import Driver
from vmmcts.errors import UsageError
from vmmcts.events import ScenarioResult
from vmmcts.manifest import Manifest, WorkerSpec
from vmmcts.reports import document, junit, page, terminal
from vmmcts.tests.test_verdicts import CLAUSES, ONE, TODAY, TWO, expectation, failing, result
from vmmcts.verdicts import Judge

WORKER = WorkerSpec("c", "c", ("w",), ("core",))


def report(*results: ScenarioResult, **more: Any) -> dict[str, Any]:
    judge = Judge(CLAUSES, [ONE, TWO], {"c": ("core",)}, today=TODAY, **more)
    driver = Driver("vendor", pathlib.Path("/l/libcuda.so.1"), 1, 13000, "NVIDIA H200", "580.1")
    started = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
    manifest = Manifest("mine", "mine.toml", (WORKER,))
    return document.make(
        judge.judge(results), manifest, [WORKER], {"c": "1.0"}, driver, started, 1.5
    )


BAD = failing(ONE, "bytes <lost> \x1b[31m", "A-01")


def test_the_document_says_what_was_run_and_found(tmp_path: pathlib.Path) -> None:
    made = report(BAD, result(TWO))
    assert made["verdict"] == "violated"
    assert made["profiles"]["core"] == {
        "verdict": "violated",
        "proven": 1,
        "violated": 1,
        "not_exercised": 1,
        "waived": 0,
        "not_applicable": 0,
    }
    clause = made["clauses"][0]
    assert (clause["id"], clause["level"], clause["verdict"]) == ("A-01", "M", "violated")
    assert clause["scenarios"][0] == {
        "name": "one",
        "worker": "c",
        "outcome": "fail",
        "seconds": 0.0,
    }
    assert made["scenarios"][0]["reproduce"] == (
        "ci/vmmcts run mine.toml --worker c --filter one --driver vendor"
    )
    document.write(made, tmp_path / "deep" / "r.json")
    assert document.load(tmp_path / "deep" / "r.json") == made


def test_what_is_no_report_is_refused(tmp_path: pathlib.Path) -> None:
    for text, problem in (("{", "not JSON"), ("{}", "no report")):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(UsageError, match=problem):
            document.load(tmp_path / "r.json")
    with pytest.raises(UsageError, match="cannot read"):
        document.load(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        document.save(tmp_path / "file" / "r.json", "")


def test_junit_counts_failures_and_keeps_the_evidence() -> None:
    root = ET.fromstring(junit.render(report(BAD, result(TWO, "not_exercised", reason="why"))))
    suite = root.find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    failure = root.find(".//failure")
    assert failure is not None and failure.text is not None
    assert "[A-01] bytes: bytes <lost>" in failure.text
    assert "--filter one" in failure.text


def test_junit_has_what_is_missing_waived_and_untrue() -> None:
    made = report(
        failing(ONE, "lost", "A-01"), expectations=[expectation(), expectation(clause="A-99")]
    )
    root = ET.fromstring(junit.render(made))
    assert [e.get("type") for e in root.iter("error")] == ["missing"]
    assert [s.get("message") for s in root.iter("skipped")] == ["waived: lost"]
    assert [f.get("type") for f in root.iter("failure")] == ["stale"]


def test_the_page_is_self_contained_and_escapes() -> None:
    text = page.render([report(BAD, result(TWO)), report(result(ONE), result(TWO))])
    assert "bytes &lt;lost&gt;" in text and "<lost>" not in text
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert "--filter one" in html.unescape(text)
    assert text.count("<th>mine</th>") == 2
    assert 'id="A-01"' in text


def test_the_terminal_shows_evidence_and_the_command() -> None:
    stream = io.StringIO()
    terminal.show(report(BAD, result(TWO)), Console(file=stream, width=200))
    shown = stream.getvalue()
    assert "A-01 violated" in shown
    assert "one (c): bytes: bytes <lost>" in shown
    assert "ci/vmmcts run mine.toml" in shown
    assert re.search(r"core +violated +1 +1 +0 +1", shown)


def test_a_diff_tells_better_from_worse() -> None:
    good, bad = report(result(ONE), result(TWO)), report(BAD, result(TWO))
    worse = diff.clauses(good, bad)
    assert [(c.id, c.before, c.after, c.worse) for c in worse] == [
        ("A-01", "proven", "violated", True)
    ]
    assert not diff.clauses(bad, good)[0].worse
    assert diff.clauses(good, copy.deepcopy(good)) == []


def test_a_diff_sees_clauses_that_are_gone_and_new_notes() -> None:
    good = report(result(ONE), result(TWO))
    less = copy.deepcopy(good)
    del less["clauses"][0]
    assert diff.clauses(good, less)[0].after == diff.ABSENT
    assert diff.clauses(good, less)[0].worse
    noted = copy.deepcopy(good)
    noted["scenarios"][1]["notes"] = ["code 999"]
    assert diff.notes(good, noted)[0].after == "code 999"
