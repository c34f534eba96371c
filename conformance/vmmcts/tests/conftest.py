"""A build directory with a coordinator, a worker and a driver that play what a test wants."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from vmmcts.drivers import Driver
from vmmcts.layout import Layout
from vmmcts.processes import work_directory

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parents[2]

_OBSERVER = """#!/bin/sh
echo '{"devices": 2, "driver_version": 13000, "name": "F"}'
"""
_LIBRARY = """
struct Table { unsigned abi, size; const char *name, *version, *profiles; };
static const Table table{1, 0, "mine", "1.0", "core rawfd"};
extern "C" const Table* vmmcts_implementation_get() { return &table; }
"""
_WORKER = """#!/bin/sh
[ "$1" = --check ] || exit 2
case $2 in
  *bad*) echo "vmmcts-worker: $2 does not export vmmcts_implementation_get" >&2; exit 2;;
esac
"""


@pytest.fixture(scope="session")
def fake_build(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A build directory that is not changed by tests."""
    build = tmp_path_factory.mktemp("build")
    for folder in ("bin", "lib", "softcuda"):
        (build / folder).mkdir()
    (build / "softcuda" / "libcuda.so.1").touch()
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(build / "lib" / "libreference.so")],
        input=_LIBRARY, text=True, check=True,
    )  # fmt: skip
    shutil.copy(build / "lib" / "libreference.so", build / "lib" / "libbad.so")
    for name, text in (("vmmcts-worker", _WORKER), ("vmmcts-observer", _OBSERVER)):
        (build / "bin" / name).write_text(text)
        (build / "bin" / name).chmod(0o755)
    scenarios = build / "bin" / "vmmcts-scenarios"
    script = (HERE / "fake_scenarios.py").read_text().split("\n", 1)[1]
    scenarios.write_text(f"#!{sys.executable}\n{script}")
    scenarios.chmod(0o755)
    return build


@pytest.fixture
def layout(
    fake_build: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Layout:
    """The layout over the fake build; work directories are in ``tmp_path/work``."""
    monkeypatch.setenv("VMMCTS_BUILD", str(fake_build))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "work"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "work").mkdir()
    return Layout(SOURCE, fake_build)


@pytest.fixture
def driver(layout: Layout) -> Driver:
    """The driver of the fake build."""
    return Driver("softcuda", layout.softcuda, 2, 13000, "F")


Play = Callable[[dict[str, dict[str, Any]]], pathlib.Path]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Play:
    """Says what the coordinator plays; see fake_scenarios.py."""

    def write(parts: dict[str, dict[str, Any]]) -> pathlib.Path:
        path = tmp_path / "play.json"
        path.write_text(json.dumps(parts))
        monkeypatch.setenv("FAKE_PLAY", str(path))
        return path

    return write


__all__ = ["Play", "work_directory"]
