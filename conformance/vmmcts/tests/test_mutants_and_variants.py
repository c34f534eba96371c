import pathlib
import re

import pytest

from vmmcts import mutants
from vmmcts.catalog import Scenario
from vmmcts.errors import UsageError
from vmmcts.events import Evidence, ScenarioResult
from vmmcts.layout import Layout
from vmmcts.manifest import Manifest
from vmmcts.mutants import Mutant
from vmmcts.plan import Job
from vmmcts.runner import JobResult
from vmmcts.tests.conftest import SOURCE
from vmmcts.variants import VARIANTS

MUTANT = Mutant("m", "table", ("A-01", "A-02"), "wrong")
SCENARIOS = [
    Scenario("one", "core", ("A-01",)),
    Scenario("two", "core", ("A-02",)),
    Scenario("far", "python", ("A-01",)),
    Scenario("canary", "core"),
]


def fate(layout: Layout, outcome: str, clause: str | None, carried: str = "A-01") -> str:
    evidence = [Evidence("bytes", "t", clause)] if outcome == "fail" else []
    result = ScenarioResult("one", "c", "core", (carried,), outcome=outcome, evidence=evidence)
    job = Job("m", MUTANT.worker(layout), ("one",))
    return mutants.judge(MUTANT, JobResult(job, None, [result], [])).fate


def test_the_scenarios_of_its_clause_are_run(layout: Layout) -> None:
    assert mutants.job(MUTANT, layout, SCENARIOS, False).scenarios == ("one",)
    assert mutants.job(MUTANT, layout, SCENARIOS, True).scenarios == ("one", "two")


def test_what_becomes_of_a_mutant(layout: Layout) -> None:
    assert fate(layout, "fail", "A-01") == mutants.KILLED
    assert fate(layout, "fail", None) == mutants.KILLED
    assert fate(layout, "crash", None) == mutants.KILLED
    assert fate(layout, "pass", None) == mutants.SURVIVED
    assert fate(layout, "not_exercised", None) == mutants.SURVIVED
    assert fate(layout, "infrastructure", None) == mutants.NOT_TRIED
    assert fate(layout, "fail", "A-02") == mutants.KILLED_ELSEWHERE
    assert fate(layout, "fail", None, carried="A-02") == mutants.KILLED_ELSEWHERE
    assert mutants.judge(MUTANT, None).fate == mutants.NOT_TRIED


def test_a_scenario_that_fails_anyway_catches_nothing(layout: Layout) -> None:
    worker = MUTANT.worker(layout)
    results = [
        ScenarioResult("one", "c", "core", ("A-01",), outcome="fail"),
        ScenarioResult("two", "c", "core", ("A-02",), outcome="pass"),
    ]
    base = JobResult(Job("reference", worker, ("one", "two", "gone")), None, results, [])
    failing = mutants.failing([base])
    assert failing == {"c": {"one", "gone"}}
    done = JobResult(Job("m", worker, ("one",)), None, results[:1], [])
    assert mutants.judge(MUTANT, done).fate == mutants.KILLED
    assert mutants.judge(MUTANT, done, failing["c"]).fate == mutants.NOT_TRIED


def test_the_base_runs_what_the_mutants_run(layout: Layout) -> None:
    manifest = Manifest("reference", "reference", (MUTANT.worker(layout),))
    jobs = [mutants.job(m, layout, SCENARIOS, False) for m in (MUTANT, MUTANT)]
    (base,) = mutants.base_jobs(jobs, manifest)
    assert base.scenarios == ("one",)


def test_an_unknown_kind_is_named(layout: Layout) -> None:
    with pytest.raises(UsageError, match="of no known kind: odd"):
        Mutant("m", "odd", ("A-01",), "").worker(layout)


def test_the_list_of_mutants_loads(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "conformance" / "mutants"
    folder.mkdir(parents=True)
    (folder / "mutants.toml").write_text(
        '[[mutant]]\nname = "a"\nkind = "python"\nclass = "A"\nbreaks = ["A-01"]\n'
        'description = "d"\n'
    )
    layout = Layout(tmp_path, tmp_path)
    assert mutants.load(layout)[0].worker(layout).command[-1] == "mutants.python_mutants:A"
    with pytest.raises(UsageError, match="no mutant b"):
        mutants.load(layout, ["b"])


def test_the_variants_are_those_of_the_software_driver() -> None:
    source = (SOURCE / "reference/softcuda/profile.cpp").read_text()
    table = source.split("kVariants = {", 1)[1].split("};", 1)[0]
    assert re.findall(r'\{"([\w-]+)"', table) == [variant.name for variant in VARIANTS]
