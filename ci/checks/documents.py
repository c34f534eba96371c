#!/usr/bin/env python3
"""Check the documents: commands in blocks can be run, and paths that they name exist.

In a block marked sh or console, a line that starts with a script of ci/ must name one that is
there, with options that its help knows. A path in `code` that begins with a folder of the project
must exist; what a build makes (build/) need not.
"""

from __future__ import annotations

import functools
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_RUNNABLE = {"sh", "console", "bash"}


def documents(root: pathlib.Path) -> list[pathlib.Path]:
    """Every document of the project: not those of builds and hidden folders."""
    return sorted(
        path
        for path in root.rglob("*.md")
        if not re.match(r"build/|\.", str(path.relative_to(root)))
    )


@functools.cache
def help_of(root: pathlib.Path, command: tuple[str, ...]) -> str:
    """The help of a script of ci/, "" when it has none."""
    answer = subprocess.run(
        [str(root / command[0]), *command[1:], "--help"],
        text=True, capture_output=True, check=False, timeout=60,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb"},
    )  # fmt: skip
    return answer.stdout if answer.returncode == 0 else ""


def command_problems(root: pathlib.Path, line: str) -> Iterator[str]:
    """What is wrong with one command line of a document."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        yield f"cannot be read: {line}"
        return
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    if not words or not words[0].startswith("ci/"):
        return
    if not (root / words[0]).exists():
        yield f"no script {words[0]}"
        return
    command = words[:2] if words[0] == "ci/vmmcts" and len(words) > 1 else words[:1]
    text = help_of(root, tuple(command))
    if not text:
        yield f"{shlex.join(command)} --help fails"
    own = words[len(command) :]
    own = own[: own.index("--")] if "--" in own else own
    if words[0] in ("ci/conformance", "ci/gpu"):
        text += help_of(root, ("ci/vmmcts", "run"))
    for word in own:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", option) and option not in text:
            yield f"{shlex.join(command)} has no option {option}"


def path_problems(root: pathlib.Path, document: pathlib.Path, text: str) -> Iterator[str]:
    """Paths that a document names and nobody has."""
    folders = {entry.name for entry in root.iterdir() if entry.is_dir()} - {"build"}
    for code in _CODE.findall(text):
        path = code.strip().rstrip("/")
        if not re.fullmatch(r"[\w.*/-]+", path) or path.split("/")[0] not in folders:
            continue
        if "/" in path and not list(root.glob(path)):
            yield f"no path {path}"
    for link in _LINK.findall(text):
        if not re.match(r"\w+:", link) and not (document.parent / link).exists():
            yield f"no file behind the link {link}"


def problems(root: pathlib.Path) -> Iterator[str]:
    """Everything that is wrong."""
    for document in documents(root):
        text = document.read_text()
        name = document.relative_to(root)
        for kind, block in _BLOCK.findall(text):
            if kind in _RUNNABLE:
                for line in block.splitlines():
                    command = line.removeprefix("$ ") if kind == "console" else line
                    if kind != "console" or line.startswith("$ "):
                        yield from (f"{name}: {p}" for p in command_problems(root, command))
        for problem in path_problems(root, document, _BLOCK.sub("", text)):
            yield f"{name}: {problem}"


def main() -> int:
    """Run the check."""
    found = list(problems(ROOT))
    for problem in found:
        print(f"documents: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
