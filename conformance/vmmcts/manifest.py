"""Manifests: which workers an implementation has, and which failures are expected of it."""

from __future__ import annotations

import dataclasses
import datetime
import os
import pathlib
import re
import shutil
import string
import subprocess
import sys
from typing import Any

from vmmcts import toml
from vmmcts.clauses import PROFILES
from vmmcts.errors import UsageError
from vmmcts.expectations import Expectation, Versions
from vmmcts.layout import Layout

KINDS = ("c", "python", "driver")
_CHECK_SECONDS = 60
_WORKER_KEYS = {"kind", "command", "profiles", "environment"}
_EXPECTATION_KEYS = {"clause", "scenario", "worker", "reason", "driver", "device", "link", "owner",
                     "expires"}  # fmt: skip
_REQUIRED = ("reason", "link", "owner", "expires")

# Tells the profiles of a C table: two numbers, then name, version and profiles.
_TABLE_PROFILES = """
import ctypes, sys
get = ctypes.CDLL(sys.argv[1]).vmmcts_implementation_get
get.restype = ctypes.c_void_p
texts = (ctypes.c_char_p * 3).from_address(get() + 8)
print(texts[2].decode())
"""
_ADAPTER_PROFILES = """
import sys
from vmmcts.worker.main import load_adapter
try:
    print(*load_adapter(sys.argv[1]).profiles)
except ValueError as error:
    sys.exit(str(error))
"""


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """One worker of an implementation: how it is started and what it declares."""

    name: str
    kind: str
    command: tuple[str, ...]
    profiles: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        """The environment of this process with the worker's own over it."""
        return {**os.environ, **self.environment}


@dataclasses.dataclass(frozen=True)
class Manifest:
    """An implementation to be tested. ``target`` is how the command line named it."""

    name: str
    target: str
    workers: tuple[WorkerSpec, ...]
    expectations: tuple[Expectation, ...] = ()


def names(layout: Layout) -> list[str]:
    """The manifests that come with the suite."""
    return sorted(path.stem for path in layout.implementations.glob("*.toml"))


def find(layout: Layout, target: str) -> Manifest:
    """The manifest that a word of the command line means.

    The word is a name, the path of a manifest, of a library with the C table, or MODULE:CLASS.
    """
    path = pathlib.Path(target)
    if path.suffix == ".toml" or (path.is_file() and path.suffix != ".so"):
        return load(layout, path, target)
    if path.suffix == ".so" or ".so." in path.name:
        return _of_library(layout, path, target)
    if re.fullmatch(r"[\w.]+:\w+", target):
        return _of_adapter(layout, target)
    known = layout.implementations / f"{target}.toml"
    if not known.exists():
        raise UsageError(
            f"no implementation {target}: name one of {', '.join(names(layout))}, a manifest "
            "(.toml), a library (.so) or MODULE:CLASS"
        )
    return load(layout, known, target)


def load(layout: Layout, path: pathlib.Path, target: str) -> Manifest:
    """Reads a manifest. UsageError says what is malformed."""
    table = toml.load(path)
    _only(path, table, {"name", "workers", "expectations"}, "")
    name = table.get("name", path.stem)
    workers = table.get("workers")
    if not isinstance(name, str) or not isinstance(workers, dict) or not workers:
        raise UsageError(f"{path}: a manifest has a name and one [workers.NAME] at least")
    words = _placeholders(layout, path)
    return Manifest(
        name,
        target,
        tuple(_worker(path, key, entry, words) for key, entry in workers.items()),
        tuple(_expectation(path, entry) for entry in table.get("expectations", [])),
    )


def _only(path: pathlib.Path, table: dict[str, Any], keys: set[str], where: str) -> None:
    if unknown := set(table) - keys:
        raise UsageError(
            f"{path}: {where}unknown {', '.join(sorted(unknown))}; "
            f"there is {', '.join(sorted(keys))}"
        )


def _placeholders(layout: Layout, path: pathlib.Path) -> dict[str, str]:
    return {
        "build": str(layout.build),
        "source": str(layout.source),
        "manifest": str(path.resolve().parent),
        "python": sys.executable,
    }


def _filled(path: pathlib.Path, text: str, words: dict[str, str]) -> str:
    try:
        return string.Formatter().vformat(text, (), words)
    except (KeyError, IndexError, ValueError) as error:
        known = ", ".join(f"{{{word}}}" for word in words)
        raise UsageError(f"{path}: cannot fill in '{text}'; there is {known}") from error


