#!/usr/bin/env python3
"""Check who knows whom: the layers of the project, in C++ includes, imports and library names."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTHING = r"(?!)"
_SOURCES = {".cpp", ".hpp", ".h", ".inc", ".py", ".txt"}
_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import|import\s+([\w.]+))", re.MULTILINE)
_HARNESS = r"^(vmmcts|coordinator|worker|tap|mutants|adapters|conformance|scenarios)(/|\.(?!h)|$)"


@dataclasses.dataclass(frozen=True)
class Layer:
    """What the files below ``folder`` must not know, as patterns, and why."""

    folder: str
    includes: str = _NOTHING
    imports: str = _NOTHING
    text: str = _NOTHING
    why: str = ""


LAYERS = (
    Layer("reference", includes=_HARNESS, imports=_HARNESS,
          why="the reference knows the driver API only"),
    Layer("reference/vmm", text=r"softcuda",
          why="the reference does not know which driver it is on"),
    Layer("reference/softcuda", includes=r"vmm/", imports=r"vmmref(\.|$)",
          why="the software driver knows neither reference nor harness"),
    Layer("conformance/coordinator", includes=r"cuda\w*\.h$|^(vmm|softcuda)/", text=r"libcuda",
          why="the coordinator never loads CUDA and knows no implementation"),
    Layer("scenarios", includes=r"cuda\w*\.h$|^(vmm|softcuda|worker)/",
          text=r"dlopen|libcuda|libreference", why="scenarios know the protocol only"),
    Layer("conformance/worker", includes=r"^(vmm|softcuda|coordinator)/",
          why="a worker knows the protocol and a table"),
    Layer("conformance/protocol", includes=r"^(vmm|softcuda|coordinator|worker)/|cuda\.h$",
          why="the protocol is below everything"),
    Layer("conformance/vmmcts/worker", imports=r"vmmref|vmmcts\.(cli|runner|verdicts|session)",
          why="a worker knows the protocol and an adapter"),
)  # fmt: skip


def without_comments(path: pathlib.Path, text: str) -> str:
    """The text with comments blanked: a comment may speak of anything."""
    if path.suffix in (".py", ".txt"):
        return re.sub(r"(?m)#.*$", "", text) if path.suffix == ".txt" else text
    return re.sub(r"(?s)/\*.*?\*/|//[^\n]*", "", text)


def names(pattern: re.Pattern[str], text: str) -> Iterable[str]:
    """What a source includes or imports."""
    return (next(filter(None, match.groups())) for match in pattern.finditer(text))


def problems(root: pathlib.Path, layers: Iterable[Layer] = LAYERS) -> Iterator[str]:
    """Each forbidden include, import or word."""
    for layer in layers:
        for path in sorted((root / layer.folder).rglob("*")):
            if path.suffix not in _SOURCES or "tests" in path.parts or "_test" in path.name:
                continue
            text = without_comments(path, path.read_text(errors="replace"))
            where = path.relative_to(root)
            if path.suffix == ".py":
                bad = [n for n in names(_IMPORT, text) if re.search(layer.imports, n)]
            elif path.suffix == ".txt":
                bad = []
            else:
                bad = [n for n in names(_INCLUDE, text) if re.search(layer.includes, n)]
                bad += re.findall(layer.text, text)
            for name in bad:
                yield f"{where}: {name}: {layer.why}"


def main() -> int:
    """Run the check."""
    found = list(problems(ROOT))
    for problem in found:
        print(f"layers: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
