"""What follows from results: see the rules at the top of vmmcts/verdicts.py."""

import datetime
import re
from typing import Any

import pytest

from vmmcts import verdicts
from vmmcts.catalog import Scenario
from vmmcts.clauses import Clause
from vmmcts.events import Evidence, ScenarioResult
from vmmcts.expectations import Expectation, Versions
from vmmcts.verdicts import Judge, Machine, Verdicts

TODAY = datetime.date(2030, 1, 1)
CLAUSES = {
    c.id: c
    for c in (
        Clause("A-01", "M", "core", "t", "s"),
        Clause("A-02", "M", "core", "t", "s"),
        Clause("A-03", "S", "core", "t", "s"),
        Clause("P-01", "M", "python", "t", "s"),
        Clause("D-01", "O", "driver", "t", "s"),
    )
}
ONE = Scenario("one", "core", ("A-01", "A-02"))
TWO = Scenario("two", "core", ("A-02",))
CANARY = Scenario("canary", "core")


def result(scenario: Scenario, outcome: str = "pass", **more: Any) -> ScenarioResult:
    worker = more.pop("worker", "c")
    return ScenarioResult(
        scenario.name, worker, scenario.profile, scenario.clauses, outcome=outcome, **more
    )


def failing(scenario: Scenario, text: str, clause: str | None = None) -> ScenarioResult:
    return result(scenario, "fail", reason=text, evidence=[Evidence("bytes", text, clause)])


def judged(*results: ScenarioResult, **more: Any) -> Verdicts:
    workers = more.pop("workers", {"c": ("core",)})
    catalog = more.pop("catalog", [ONE, TWO])
    troubles = more.pop("troubles", ())
    judge = Judge(CLAUSES, catalog, workers, today=TODAY, **more)
    return judge.judge(results, troubles)


def expectation(**more: Any) -> Expectation:
    values: dict[str, Any] = {
        "reason": re.compile("lost"),
        "link": "l",
        "owner": "o",
        "expires": TODAY,
        "clause": "A-01",
    }
    return Expectation(**{**values, **more})


def test_proven_where_all_pass() -> None:
    found = judged(result(ONE), result(TWO))
    assert found.clauses["A-01"].verdict == verdicts.PROVEN
    assert found.verdict == verdicts.CONFORMANT
    assert found.exit_code == 0
    assert found.profiles["core"].verdict == verdicts.CONFORMANT
    assert found.profiles["python"].verdict == verdicts.NOT_APPLICABLE
    assert found.clauses["P-01"].verdict == verdicts.NOT_APPLICABLE


def test_evidence_without_a_clause_counts_against_all_of_the_scenario() -> None:
    found = judged(failing(ONE, "x"), result(TWO))
    assert found.clauses["A-01"].verdict == verdicts.VIOLATED
    assert found.clauses["A-02"].verdict == verdicts.VIOLATED
    assert found.exit_code == 1


def test_evidence_with_a_clause_narrows_the_failure() -> None:
    found = judged(failing(ONE, "x", "A-01"), result(TWO))
    assert found.clauses["A-01"].verdict == verdicts.VIOLATED
    assert found.clauses["A-02"].verdict == verdicts.PROVEN  # by the scenario two


def test_a_failure_for_another_clause_proves_nothing() -> None:
    found = judged(failing(ONE, "x", "A-02"), result(TWO))
    assert found.clauses["A-01"].verdict == verdicts.NOT_EXERCISED
    assert "failed for another clause" in found.clauses["A-01"].reason
    assert not found.clauses["A-01"].too_little
    assert found.clauses["A-02"].verdict == verdicts.VIOLATED


@pytest.mark.parametrize("outcome", ["fail", "crash", "hang", "protocol"])
def test_a_failure_without_evidence_counts(outcome: str) -> None:
    found = judged(result(ONE, outcome, reason="signal 11"), result(TWO))
    assert found.clauses["A-01"].verdict == verdicts.VIOLATED
    assert "signal 11" in found.clauses["A-01"].reason


def test_one_worker_that_fails_is_enough() -> None:
    found = judged(
        result(ONE),
        result(TWO),
        result(ONE, worker="python"),
        result(TWO, "crash", worker="python"),
        workers={"c": ("core",), "python": ("core",)},
    )
    assert found.clauses["A-01"].verdict == verdicts.PROVEN
    assert found.clauses["A-02"].verdict == verdicts.VIOLATED


def test_a_missing_result_is_no_pass() -> None:
    found = judged(result(ONE))
    assert found.verdict == verdicts.INFRASTRUCTURE
    assert found.exit_code == 3
    assert "two" in found.troubles[0]
    assert found.profiles["core"].verdict == verdicts.INFRASTRUCTURE


def test_trouble_of_the_suite_is_no_pass() -> None:
    assert judged(result(ONE, "infrastructure"), result(TWO)).exit_code == 3
    assert judged(result(ONE), result(TWO), troubles=["it crashed"]).exit_code == 3


def test_a_violation_outweighs_trouble() -> None:
    assert judged(failing(ONE, "x"), troubles=["it crashed"]).exit_code == 1


def test_a_witness_that_misses_its_canary_is_trouble() -> None:
    found = judged(result(ONE), result(TWO), result(CANARY, "fail"), catalog=[ONE, TWO, CANARY])
    assert found.verdict == verdicts.INFRASTRUCTURE
    assert "canary" in found.troubles[0]