def _worker(path: pathlib.Path, name: str, entry: Any, words: dict[str, str]) -> WorkerSpec:
    where = f"[workers.{name}]: "
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {where}is a table")
    _only(path, entry, _WORKER_KEYS, where)
    command: Any = entry.get("command")
    profiles: Any = entry.get("profiles")
    environment = entry.get("environment", {})
    if entry.get("kind") not in KINDS:
        raise UsageError(f"{path}: {where}kind is one of {', '.join(KINDS)}")
    if not _are_words(command) or not _are_words(profiles):
        raise UsageError(f"{path}: {where}command and profiles are lists of words, not empty")
    if unknown := [p for p in profiles if p not in PROFILES]:
        raise UsageError(f"{path}: {where}no profile {unknown[0]}; one of {', '.join(PROFILES)}")
    if not isinstance(environment, dict) or not all(
        isinstance(value, str) for value in environment.values()
    ):
        raise UsageError(f"{path}: {where}environment has texts")
    return WorkerSpec(
        name,
        entry["kind"],
        tuple(_filled(path, word, words) for word in command),
        tuple(profiles),
        {key: _filled(path, value, words) for key, value in environment.items()},
    )


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(w, str) for w in value)


def _expectation(path: pathlib.Path, entry: Any) -> Expectation:
    where = "[[expectations]]: "
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {where}is a table")
    _only(path, entry, _EXPECTATION_KEYS, where)
    if ("clause" in entry) == ("scenario" in entry):
        raise UsageError(f"{path}: {where}names a clause or a scenario")
    of = f"{where}{entry.get('clause') or entry.get('scenario')}: "
    if missing := [key for key in _REQUIRED if not entry.get(key)]:
        raise UsageError(f"{path}: {of}needs {', '.join(missing)}")
    expires = entry["expires"]
    try:
        if isinstance(expires, str):
            expires = datetime.date.fromisoformat(expires)
        if not isinstance(expires, datetime.date):
            raise ValueError(expires)
        return Expectation(
            clause=entry.get("clause"),
            scenario=entry.get("scenario"),
            worker=entry.get("worker"),
            reason=re.compile(entry["reason"]),
            driver=Versions.parse(entry.get("driver", "")),
            device=re.compile(entry.get("device", "")),
            link=entry["link"],
            owner=entry["owner"],
            expires=expires,
        )
    except (re.error, ValueError, TypeError) as error:
        raise UsageError(f"{path}: {of}{error}") from error


def _of_library(layout: Layout, path: pathlib.Path, target: str) -> Manifest:
    if not path.exists():
        raise UsageError(f"no library {path}")
    command = (str(layout.program("vmmcts-worker")), str(path.resolve()))
    spec = WorkerSpec("c", "c", command, ("core",))
    check(spec, layout.softcuda)
    answer = _asked(spec, layout.softcuda, [sys.executable, "-c", _TABLE_PROFILES, command[1]])
    if answer.returncode:
        raise UsageError(f"{path}: cannot be read as a table: {_last_line(answer.stderr)}")
    profiles = tuple(answer.stdout.split())
    return Manifest(path.stem, target, (dataclasses.replace(spec, profiles=profiles),))


def _of_adapter(layout: Layout, target: str) -> Manifest:
    extra = os.environ.get("PYTHONPATH")
    parts = [
        str(layout.build / "python"),
        str(layout.source / "conformance"),
        str(pathlib.Path.cwd()),
    ]
    environment = {"PYTHONPATH": ":".join(parts + ([extra] if extra else []))}
    command = (sys.executable, "-m", "vmmcts.worker", target)
    spec = WorkerSpec("python", "python", command, ("core",), environment)
    profiles = tuple(check(spec, layout.softcuda).split())
    return Manifest(target, target, (dataclasses.replace(spec, profiles=profiles),))


def check(worker: WorkerSpec, driver: pathlib.Path) -> str:
    """Checks that a worker can be started, without a run. UsageError says what is wrong.

    A worker of ours is asked about its library or adapter; for a Python one its profiles come back.
    """
    program = worker.command[0]
    if shutil.which(program, path=worker.full_environment().get("PATH")) is None:
        raise UsageError(
            f"worker {worker.name}: no program {program}; build it or mend the command"
        )
    if pathlib.Path(program).name == "vmmcts-worker":
        library = pathlib.Path(worker.command[-1])
        if not library.exists():
            raise UsageError(f"worker {worker.name}: no library {library}; build it first")
        command = [program, "--check", *worker.command[1:]]
    elif worker.command[1:3] == ("-m", "vmmcts.worker"):
        command = [program, "-c", _ADAPTER_PROFILES, *worker.command[3:]]
    else:
        return ""
    answer = _asked(worker, driver, command)
    if answer.returncode:
        raise UsageError(f"worker {worker.name}: {_last_line(answer.stderr)}")
    return answer.stdout


def _asked(
    worker: WorkerSpec, driver: pathlib.Path, command: list[str]
) -> subprocess.CompletedProcess[str]:
    environment = worker.full_environment()
    own = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = f"{driver.parent}:{own}" if own else str(driver.parent)
    try:
        return subprocess.run(
            command,
            env=environment,
            text=True,
            errors="replace",
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"worker {worker.name}: no answer in {_CHECK_SECONDS} s") from error
    except OSError as error:
        raise UsageError(f"worker {worker.name}: cannot start {command[0]}: {error}") from error


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("vmmcts-worker: ") if lines else "it failed without a word"
