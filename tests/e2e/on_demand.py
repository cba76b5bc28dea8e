"""Other people's packages that only one test each needs: installed when that test runs, into .venv/clients, and kept.

They stand neither in constraints.txt nor in `make setup`. Triton and Taichi take more than a gigabyte, gpustat has to
be built, and a pin of triton there would be in the way of torch's CUDA build, which wants its own. Without their
dependencies (what is needed is named here), so that none of them brings another torch.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PINS = {
    "tinygrad": ("tinygrad==0.14.0",),
    "triton": ("triton==3.9.0",),
    "drjit": ("drjit==1.5.0",),
    "taichi": ("taichi==1.7.4", "colorama==0.4.6", "dill==0.4.1"),
    "gpustat": ("gpustat==1.1.1", "blessed==1.52.0", "jinxed==2.1.0", "wcwidth==0.9.4"),
}
INSTALL_S = 150  # below the time limit of a test


def directory_of(client: str) -> Path:
    """Where the client's packages are, for PYTHONPATH; skips loudly where they cannot be had."""
    place = Path(sys.prefix) / "clients" / "_".join(PINS[client])
    place.parent.mkdir(exist_ok=True)
    with (place.parent / f"{client}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            install(client, place)
    return place


def install(client: str, place: Path) -> None:
    draft = place.with_name(f"{client}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # of somebody who failed
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--retries", "1", "--target", str(draft)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *PINS[client]],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"it took more than {INSTALL_S} s"
    if reason:
        shutil.rmtree(draft, ignore_errors=True)
        pytest.skip(f"{client} cannot be installed, that client is NOT tested: {reason}")
    draft.rename(place)