def test_too_little_exercised() -> None:
    found = judged(result(ONE, "not_exercised", reason="no tap"), result(TWO))
    assert found.clauses["A-01"].verdict == verdicts.NOT_EXERCISED
    assert found.clauses["A-01"].reason == "no tap"
    assert found.clauses["A-02"].verdict == verdicts.PROVEN
    assert found.exit_code == 4


def test_one_pass_exercises_a_clause() -> None:
    found = judged(result(ONE), result(TWO, "not_exercised"))
    assert found.exit_code == 0


def test_a_clause_without_a_scenario_is_counted_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = judged(result(TWO), catalog=[TWO])
    assert found.clauses["A-01"].reason == "no scenario carries it"
    assert found.profiles["core"].counts[verdicts.NOT_EXERCISED] == 2
    assert found.exit_code == 0
    monkeypatch.setattr(verdicts, "CLAUSES_NEED_SCENARIOS", True)
    assert judged(result(TWO), catalog=[TWO]).exit_code == 4


def test_should_clauses_decide_only_when_strict() -> None:
    should = Scenario("should", "core", ("A-03",))
    more: dict[str, Any] = {"catalog": [ONE, should]}
    assert judged(result(ONE), failing(should, "x"), **more).exit_code == 0
    assert judged(result(ONE), failing(should, "x"), strict=True, **more).exit_code == 1


def test_observed_clauses_never_decide() -> None:
    observed = Scenario("observed", "driver", ("D-01",))
    found = judged(
        failing(observed, "x"), catalog=[observed], workers={"c": ("driver",)}, strict=True
    )
    assert found.clauses["D-01"].verdict == verdicts.VIOLATED
    assert found.exit_code == 0


def test_a_failure_that_no_clause_speaks_of_is_trouble() -> None:
    stray = Scenario("stray", "core", ("Z-99",))
    assert judged(failing(stray, "x"), catalog=[stray]).exit_code == 3


def test_what_was_not_selected_is_not_judged() -> None:
    found = judged(result(TWO), selected=["two"])
    assert set(found.clauses) == {"A-02"}
    assert found.exit_code == 0


def test_an_expectation_waives_what_its_reason_matches() -> None:
    found = judged(failing(ONE, "bytes lost", "A-01"), result(TWO), expectations=[expectation()])
    assert found.clauses["A-01"].verdict == verdicts.WAIVED
    assert found.exit_code == 0


def test_another_failure_of_the_same_clause_is_not_waived() -> None:
    found = judged(failing(ONE, "it crashed", "A-01"), result(TWO), expectations=[expectation()])
    assert found.clauses["A-01"].verdict == verdicts.VIOLATED
    assert [p.kind for p in found.problems] == ["stale"]


def test_an_expectation_of_a_scenario_covers_all_its_clauses() -> None:
    expected = expectation(clause=None, scenario="one")
    found = judged(failing(ONE, "lost"), result(TWO), expectations=[expected])
    assert found.clauses["A-01"].verdict == found.clauses["A-02"].verdict == verdicts.WAIVED
    found = judged(failing(ONE, "lost", "A-02"), result(TWO), expectations=[expected])
    assert found.clauses["A-01"].verdict == verdicts.WAIVED  # nothing else could prove it
    assert found.exit_code == 0


def test_an_expectation_waives_what_a_machine_cannot_exercise() -> None:
    found = judged(
        result(ONE, "not_exercised", reason="lost for one device"),
        result(TWO),
        expectations=[expectation()],
    )
    assert found.clauses["A-01"].verdict == verdicts.WAIVED
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "unexpectedly passing"),
        ({"expires": datetime.date(2029, 12, 31)}, "expired"),
        ({"clause": "A-99"}, "stale"),
        ({"clause": None, "scenario": "three"}, "stale"),
        ({"worker": "python"}, "stale"),
    ],
)
def test_an_untrue_expectation_fails_the_run(change: dict[str, Any], kind: str) -> None:
    found = judged(result(ONE), result(TWO), expectations=[expectation(**change)])
    assert [p.kind for p in found.problems] == [kind]
    assert found.exit_code == 1


def test_an_expired_expectation_waives_nothing() -> None:
    expected = expectation(expires=datetime.date(2029, 12, 31))
    found = judged(failing(ONE, "lost", "A-01"), result(TWO), expectations=[expected])
    assert found.clauses["A-01"].verdict == verdicts.VIOLATED


@pytest.mark.parametrize(
    ("driver", "device", "waived"),
    [("", "", True), (">=13.0,<13.1", "H200", True), ("<13.0", "", False), ("", "H100", False)],
)
def test_an_expectation_holds_under_its_conditions(driver: str, device: str, waived: bool) -> None:
    expected = expectation(driver=Versions.parse(driver), device=re.compile(device))
    found = judged(
        failing(ONE, "lost", "A-01"),
        result(TWO),
        expectations=[expected],
        machine=Machine(13000, "NVIDIA H200"),
    )
    assert (found.clauses["A-01"].verdict == verdicts.WAIVED) == waived
    assert not found.problems  # elsewhere it says nothing


def test_an_expectation_of_what_was_not_selected_is_left_alone() -> None:
    found = judged(result(TWO), selected=["two"], expectations=[expectation()])
    assert found.exit_code == 0


@pytest.mark.parametrize("text", ["13", ">=x", "=>13.0", ">= 13.0.1"])
def test_what_is_no_range_of_versions(text: str) -> None:
    with pytest.raises(ValueError, match="no range"):
        Versions.parse(text)
