"""Processes that never outlive this program, and work directories that do not either."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from types import FrameType

from vmmcts.errors import InfrastructureError

_PREFIX = "vmmcts-"
_SHARED_MEMORY = pathlib.Path("/dev/shm")
# What the scenarios with the most memory use, over devices with the largest granularity.
_ENOUGH_BYTES = 12 << 30
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived: everything is taken down, then the program ends with it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted inside the block."""

    def handler(number: int, _: FrameType | None) -> None:
        for ignored in before:
            signal.signal(ignored, signal.SIG_IGN)  # what follows is the clean-up
        raise Interrupted(number)

    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def become_subreaper() -> None:
    """Orphans of processes that we start become our children, so that they can be ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    command: list[str], environment: dict[str, str], log: pathlib.Path
) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own that is killed when this thread ends, however.

    Call it from the main thread. InfrastructureError when it cannot be started.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)

    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
    except OSError as error:
        raise InfrastructureError(f"cannot start {command[0]}: {error.strerror}") from error


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a started program with its group and waits for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=_KILL_SECONDS)


def kill_orphans(known: set[int]) -> None:
    """Kills what has become our child and is not known, until there is none."""
    deadline = time.monotonic() + _KILL_SECONDS
    while orphans := _children() - known:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if time.monotonic() > deadline:
            raise InfrastructureError(f"processes {sorted(orphans)} do not die")


def _children() -> set[int]:
    found: set[int] = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


@contextlib.contextmanager
def work_directory(*, keep: bool = False) -> Iterator[pathlib.Path]:
    """A private directory, on a tmpfs where one has room, removed at the end.

    One that a killed run left behind is removed by the next run: its lock is free.
    """
    base = _base()
    _remove_abandoned(base)
    path = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield path
    finally:
        if keep:
            (path / "lock").unlink(missing_ok=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
        _remove_semaphores(path)
        os.close(lock)


def semaphore_prefix(run_dir: pathlib.Path) -> str:
    """What the names of multiprocessing's semaphores begin with in a run.

    A killed process leaves them in the system; by this name the run that made them removes them.
    """
    return f"/{run_dir.name}"


def _remove_semaphores(run_dir: pathlib.Path) -> None:
    for path in _SHARED_MEMORY.glob(f"sem.{run_dir.name}-*"):
        path.unlink(missing_ok=True)


def _base() -> pathlib.Path:
    temporary = pathlib.Path(tempfile.gettempdir())
    if "TMPDIR" in os.environ or not os.access(_SHARED_MEMORY, os.W_OK):
        return temporary
    shared = _room(_SHARED_MEMORY)
    return _SHARED_MEMORY if shared >= min(_ENOUGH_BYTES, _room(temporary)) else temporary


def _room(path: pathlib.Path) -> int:
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def _remove_abandoned(base: pathlib.Path) -> None:
    for path in base.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                _remove_semaphores(path)
            finally:
                os.close(lock)
