#!/usr/bin/env python3
"""Try mutants against the scenarios of a build directory, without the command line around it.

    try_mutants.py [--build DIR] [-j N] [--all] [NAME...]

Runs the scenarios that carry the mutant's first clause (all of them with --all) and prints, for
each mutant, the scenarios that killed it, or that it survived. `vmmcts mutants` is what CI runs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HERE = pathlib.Path(__file__).parent
_SOURCE = _HERE.parent.parent
_DEVICES = 2
_TIMEOUT = 120  # seconds for one mutant


def command_of(mutant: dict[str, Any], build: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """Return the worker's command and the environment that make the mutant."""
    worker = str(build / "bin/vmmcts-worker")
    if mutant["kind"] == "table":
        return [worker, str(build / "lib/libmutants.so")], {
            "VMMCTS_MUTANT": mutant["name"],
            "VMMCTS_MUTANT_BASE": str(build / "lib/libreference.so"),
        }
    if mutant["kind"] == "patch":
        return [worker, str(build / f"lib/mutant_{mutant['name']}.so")], {}
    if mutant["kind"] == "reference":
        return [worker, str(build / "lib/libreference.so")], {}
    python = os.environ.get("VMMCTS_PYTHON", sys.executable)
    path = f"{build / 'python'}:{_SOURCE / 'conformance'}"
    return [python, "-m", "vmmcts.worker", f"mutants.python_mutants:{mutant['class']}"], {
        "PYTHONPATH": path
    }


# What the mutants of each kind are made of: a scenario that it fails kills nobody.
_RIGHT = {
    "c": {"name": "reference", "kind": "reference", "breaks": []},
    "python": {"name": "reference", "kind": "python", "class": "Mutant", "breaks": []},
}


def run(mutant: dict[str, Any], build: pathlib.Path, everything: bool) -> dict[str, Any]:
    """Run one mutant; the answer has the outcomes of scenarios and the clauses each violates."""
    command, environment = command_of(mutant, build)
    kind = "python" if mutant["kind"] == "python" else "c"
    tap = build / "tap/libcuda.so.1"
    with tempfile.TemporaryDirectory(prefix="vmmcts-mutant-") as work:
        device = pathlib.Path(work, "device")
        device.mkdir(mode=0o700)
        plan = {
            "version": 1,
            "implementation": mutant["name"],
            "worker": kind,
            "command": command,
            "kind": kind,
            "profiles": ["core", "rawfd"] + (["python"] if kind == "python" else []),
            "environment": {
                "SOFTCUDA_PROFILE": f"h200x{_DEVICES}",
                "SOFTCUDA_DIR": str(device),
                **environment,
            },
            "observer": [str(build / "bin/vmmcts-observer")],
            "driver": str(build / "softcuda/libcuda.so.1"),
            "tap": str(tap) if tap.exists() else None,
            "deadline_seconds": 20,
            "devices": _DEVICES,
            "work_dir": work,
            "events": str(pathlib.Path(work, "events.jsonl")),
        }
        pathlib.Path(work, "plan.json").write_text(json.dumps(plan))
        tags = [] if everything else [f"[{mutant['breaks'][0]}]"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [str(build / "bin/vmmcts-scenarios"), "--plan", f"{work}/plan.json", *tags],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT,
                check=False,
            )
        return _read(pathlib.Path(work, "events.jsonl"))


def _read(events: pathlib.Path) -> dict[str, Any]:
    """Return {scenario: {outcome, carries, violates, text}}."""
    scenarios: dict[str, Any] = {}
    for line in events.read_text().splitlines() if events.exists() else []:
        event = json.loads(line)
        if event["event"] == "scenario.start":
            scenarios[event["name"]] = {
                "outcome": "infrastructure",
                "carries": event["clauses"],
                "violates": set(),
                "text": "",
            }
        elif event["event"] == "evidence":
            scenario = scenarios[event["scenario"]]
            named = event.get("clause")
            scenario["violates"].update([named] if named else scenario["carries"])
            scenario["text"] = scenario["text"] or event["text"]
        elif event["event"] == "scenario.end":
            scenarios[event["name"]].update(outcome=event["outcome"], reason=event["reason"])
    return scenarios


def judge(
    mutant: dict[str, Any], scenarios: dict[str, Any], right: dict[str, Any]
) -> tuple[bool, str]:
    """Whether the mutant was killed by a scenario that carries its first clause, and how.

    A scenario counts that does its work on the right implementation.
    """
    main = mutant["breaks"][0]
    if any("during hello" in s["text"] for s in scenarios.values()):
        return False, "BROKEN: its worker does not start"
    killers = [
        name
        for name, s in scenarios.items()
        if main in s["carries"]
        and main in s["violates"]
        and s["outcome"] != "infrastructure"
        and right.get(name, {"outcome": ""})["outcome"] in ("pass", "not_exercised")
    ]
    if killers:
        return True, f"killed by {killers[0]!r}: {scenarios[killers[0]]['text']}"
    outcomes = {name: s["outcome"] for name, s in scenarios.items() if main in s["carries"]}
    return False, f"SURVIVED {outcomes or 'no scenario carries ' + main}"


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=_SOURCE / "build")
    parser.add_argument("-j", type=int, default=2, dest="jobs")
    parser.add_argument("--all", action="store_true", help="run every scenario")
    parser.add_argument("-v", action="store_true", help="list every scenario that failed")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    build = asked.build.resolve()
    mutants = tomllib.loads((_HERE / "mutants.toml").read_text())["mutant"]
    chosen = [m for m in mutants if not asked.names or m["name"] in asked.names]
    survived = 0
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        kinds = {"python" if m["kind"] == "python" else "c" for m in chosen}
        right = dict(
            zip(kinds, pool.map(lambda k: run(_RIGHT[k], build, True), kinds), strict=True)
        )
        for kind, scenarios in right.items():
            for name, s in scenarios.items():
                if s["outcome"] not in ("pass", "not_exercised", "not_applicable"):
                    print(f"reference ({kind}): {s['outcome']}: {name}: {s['text'][:150]}")
        results = pool.map(lambda m: (m, run(m, build, asked.all)), chosen)
        for mutant, scenarios in results:
            kind = "python" if mutant["kind"] == "python" else "c"
            killed, text = judge(mutant, scenarios, right[kind])
            survived += not killed
            print(f"{mutant['breaks'][0]:9} {mutant['name']:34} {text[:200]}", flush=True)
            for name, s in scenarios.items() if asked.v else ():
                if s["outcome"] != "pass":
                    text = s["text"] or s.get("reason", "")
                    print(f"    {s['outcome']}: {name}: {sorted(s['violates'])} {text[:150]}")
    print(f"{len(chosen)} mutants, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
