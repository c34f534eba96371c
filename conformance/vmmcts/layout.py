"""Where things are: the project's sources and the build directory."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from vmmcts.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Layout:
    """The source tree and a build directory of it."""

    source: pathlib.Path
    build: pathlib.Path

    @classmethod
    def find(cls) -> Layout:
        """The tree that this file is in; ``VMMCTS_BUILD`` names another build directory."""
        source = pathlib.Path(__file__).resolve().parents[2]
        build = pathlib.Path(os.environ.get("VMMCTS_BUILD") or source / "build")
        return cls(source, build.resolve())

    def program(self, name: str) -> pathlib.Path:
        """A program of the build. UsageError when it has not been built."""
        path = self.build / "bin" / name
        if not os.access(path, os.X_OK):
            raise UsageError(f"{path} is not built: run ci/conformance, or cmake --build")
        return path

    @property
    def clauses(self) -> pathlib.Path:
        """The directory of the clause files."""
        return self.source / "conformance" / "clauses"

    @property
    def implementations(self) -> pathlib.Path:
        """The directory of the manifests."""
        return self.source / "conformance" / "implementations"

    @property
    def mutants(self) -> pathlib.Path:
        """The list of mutants."""
        return self.source / "conformance" / "mutants" / "mutants.toml"

    def reports(self) -> list[pathlib.Path]:
        """Reports that were kept in the project, and those of the last runs."""
        kept = self.source / "conformance" / "results"
        return sorted(kept.glob("*.json")) + sorted((self.build / "reports").glob("*.json"))

    @property
    def tap(self) -> pathlib.Path:
        """The library that records driver calls."""
        return self.build / "tap" / "libcuda.so.1"

    @property
    def fdcalls(self) -> pathlib.Path:
        """The library that fails system calls of a worker."""
        return self.build / "lib" / "libfdcalls.so"

    @property
    def softcuda(self) -> pathlib.Path:
        """The software driver."""
        return self.build / "softcuda" / "libcuda.so.1"
