"""What only a GPU can show. Run with `pytest -m gpu` where there is one; elsewhere skipped, loudly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from carpool.devices import nvml

PROGRAMS = Path(__file__).parents[1] / "programs"
EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_SECONDS = 170


def reason_to_skip() -> str:
    if not nvml.count():
        return f"no NVIDIA GPU here ({nvml.trouble()})"
    found = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, text=True
    )
    return "" if found.stdout.strip() == "True" else "this torch has no usable CUDA"


pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())]


def carpool(home: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "carpool.cli.main", *words]
    environment = {**os.environ, "CARPOOL_DIR": home}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS)


def test_a_training_job_on_a_gpu_takes_turns_and_its_needs_are_measured() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        try:
            done = carpool(
                home,
                "run",
                "--device",
                "cuda:0",
                "--",
                sys.executable,
                str(EXAMPLES / "train_gpt.py"),
                "--steps",
                "20",
            )
            assert done.returncode == 0, done.stderr
            jobs = json.loads(carpool(home, "ps", "--all", "--json").stdout)["jobs"]
            assert jobs[0]["steps"] == 20
            assert jobs[0]["needs"]["persistent_bytes"] > 0
            assert jobs[0]["needs"]["ephemeral_bytes"] > 0
        finally:
            carpool(home, "daemon", "stop", "--force")


def test_beyond_its_cap_a_gpu_job_gets_torchs_own_error_and_carpools_sentence() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        code = (
            "import torch\np = torch.nn.Parameter(torch.zeros(1, device='cuda'))\n"
            "o = torch.optim.SGD([p], lr=0.1)\np.grad = torch.ones_like(p)\n[o.step() for _ in range(4)]\n"
            "torch.zeros(1 << 31, device='cuda')\n"
        )
        try:
            done = carpool(home, "run", "--device", "cuda:0", "--memory", "1GiB", "--", sys.executable, "-c", code)
            assert done.returncode == 1
            assert "OutOfMemoryError" in done.stderr and "may hold 1.00 GiB" in done.stderr
        finally:
            carpool(home, "daemon", "stop", "--force")
