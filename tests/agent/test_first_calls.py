"""Torch's vector functions are looked up before a job's program uses them, and nothing else is touched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from carpool.agent import first_calls

STARTS = 600  # without the calls about one in a hundred is wrong on two cores
PLAIN = """
import os
import torch
from carpool.agent import first_calls
torch.manual_seed(0)
pass
print(torch.rand(4).tolist(), len(os.listdir("/proc/self/task")))
"""


def test_every_function_that_torch_hands_to_mkl_is_called() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "cpu" / "vml.h"
    handed = re.findall(r"^IMPLEMENT_VML_MKL\((\w+), \w+\)$", header.read_text(), re.MULTILINE)
    assert sorted(first_calls.FUNCTIONS) == sorted(handed)


def test_it_draws_no_random_number_and_starts_no_thread() -> None:
    def state(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert state(PLAIN.replace("pass", "first_calls.make(torch)")) == state(PLAIN) != ""


def test_a_torch_that_lacks_what_it_needs_goes_without() -> None:
    first_calls.make(object())


def test_settings_that_come_after_the_calls_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "_read", [])
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert first_calls.too_late() == [], "no call was made"
    first_calls.make(torch)
    assert first_calls.too_late() == []
    first_calls.make(torch)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert first_calls.too_late() == ["ATEN_CPU_CAPABILITY", "MKL_CBWR"]
    assert first_calls.too_late() == [], "it was told"


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL: its functions have no race")
def test_the_first_square_roots_of_a_process_are_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.first_calls_storm", str(STARTS), "--made"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith(f"0 of {STARTS} wrong"), done.stdout + done.stderr
