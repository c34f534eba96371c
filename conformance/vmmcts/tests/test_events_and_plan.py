import dataclasses
import pathlib

import pytest

from vmmcts import plan
from vmmcts.drivers import Driver
from vmmcts.events import EventReader, EventTail
from vmmcts.layout import Layout
from vmmcts.manifest import WorkerSpec

START = '{"event":"scenario.start","name":"s","profile":"core","clauses":["A-01"]}\n'


def test_a_tail_gives_whole_lines_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "events"
    tail = EventTail(path)
    assert tail.read() == []
    path.write_text('{"event":"a"}\n{"event":')
    assert tail.read() == [{"event": "a"}]
    with path.open("a") as file:
        file.write('"b"}\n')
    assert tail.read() == [{"event": "b"}]
    assert tail.read() == []


def fed(text: str, tmp_path: pathlib.Path) -> EventReader:
    path = tmp_path / "events"
    path.write_text(text)
    reader = EventReader("c")
    for event in EventTail(path).read():
        reader.feed(event)
    return reader


def test_a_scenario_without_an_end_is_trouble_of_the_suite(tmp_path: pathlib.Path) -> None:
    reader = fed(START, tmp_path)
    assert reader.results["s"].outcome == "infrastructure"
    assert reader.running() == ["s"]


def test_what_is_no_event_is_kept(tmp_path: pathlib.Path) -> None:
    bad = [
        "garbage",
        "[1]",
        '{"event":"what"}',
        '{"event":"note","scenario":"never started","text":"t"}',
        '{"event":"scenario.end","name":"s","outcome":"splendid","seconds":1}',
    ]
    reader = fed(START + "\n".join(bad) + "\n", tmp_path)
    assert len(reader.malformed) == len(bad)
    assert reader.results["s"].outcome == "infrastructure"


def test_evidence_and_notes_belong_to_their_scenario(tmp_path: pathlib.Path) -> None:
    reader = fed(
        START
        + '{"event":"note","scenario":"s","text":"n"}\n'
        + '{"event":"evidence","scenario":"s","witness":"bytes","text":"t","clause":"A-01"}\n'
        + '{"event":"scenario.end","name":"s","outcome":"fail","seconds":0.5,"reason":"t"}\n',
        tmp_path,
    )
    result = reader.results["s"]
    assert (result.outcome, result.seconds, result.notes) == ("fail", 0.5, ["n"])
    assert result.findings()[0].clause == "A-01"


def test_shards_take_about_as_long() -> None:
    seconds = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 1.0}
    parts = plan.shards(list(seconds), 2, seconds)
    assert sorted(name for names, _ in parts for name in names) == sorted(seconds)
    assert {expected for _, expected in parts} == {6.0}


def test_shards_keep_the_order_and_are_never_empty() -> None:
    assert [names for names, _ in plan.shards(["b", "a"], 8, {})] == [["b"], ["a"]]
    assert plan.shards(["b", "a"], 1, {"a": 9.0})[0][0] == ["b", "a"]


def test_a_plan_is_private_to_its_directory(
    layout: Layout, driver: Driver, tmp_path: pathlib.Path
) -> None:
    worker = WorkerSpec("c", "c", ("w",), ("core",), {"A": "1"})
    job = plan.Job("mine", worker, ("one",), environment={"B": "2"})
    made = plan.plan_of(job, layout, driver, tmp_path)
    assert made["environment"]["SOFTCUDA_DIR"] == str(tmp_path / "softcuda")
    assert (made["environment"]["A"], made["environment"]["B"]) == ("1", "2")
    assert made["scenarios"] == ["one"]
    assert made["tap"] is None  # it has not been built


def test_devices_have_no_more_memory_than_there_is_room(
    driver: Driver, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Room:
        f_bavail, f_frsize = 10 << 20, 4096  # 40 GiB

    monkeypatch.setattr("os.statvfs", lambda _: Room)
    driver.prepare(tmp_path)
    profile = driver.environment(tmp_path)["SOFTCUDA_PROFILE"]
    assert f"memory = {20 << 30}\n" in pathlib.Path(profile).read_text()
    chosen = dataclasses.replace(driver, profile="small")
    assert chosen.environment(tmp_path)["SOFTCUDA_PROFILE"] == "small"


def end(outcome: str) -> str:
    return f'{{"event":"scenario.end","name":"s","outcome":"{outcome}","seconds":1,"reason":""}}\n'


@pytest.mark.parametrize("rounds", [("pass", "fail", "pass"), ("fail", "pass"), ("pass", "fail")])
def test_of_several_rounds_the_one_that_failed_counts(
    rounds: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    reader = fed("".join(START + end(outcome) for outcome in rounds), tmp_path)
    assert reader.results["s"].outcome == "fail"
    assert reader.running() == []
