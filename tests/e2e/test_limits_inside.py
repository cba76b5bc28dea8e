"""What a limited job may ask of the daemon from inside: less for itself, and no job beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.node import CARPOOL, Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ASK = """
import os, subprocess, sys
carpool, out = sys.argv[1:3]
bare = {name: value for name, value in os.environ.items() if name not in ("CARPOOL_JOB", "CARPOOL_PAGE")}
job = os.environ["CARPOOL_JOB"]
with open(out, "w") as file:
    for env in (None, bare):
        for words in (["resize", job, "--memory", "900MiB"], ["resize", job, "--compute", "90%"],
                      ["run", "--memory", "900MiB", "--", "true"], ["submit", "--", "true"],
                      ["resize", job, "--compute", "10%"]):
            done = subprocess.run([carpool, *words], env=env, capture_output=True, text=True, timeout=60)
            print(done.returncode, done.stderr.strip().replace("\\n", " "), file=file)
"""


def test_a_limited_job_lowers_its_own_limits_only_and_starts_no_job_beside_itself(node: Node, tmp_path: Path) -> None:
    node.start()
    options = ["--name", "a", "--memory", "300MiB", "--compute", "20%"]
    ended = node.run(sys.executable, "-c", ASK, CARPOOL, str(tmp_path / "out"), options=options).wait()
    assert ended.code == 0, ended.err
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[:5] == [
        "1 carpool: job a-1 cannot raise its own cap from 300 MiB to 900 MiB: resize it from outside",
        "1 carpool: job a-1 cannot raise its own compute share from 20 % to 90 %: resize it from outside",
        *[
            "1 carpool: this call comes from inside job a-1, whose limits a job of its own would not be under: start"
            " the program without carpool, and it is part of that job, or start it from outside"
        ]
        * 2,
        "0 ",
    ]
    assert [line.split()[0] for line in lines[5:]] == ["1", "1", "1", "1", "0"]  # the kernel knows whose child it is
