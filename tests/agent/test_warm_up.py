"""Torch's vector functions are looked up before a job's program uses them, and nothing else is touched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from carpool.agent import warm_up

STARTS = 600  # without the calls about one in a hundred is wrong on two cores
PLAIN = """
import os
import torch
from carpool.agent import warm_up
torch.manual_seed(0)
pass
print(torch.rand(4).tolist(), len(os.listdir("/proc/self/task")))
"""


def test_every_function_that_torch_hands_to_mkl_is_called() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "cpu" / "vml.h"
    handed = re.findall(r"^IMPLEMENT_VML_MKL\((\w+), \w+\)$", header.read_text(), re.MULTILINE)
    assert sorted(warm_up.FUNCTIONS) == sorted(handed)


def test_it_draws_no_random_number_and_starts_no_thread() -> None:
    def state(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert state(PLAIN.replace("pass", "warm_up.make_first_calls(torch)")) == state(PLAIN) != ""


def test_a_torch_that_lacks_what_it_needs_goes_without() -> None:
    warm_up.make_first_calls(object())


def test_settings_that_come_after_the_calls_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_read", [])
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert warm_up.settings_too_late() == [], "no call was made"
    warm_up.make_first_calls(torch)
    assert warm_up.settings_too_late() == []
    warm_up.make_first_calls(torch)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert warm_up.settings_too_late() == ["ATEN_CPU_CAPABILITY", "MKL_CBWR"]
    assert warm_up.settings_too_late() == [], "it was told"


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL: its functions have no race")
def test_the_first_square_roots_of_a_process_are_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.warm_up_storm", str(STARTS), "--made"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith(f"0 of {STARTS} wrong"), done.stdout + done.stderr
