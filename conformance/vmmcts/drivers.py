"""The driver that a run uses: the software driver, the vendor's, or any other libcuda."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile

from vmmcts.errors import InfrastructureError, UsageError
from vmmcts.layout import Layout

SOFTCUDA = "softcuda"
VENDOR = "vendor"
_SECONDS = 60
_DEVICES = 2
# What one H200 has. A machine with less room for the simulated memory gets smaller devices: the
# software driver promises no memory that the file system could not hold.
_MEMORY = 150109880320
_MEMORY_UNIT = 16 << 20
_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu",
           "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")  # fmt: skip

@dataclasses.dataclass(frozen=True)
class Driver:
    """A driver and the devices that it has."""

    name: str
    library: pathlib.Path
    devices: int
    version: int
    device: str
    #: The kernel module's version, "" for anything but the vendor's driver.
    release: str = ""
    profile: str = ""
    variant: str = ""

    def prepare(self, work_dir: pathlib.Path) -> None:
        """Makes in ``work_dir`` what a run there needs: private devices of the software driver."""
        (work_dir / "softcuda").mkdir(mode=0o700, parents=True)
        if self._sized(work_dir):
            room = os.statvfs(work_dir)
            share = room.f_bavail * room.f_frsize // max(1, self.devices)
            memory = min(_MEMORY, share // _MEMORY_UNIT * _MEMORY_UNIT)
            lines = [f"devices = {self.devices}"]
            if memory < _MEMORY:
                lines += [f"memory = {memory}", "driver_memory = 16MiB"]
            (work_dir / "device.toml").write_text("\n".join(lines) + "\n")

    def environment(self, work_dir: pathlib.Path) -> dict[str, str]:
        """What the processes of a run in ``work_dir`` need in their environment."""
        found = {"SOFTCUDA_DIR": str(work_dir / "softcuda")}
        if profile := self.profile or self._sized(work_dir):
            found["SOFTCUDA_PROFILE"] = profile
        if self.variant:
            found["SOFTCUDA_VARIANT"] = self.variant
        if paths := os.environ.get("LD_LIBRARY_PATH"):
            found["LD_LIBRARY_PATH"] = paths
        return found

    def _sized(self, work_dir: pathlib.Path) -> str:
        """The profile that is made for the room that there is, "" for one that was chosen."""
        own = self.name == SOFTCUDA and not self.profile
        return str(work_dir / "device.toml") if own else ""


def find(layout: Layout, name: str, variant: str = "") -> Driver:
    """The driver that ``--driver`` means. UsageError or InfrastructureError when there is none."""
    if name == SOFTCUDA:
        if not layout.softcuda.exists():
            raise UsageError(f"{layout.softcuda} is not built: run ci/conformance")
        profile = os.environ.get("SOFTCUDA_PROFILE", "")
        return _probed(layout, name, layout.softcuda, profile, variant)
    if name == VENDOR:
        return _probed(layout, name, _vendor_library(), "", "")
    library = pathlib.Path(name).absolute()
    if not library.exists():
        raise UsageError(f"no driver {library}: --driver takes softcuda, vendor or a libcuda.so.1")
    if library.name != "libcuda.so.1":
        raise UsageError(f"{library}: the file of a driver is called libcuda.so.1")
    return _probed(layout, str(library), library, "", "")


def _vendor_library() -> pathlib.Path:
    places = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_PLACES]
    for place in places:
        if (path := pathlib.Path(place, "libcuda.so.1")).exists():
            return path
    try:
        cache = subprocess.run(
            ["/sbin/ldconfig", "-p"], text=True, capture_output=True, timeout=_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        cache = ""
    if match := re.search(r"libcuda\.so\.1 .*=> (\S+)", cache):
        return pathlib.Path(match[1])
    raise InfrastructureError("no libcuda.so.1 of a vendor on this machine: is the driver there?")


def _probed(
    layout: Layout, name: str, library: pathlib.Path, profile: str, variant: str
) -> Driver:
    observer = layout.program("vmmcts-observer")
    environment = {**os.environ, "SOFTCUDA_PROFILE": profile or f"h200x{_DEVICES}"}
    if variant:
        environment["SOFTCUDA_VARIANT"] = variant
    try:
        with tempfile.TemporaryDirectory(prefix="vmmcts-probe-") as directory:
            environment["SOFTCUDA_DIR"] = directory
            answer = subprocess.run(
                [str(observer), str(library), "--describe"],
                env=environment,
                text=True,
                errors="replace",
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"the driver {library} does not answer") from error
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"]
        raise InfrastructureError(f"the driver {library} cannot be used: {lines[-1]}")
    told = json.loads(answer.stdout)
    if not told["devices"]:
        raise InfrastructureError(f"the driver {library} has no device")
    release = ""
    if name == VENDOR:
        text = _read(pathlib.Path("/proc/driver/nvidia/version"))
        if match := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text):
            release = match[1]
    return Driver(
        name,
        library,
        told["devices"],
        told["driver_version"],
        told["name"],
        release,
        profile,
        variant,
    )


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
