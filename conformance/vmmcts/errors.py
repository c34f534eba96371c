"""What can go wrong, by the exit code that it ends with."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The exit codes of ``vmmcts``."""

    CONFORMANT = 0
    VIOLATED = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    TOO_LITTLE = 4


class VmmctsError(Exception):
    """An error that ends the program with one line that says what is wrong and what to do."""

    exit_code = ExitCode.USAGE


class UsageError(VmmctsError):
    """The user has to change something: a name, a file, a manifest."""


class InfrastructureError(VmmctsError):
    """The suite or the machine failed; nothing is said of the implementation."""

    exit_code = ExitCode.INFRASTRUCTURE
