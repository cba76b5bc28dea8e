"""Runs another program with torch's deterministic algorithms: whoever compares two runs digit by digit wants them."""

from __future__ import annotations

import runpy
import sys
import time

import torch

torch.use_deterministic_algorithms(True)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
time.sleep(0.5)  # for torch's autograd thread: who ends while it tidies up may be aborted (docs/interposer.md)
