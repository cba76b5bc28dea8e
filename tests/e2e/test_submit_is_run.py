"""What a program finds is the same under `carpool run` and `carpool submit`, compared field by field."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import CARPOOL, PYTHON, Node, Started

pytestmark = pytest.mark.timeout(120)

# Whoever starts carpool has these, and the daemon has others.
SETTER = """
import json, os, resource, signal, sys
os.umask(0o027)
os.chdir(sys.argv[1])
os.nice(5)
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for name, soft in {"RLIMIT_NOFILE": 777, "RLIMIT_CORE": 4096, "RLIMIT_STACK": 4 << 20}.items():
    kind = getattr(resource, name)
    resource.setrlimit(kind, (soft, max(soft, 10_000) if name == "RLIMIT_NOFILE" else resource.getrlimit(kind)[1]))
for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGRTMIN + 3):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR1, signal.SIGWINCH})
os.environ["MARK"] = "mine"
os.execv(sys.argv[2], sys.argv[2:])
"""
TELLER = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
umask = os.umask(0)
print(json.dumps({
    "umask": umask,
    "cwd": os.getcwd(),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "scheduler": os.sched_getscheduler(0),
    "cpus": sorted(os.sched_getaffinity(0)),
    "blocked": status["SigBlk"].strip(),
    "ignored": status["SigIgn"].strip(),
    "caught": status["SigCgt"].strip(),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"},
    "environment": dict(os.environ),
}))
"""
OF_THE_JOB = {"CARPOOL_JOB", "CARPOOL_PAGE"}  # each job has its own


def started_by(node: Node, directory: Path, *words: str) -> Started:
    return Started(node, [PYTHON, "-c", SETTER, str(directory), CARPOOL, *words])


def told(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    found["environment"] = {name: said for name, said in found["environment"].items() if name not in OF_THE_JOB}
    return found


def test_a_submitted_program_finds_what_it_would_find_under_run(node: Node, tmp_path: Path) -> None:
    node.start()
    program = ["--name", "teller", "--", PYTHON, "-S", "-c", TELLER]
    ran = started_by(node, tmp_path, "run", *program).wait()
    assert ran.code == 0, ran.err
    submitted = started_by(node, tmp_path, "submit", "--json", *program).wait()
    assert submitted.code == 0, submitted.err
    job = json.loads(submitted.out)["job"]["id"]
    assert node.wait_state(job, "finished", "failed")["state"] == "finished"
    in_run, in_submit = told(ran.out), told((node.places.logs / f"{job}.log").read_bytes().splitlines()[-1])
    for field, expected in in_run.items():
        assert in_submit[field] == expected, field
    assert in_run["umask"] == 0o027
    assert in_run["nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert in_run["limits"]["RLIMIT_NOFILE"] == [777, 10_000]
    assert in_run["environment"]["MARK"] == "mine"
    assert in_run["cwd"] == str(tmp_path)
