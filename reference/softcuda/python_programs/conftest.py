"""Real Python programs on the software driver: each test has devices of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parent
LIBRARY = PROGRAMS.parents[2] / "build" / "softcuda"

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs a program of this folder, or a snippet, in a fresh interpreter; returns its stdout.

    The driver must be found before the interpreter starts, so nothing is run in this process.
    Fails the test, with all output, when the program exits with anything but `status`.
    """
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(prefix="softcuda-test-", dir=base) as devices:

        def runner(program: str, *arguments: str, status: int = 0, **environment: str) -> str:
            command = [sys.executable, str(PROGRAMS / program), *arguments]
            own = {
                "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH") or str(LIBRARY),
                "SOFTCUDA_DIR": devices,
                "SOFTCUDA_LOG": str(tmp_path / "log"),
            }
            done = subprocess.run(
                command,
                env=os.environ | own | environment,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
            return done.stdout + done.stderr

        yield runner
