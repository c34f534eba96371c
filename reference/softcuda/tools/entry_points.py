#!/usr/bin/env python3
"""Writes the tables of entry points from cuda.h, cudaTypedefs.h and softcuda's own sources.

    entry_points.py INCLUDE_DIR          rewrite the tables beside the sources
    entry_points.py INCLUDE_DIR --check  exit 1 when they would change

entry_points.inc  ENTRY(name, version, symbol): what cuGetProcAddress knows
forwarded.inc     FORWARD(symbol, target): other names of modelled functions
unmodelled.inc    UNMODELLED(symbol): exported, answers CUDA_ERROR_NOT_SUPPORTED
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

# First versions whose arguments are those of the second one.
SAME_AS_V2 = (
    "cuCtxDestroy cuCtxPushCurrent cuCtxPopCurrent cuStreamDestroy cuEventDestroy "
    "cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags "
    "cuEventElapsedTime cuMemHostRegister cuIpcOpenMemHandle"
).split()


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def renames(header: str) -> dict[str, str]:
    """The macros of cuda.h that give a plain name its current symbol."""
    found = re.findall(r"#define (cu\w+)\s+(?:__CUDA_API_PT\w\w\()?(cu\w+)\)?", header)
    return {name: symbol for name, symbol in found if symbol.startswith(name + "_v")}


def versions(typedefs: str) -> dict[str, list[int]]:
    """The versions of each plain name; the variants for the per-thread stream are not versions."""
    table: dict[str, set[int]] = {}
    for name, version in re.findall(r"\*PFN_(cu\w+?)_v(\d+)\)", typedefs):
        table.setdefault(name, set()).add(int(version))
    return {name: sorted(found) for name, found in table.items()}


def modelled(current: dict[str, str]) -> set[str]:
    symbols = set()
    for source in HERE.glob("*.cpp"):
        if source.name.endswith("_test.cpp"):
            continue
        text = source.read_text()
        plain = set(re.findall(r"^#undef (cu\w+)", text, re.M))
        for name in re.findall(r'^(?:extern "C" )?CUresult (cu\w+)\(', text, re.M):
            symbols.add(name if name in plain else current.get(name, name))
    return symbols


def tables(include: Path) -> dict[str, str]:
    header = without_comments((include / "cuda.h").read_text())
    typedefs = (include / "cudaTypedefs.h").read_text()
    current = renames(header)
    own = modelled(current)
    entries, symbols = [], set()
    for name, found in sorted(versions(typedefs).items()):
        for index, version in enumerate(found):
            symbol = name if index == 0 else f"{name}_v{index + 1}"
            symbols.add(symbol)
            entries.append(f"ENTRY({name}, {version}, {symbol})")
    declared = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", header))
    symbols |= {current.get(name, name) for name in declared} | set(current.values()) | own
    per_thread = re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)\)", typedefs)
    found_versions = versions(typedefs)
    forwards = {}
    for name, version, suffix in per_thread:
        # The variant of the newest plain version that is no younger than the variant.
        index = sum(plain <= int(version) for plain in found_versions[name]) - 1
        target = name if index == 0 else f"{name}_v{index + 1}"
        forwards[target + suffix] = target
    for name in SAME_AS_V2:
        if name + "_v2" in own:
            forwards[name] = name + "_v2"
    forwarded = {name: to for name, to in forwards.items() if to in own and name not in own}
    missing = (symbols | set(forwards)) - own - set(forwarded)
    head = "// Written by tools/entry_points.py from the CUDA headers; do not edit.\n"
    return {
        "entry_points.inc": head + "\n".join(entries) + "\n",
        "forwarded.inc": head
        + "\n".join(f"FORWARD({a}, {b})" for a, b in sorted(forwarded.items()))
        + "\n",
        "unmodelled.inc": head + "\n".join(f"UNMODELLED({s})" for s in sorted(missing)) + "\n",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("include", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = []
    for name, text in tables(arguments.include).items():
        path = HERE / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not arguments.check:
                path.write_text(text)
    if arguments.check and stale:
        print(f"out of date: {', '.join(stale)}; run tools/entry_points.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
