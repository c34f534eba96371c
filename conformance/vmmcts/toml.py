"""Reading TOML with errors that name the file."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from vmmcts.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load(path: pathlib.Path) -> dict[str, Any]:
    """The tables of a file. UsageError when it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
