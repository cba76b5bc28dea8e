"""`carpool doctor` looks at a Python the way a job would find it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
