"""``trace`` and ``doctor``: the call log of a program, without the suite around it."""

from __future__ import annotations

import os
import pathlib
import subprocess

from vmmcts.drivers import Driver
from vmmcts.errors import UsageError
from vmmcts.layout import Layout
from vmmcts.processes import work_directory

_TRACE = "vmmcts-trace"


def trace(layout: Layout, file: pathlib.Path, options: list[str]) -> int:
    """Shows a call log. Returns the exit status of the program that reads it."""
    program = layout.program(_TRACE)
    if not file.exists():
        raise UsageError(f"no call log {file}")
    return subprocess.run([str(program), str(file), *options], check=False).returncode


def doctor(layout: Layout, driver: Driver, command: list[str], *, keep: bool) -> int:
    """Runs a program over the tap and says what its driver calls did wrong.

    Returns the exit status of the program when it failed, else that of the oracle.
    """
    program = layout.program(_TRACE)
    if not layout.tap.exists():
        raise UsageError(f"{layout.tap} is not built: run ci/conformance")
    with work_directory(keep=keep) as work_dir:
        log = work_dir / "calls"
        driver.prepare(work_dir)
        environment = {**os.environ, **driver.environment(work_dir)}
        own = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = (
            f"{layout.tap.parent}:{own}" if own else str(layout.tap.parent)
        )
        environment["VMMCTS_TAP_NEXT"] = str(driver.library)
        environment["VMMCTS_TAP_LOG"] = str(log)
        try:
            status = subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error
        if not log.exists():
            raise UsageError(f"{command[0]} loaded no libcuda.so.1: there are no calls to look at")
        if keep:
            print(f"the call log is {log}")
        oracle = subprocess.run([str(program), str(log), "--oracle"], check=False).returncode
    return (status if status > 0 else 128 - status) if status else oracle
