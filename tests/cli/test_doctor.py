"""`carpool doctor` looks at a Python the way a job would find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from carpool.cli import doctor
from carpool.cli.doctor import examine
from carpool.daemon.environment import INJECT


def python_in(directory: Path) -> str:
    """A Python that has a torch, whose version it says is its PYTHONPATH."""
    python = directory / "python"
    answer = '{"torch": "%s", "cuda": false, "hooked": true, "kind": "function", "version": "3", "moves": false}'
    python.write_text(f"""#!/bin/sh\nprintf '{answer}' "$PYTHONPATH"\n""")
    python.chmod(0o700)
    return str(python)


def test_the_users_own_python_path_is_kept_behind_carpools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    (torch,) = [finding for finding in examine(python_in(tmp_path)) if finding["what"] == "torch"]
    assert torch["mark"] == "ok"
    assert torch["text"].startswith(f"{INJECT}:/mine, CUDA not usable")


def test_the_devices_of_a_running_daemon_are_named(answering: list[dict[str, object]], tmp_path: Path) -> None:
    gpus = [{"id": f"gpu{n}", "capacity_bytes": 16 << 30, "title": "a stand-in"} for n in range(2)]
    answering.append({"pid": 7, "policy": "fair", "jobs": 0, "devices": gpus})
    said = [finding["text"] for finding in examine(python_in(tmp_path)) if finding["what"] == "daemon"]
    assert said == [
        "pid 7, policy fair, 0 jobs",
        "has gpu0: 16.0 GiB, a stand-in",
        "has gpu1: 16.0 GiB, a stand-in",
    ]


def test_the_directory_of_the_daemon_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carpool.wire.places.RUN_PARENT", tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CARPOOL_DIR", raising=False)
    run, state = tmp_path / f"carpool-{os.geteuid()}", tmp_path / "state" / "carpool" / os.uname().nodename
    usual = f"CARPOOL_DIR is not set: the place of user {os.geteuid()} on this machine"
    python = python_in(tmp_path)
    assert place_in(examine(python)) == f"{run} ({usual}); journal and logs in {state}"
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    chosen = f"{tmp_path}/run (CARPOOL_DIR is {tmp_path}); journal and logs in {tmp_path}/state"
    assert place_in(examine(python)) == chosen


def place_in(findings: list[dict[str, str]]) -> str:
    (place,) = [finding["text"] for finding in findings if finding["what"] == "place"]
    return place


def test_a_meter_that_does_not_come_to_an_end_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o700)
    found: list[tuple[str, str, str]] = []
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.1)
    doctor._examine_meter("meter.so", lambda *finding: found.append(finding))
    ((mark, what, text),) = found
    assert (mark, what) == ("missing", "meter")
    assert text.startswith("meter.so could not be tried: ")
    assert "timed out" in text
