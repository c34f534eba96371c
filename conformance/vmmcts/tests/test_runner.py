"""The runner over a coordinator that plays: crashes, garbage, and what is left afterwards."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from vmmcts import plan, runner
from vmmcts.drivers import Driver
from vmmcts.layout import Layout
from vmmcts.manifest import WorkerSpec
from vmmcts.processes import semaphore_prefix, work_directory
from vmmcts.runner import JobResult, Runner
from vmmcts.tests.conftest import SOURCE, Play

WORKER = WorkerSpec("c", "c", ("w",), ("core",))


def ran(layout: Layout, driver: Driver, *names: str) -> JobResult:
    with work_directory() as work_dir:
        job = plan.Job("mine", WORKER, names)
        (done,) = Runner(layout, driver, work_dir, parallel=2).run([job])
    return done


def outcomes(done: JobResult) -> dict[str, str]:
    return {result.name: result.outcome for result in done.results}


def wait_for(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        os.sched_yield()


def processes_of(marker: str) -> list[int]:
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_results_come_back(layout: Layout, driver: Driver, play: Play) -> None:
    play({"a": {}, "b": {"outcome": "fail", "reason": "r"}})
    done = ran(layout, driver, "a", "b")
    assert outcomes(done) == {"a": "pass", "b": "fail"}
    assert done.info is not None
    assert done.troubles == []


def test_a_crash_costs_one_scenario(layout: Layout, driver: Driver, play: Play) -> None:
    play({"a": {}, "b": {"act": "crash"}, "c": {}})
    done = ran(layout, driver, "a", "b", "c")
    assert outcomes(done) == {"a": "pass", "b": "infrastructure", "c": "pass"}
    assert "signal 9" in done.troubles[0]


def test_a_scenario_that_is_never_started_has_no_result(
    layout: Layout, driver: Driver, play: Play
) -> None:
    play({"a": {}, "b": {"act": "skip"}})
    assert outcomes(ran(layout, driver, "a", "b")) == {"a": "pass"}


def test_garbage_is_trouble(layout: Layout, driver: Driver, play: Play) -> None:
    play({"a": {"act": "garbage"}})
    assert "no json" in ran(layout, driver, "a").troubles[0]


def test_a_coordinator_that_reports_nothing_is_stuck(
    layout: Layout, driver: Driver, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play({"a": {"act": "hang"}, "b": {}})
    monkeypatch.setattr(runner, "STUCK_SECONDS", 1.0)
    done = ran(layout, driver, "a", "b")
    assert outcomes(done) == {"a": "infrastructure", "b": "pass"}
    assert "nothing for too long" in done.troubles[0]


def test_orphans_are_ended(
    layout: Layout, driver: Driver, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = play({"a": {"act": "orphan"}})
    ran(layout, driver, "a")
    assert [pid for pid in processes_of(f"FAKE_PLAY={path}") if pid != os.getpid()] == []


def test_a_coordinator_that_cannot_start_is_told(
    layout: Layout, driver: Driver, play: Play, tmp_path: pathlib.Path
) -> None:
    play({"a": {}})
    bad = tmp_path / "vmmcts-scenarios"
    bad.write_text("#!/bin/sh\necho no plan for me; exit 3\n")
    bad.chmod(0o755)
    with work_directory() as work_dir:
        job = plan.Job("mine", WORKER, ("a",))
        (done,) = Runner(layout, driver, work_dir, parallel=1, program=bad).run([job])
    assert done.results == []
    assert done.troubles == ["c: the coordinator: exit status 3: no plan for me"]


def test_semaphores_of_killed_processes_are_removed(layout: Layout) -> None:
    with work_directory() as work_dir:
        left = pathlib.Path(f"/dev/shm/sem.{semaphore_prefix(work_dir)[1:]}-abc")
        left.touch()
    assert not left.exists()


def test_an_abandoned_directory_is_removed_by_the_next_run(
    layout: Layout, tmp_path: pathlib.Path
) -> None:
    abandoned = tmp_path / "work" / "vmmcts-abandoned"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    with work_directory() as work_dir, work_directory():
        assert not abandoned.exists()
        assert work_dir.exists()  # its lock is held
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_nothing(
    layout: Layout, play: Play, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    path = play({"a": {"act": "hang", "clauses": ["RES-01"]}})
    hanging = pathlib.Path(f"{path}.hanging")
    program = subprocess.Popen(
        [sys.executable, "-m", "vmmcts", "run", str(layout.build / "lib/libreference.so")],
        env={**os.environ, "PYTHONPATH": str(SOURCE / "conformance")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for("the scenario to hang", hanging.exists)
    wait_for("its work directory to be told", hanging.read_text)
    program.send_signal(number)
    output, _ = program.communicate(timeout=20)
    assert program.returncode == -number
    marker = f"FAKE_PLAY={path}"
    wait_for(
        "every process to end",
        # The coordinator dies with the program; the sleep of a killed run is the coordinator's
        # own affair, as a real one's workers die with it.
        lambda: (
            not [
                pid
                for pid in processes_of(marker)
                if pid != os.getpid()
                and not (number == signal.SIGKILL and "sleep" in command_of(pid))
            ]
        ),
    )
    for pid in processes_of(marker):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    left = list((tmp_path / "work").iterdir())
    if number == signal.SIGKILL:
        with work_directory():
            assert not any(directory.exists() for directory in left)
    else:
        assert left == []
        assert "interrupted" in output


def command_of(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
