import pathlib
import sys

import pytest

from vmmcts import manifest
from vmmcts.errors import UsageError
from vmmcts.layout import Layout

GOOD = """
name = "mine"
[workers.c]
kind = "c"
command = ["{build}/bin/vmmcts-worker", "{manifest}/x.so"]
profiles = ["core"]
"""
EXPECTATION = """
[[expectations]]
clause = "RES-04"
reason = "no such"
link = "https://example.org/1"
owner = "me"
expires = 2100-01-01
"""


def written(tmp_path: pathlib.Path, text: str) -> pathlib.Path:
    path = tmp_path / "m.toml"
    path.write_text(text)
    return path


def test_the_manifests_of_the_project_load(layout: Layout) -> None:
    assert "reference" in manifest.names(layout)
    for name in manifest.names(layout):
        assert manifest.find(layout, name).workers


def test_placeholders_are_filled_in(layout: Layout, tmp_path: pathlib.Path) -> None:
    loaded = manifest.load(layout, written(tmp_path, GOOD), "m.toml")
    assert loaded.workers[0].command == (
        str(layout.build / "bin/vmmcts-worker"),
        str(tmp_path / "x.so"),
    )


def test_a_driver_worker_is_allowed(layout: Layout, tmp_path: pathlib.Path) -> None:
    text = GOOD.replace('kind = "c"', 'kind = "driver"').replace('"core"', '"driver"')
    assert manifest.load(layout, written(tmp_path, text), "").workers[0].kind == "driver"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name =", "is not TOML"),
        ('name = "x"', r"one \[workers.NAME\]"),
        (GOOD + "[other]", "unknown other"),
        (GOOD.replace('kind = "c"', 'kind = "go"'), "kind is one of c, python, driver"),
        (GOOD.replace('["core"]', '["cores"]'), "no profile cores"),
        (GOOD.replace('["core"]', "[]"), "not empty"),
        (GOOD.replace("{build}", "{bild}"), "cannot fill in"),
        (GOOD + "cwd = 1", "unknown cwd"),
        (GOOD + "environment = { A = 1 }", "environment has texts"),
        (GOOD + EXPECTATION.replace('clause = "RES-04"', ""), "names a clause or a scenario"),
        (GOOD + EXPECTATION.replace('owner = "me"', ""), "RES-04: needs owner"),
        (GOOD + EXPECTATION.replace('"no such"', '"("'), "RES-04: "),
        (GOOD + EXPECTATION.replace("2100-01-01", '"soon"'), "RES-04: "),
        (GOOD + EXPECTATION + 'driver = "new"', "is no range"),
    ],
)
def test_what_is_malformed_is_named(
    layout: Layout, tmp_path: pathlib.Path, text: str, problem: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=problem) as caught:
        manifest.load(layout, path, "")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value) or "TOML" in str(caught.value)


def test_expectations_load(layout: Layout, tmp_path: pathlib.Path) -> None:
    loaded = manifest.load(layout, written(tmp_path, GOOD + EXPECTATION), "")
    assert loaded.expectations[0].clause == "RES-04"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nobody", "no implementation nobody: name one of .*reference"),
        ("/nowhere/m.toml", "cannot read /nowhere/m.toml"),
        ("/nowhere/lib.so", "no library /nowhere/lib.so"),
        ("no_such_module:Adapter", "cannot load no_such_module:Adapter"),
        ("vmmcts.layout:Layout", "not a subclass"),
    ],
)
def test_an_unknown_target_is_named(layout: Layout, target: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        manifest.find(layout, target)


def test_a_library_needs_no_manifest(layout: Layout) -> None:
    found = manifest.find(layout, str(layout.build / "lib/libreference.so"))
    assert found.workers[0].profiles == ("core", "rawfd")


def test_a_library_without_the_entry_point_is_refused(layout: Layout) -> None:
    with pytest.raises(UsageError, match="does not export vmmcts_implementation_get"):
        manifest.find(layout, str(layout.build / "lib/libbad.so"))


def test_an_adapter_needs_no_manifest(
    layout: Layout, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_adapter.py").write_text(
        "from vmmcts.adapters import Implementation\n"
        "class Mine(Implementation):\n    profiles = ('core', 'python')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = manifest.find(layout, "my_adapter:Mine")
    assert found.workers[0].profiles == ("core", "python")
    assert found.workers[0].command[0] == sys.executable


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("/nowhere/worker",), "no program /nowhere/worker"),
        (("{worker}", "/nowhere/lib.so"), "no library /nowhere/lib.so"),
        (("{worker}", "{lib}/libbad.so"), "does not export"),
        (("{python}", "-m", "vmmcts.worker", "nothing:Here"), "cannot load nothing:Here"),
    ],
)
def test_a_worker_that_cannot_start_is_found_before_the_run(
    layout: Layout, command: tuple[str, ...], problem: str
) -> None:
    words = {
        "worker": str(layout.build / "bin/vmmcts-worker"),
        "lib": str(layout.build / "lib"),
        "python": sys.executable,
    }
    spec = manifest.WorkerSpec(
        "w",
        "c",
        tuple(word.format_map(words) for word in command),
        ("core",),
        {"PYTHONPATH": str(layout.source / "conformance")},
    )
    with pytest.raises(UsageError, match=problem):
        manifest.check(spec, layout.softcuda)
