"""The command line as a user meets it: exit codes, one-line errors, nothing left behind."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from vmmcts.layout import Layout
from vmmcts.tests.conftest import SOURCE, Play


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "vmmcts", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE / "conformance"), "COLUMNS": "200"},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def mine(tmp_path: pathlib.Path, layout: Layout) -> str:
    """A manifest with two workers."""
    path = tmp_path / "mine.toml"
    worker = (
        'kind = "c"\ncommand = ["{build}/bin/vmmcts-worker", "{build}/lib/libreference.so"]\n'
        'profiles = ["core"]\n'
    )
    path.write_text(f'name = "mine"\n[workers.c]\n{worker}[workers.d]\n{worker}')
    return str(path)


def test_conformant(mine: str, play: Play, tmp_path: pathlib.Path) -> None:
    play({"canary": {}, "one": {"clauses": ["RES-01"]}, "two": {"clauses": ["RES-02"]}})
    files = [tmp_path / name for name in ("r.json", "r.xml", "r.html")]
    done = run("run", mine, "--json", str(files[0]), "--junit", str(files[1]), "--html",
               str(files[2]), "-j", "3")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "mine: scenarios: 6\n")
    assert "conformant" in done.stdout
    assert all(str(path) in done.stdout and path.exists() for path in files)
    made = json.loads(files[0].read_text())
    assert {(s["worker"], s["name"]) for s in made["scenarios"]} == {
        (worker, name) for worker in "cd" for name in ("canary", "one", "two")
    }
    assert made["device"] == "F"
    assert list((tmp_path / "work").iterdir()) == []


def test_violated_on_one_worker(mine: str, play: Play) -> None:
    bad = {"outcome": "fail", "evidence": [{"text": "lost bytes", "clause": "RES-01"}]}
    play({"one": {"clauses": ["RES-01"], "on": {"d": bad}}})
    done = run("run", mine)
    assert done.returncode == 1
    assert "RES-01 violated" in done.stdout
    assert "one (d): assertion: lost bytes" in done.stdout
    assert f"ci/vmmcts run {mine} --worker d --filter one" in done.stdout
    assert run("run", mine, "--worker", "c").returncode == 0


def test_infrastructure_and_too_little(mine: str, play: Play) -> None:
    play({"one": {"clauses": ["RES-01"], "act": "crash"}})
    assert run("run", mine).returncode == 3
    play({"one": {"clauses": ["RES-01"], "outcome": "not_exercised", "reason": "no tap"}})
    done = run("run", mine)
    assert done.returncode == 4
    assert "RES-01: no tap" in done.stdout


def test_a_run_can_be_narrowed(mine: str, play: Play) -> None:
    play({"canary": {}, "one": {"clauses": ["RES-01"]}, "two": {"clauses": ["RES-02"],
          "outcome": "fail"}})  # fmt: skip
    assert run("run", mine, "--filter", "ONE").returncode == 0
    assert run("run", mine, "--clause", "RES-01").returncode == 0
    assert run("run", mine, "--filter", "t*").returncode == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["run", "nobody"], "no implementation nobody"),
        (["run", "--profile", "cor"], "no profile cor"),
        (["run", "--profile", "driver"], "no such worker or profile"),
        (["run", "--filter", "nothing like it"], "no scenario is chosen"),
        (["run", "--clause", "RES-77"], "no clause RES-77"),
        (["run", "--driver", "/nowhere/libcuda.so.1"], "no driver /nowhere/libcuda.so.1"),
        (["run", "/nowhere/lib.so"], "no library /nowhere/lib.so"),
        (["run", "--json", "/proc/r.json", "MINE"], "cannot write /proc/r.json"),
        (["run", "--sed", "1"], "No such option"),
        (["show", "RES-77"], "no clause RES-77"),
        (["diff", "/nowhere/a", "/nowhere/b"], "cannot read /nowhere/a"),
        (["variants", "odd"], "no variant odd"),
        (["mutants", "odd"], "odd|mutants.toml"),
        (["trace", "/nowhere/log"], "not built"),
        (["doctor", "--", "true"], "not built"),
        (["frobnicate"], "No such command"),
    ],
)
def test_an_error_is_one_line(
    mine: str, play: Play, tmp_path: pathlib.Path, words: list[str], problem: str
) -> None:
    play({"one": {"clauses": ["RES-01"]}})
    if words[0] == "run" and len(words) == 3:
        words = [*words, mine]
    done = run(*[mine if word == "MINE" else word for word in words])
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "scenarios: " not in line]
    assert len(lines) == 1, done.stderr
    assert any(part in lines[0] for part in problem.split("|")), lines[0]
    assert list((tmp_path / "work").iterdir()) == []


def test_lists(mine: str, play: Play) -> None:
    play({"one": {"clauses": ["RES-01"]}})
    assert "core    one RES-01" in run("scenarios").stdout
    assert "RES-01" in run("clauses", "--profile", "core").stdout
    shown = run("show", "res-01").stdout
    assert "must, profile core" in shown
    assert "scenario one f.cpp:1" in shown
    assert "hints-never" in run("variants", "--list").stdout


def test_reports_are_compared_and_shown_again(
    mine: str, play: Play, tmp_path: pathlib.Path
) -> None:
    play({"one": {"clauses": ["RES-01"]}})
    good, bad, html = (str(tmp_path / name) for name in ("good.json", "bad.json", "r.html"))
    run("run", mine, "--json", good)
    play({"one": {"clauses": ["RES-01"], "outcome": "hang", "reason": "no answer"}})
    run("run", mine, "--json", bad)
    worse = run("diff", good, bad)
    assert worse.returncode == 1
    assert "RES-01: proven → violated hang: no answer" in worse.stdout
    assert run("diff", bad, good).returncode == 0
    assert run("report", good, bad, "--html", html).returncode == 0
    assert pathlib.Path(html).read_text().count("<th>mine</th>") == 2
