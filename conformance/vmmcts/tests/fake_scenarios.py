#!/usr/bin/env python3
"""A coordinator for tests: it plays what FAKE_PLAY (a JSON file) says of each scenario."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time


def main() -> int:
    play = json.loads(pathlib.Path(os.environ["FAKE_PLAY"]).read_text())
    if sys.argv[1:] == ["--catalog"]:
        for name, part in play.items():
            entry = {
                "name": name,
                "profile": part.get("profile", "core"),
                "file": "f.cpp",
                "line": 1,
            }
            print(json.dumps({**entry, "clauses": part.get("clauses", [])}))
        return 0
    plan = json.loads(pathlib.Path(sys.argv[2]).read_text())
    assert pathlib.Path(os.environ["SOFTCUDA_DIR"]).is_dir()
    with open(plan["events"], "a", buffering=1) as log:

        def write(event: str, **members: object) -> None:
            log.write(json.dumps({"event": event, **members}) + "\n")

        write("run", implementation=plan["implementation"], worker=plan["worker"],
              worker_version="1", driver_version=13000, time="t")  # fmt: skip
        for name in plan["scenarios"]:
            part = {**play[name], **play[name].get("on", {}).get(plan["worker"], {})}
            act = part.get("act")
            if act == "skip":
                continue
            write("scenario.start", name=name, profile=part.get("profile", "core"),
                  clauses=part.get("clauses", []), file="f.cpp", line=1)  # fmt: skip
            if act == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            if act == "orphan":
                subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if act == "hang":
                subprocess.Popen(["sleep", "1000"])
                pathlib.Path(os.environ["FAKE_PLAY"] + ".hanging").write_text(plan["work_dir"])
                time.sleep(1000)
            if act == "garbage":
                log.write("no json\n")
            for text in part.get("notes", []):
                write("note", scenario=name, text=text)
            for evidence in part.get("evidence", []):
                write("evidence", scenario=name, witness="assertion", **evidence)
            write("scenario.end", name=name, outcome=part.get("outcome", "pass"), seconds=0.01,
                  reason=part.get("reason", ""))  # fmt: skip
        write("run.end", failed=0)
    return 0


sys.exit(main())
