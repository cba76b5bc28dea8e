"""Makes torch's vector functions on the CPU repeatable: each is called once, on one number, before the program's own.

In MKL 2024.2, which torch 2.13 has in it, a vector function looks up its code at its first call. Where two threads
make that call at once, one of them may compute its half with the code of the lowest accuracy. The square root of the
first step of Adam then has relative errors of 3e-4, in one of seventy to one of six hundred starts, more often where
the processors are busier (docs/design/0015-first-calls.md, pytorch issue 188792). Sharing makes processors busy, so
carpool prevents it: one number is computed by one thread.

At its first operation torch also reads a few settings for good. A program that sets one of them after its import of
torch is told that this is too late in a job.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

# Those that torch hands to MKL, by its own header ATen/cpu/vml.h; each has code of its own for each precision.
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp"),
    *("log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)
SETTINGS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")

_read: list[str | None] = []  # the values of the settings when the calls were made


def make_first_calls(torch: Any) -> None:
    """Draws no random number, starts no thread and leaves no tensor behind. A warm parent has made them for all its
    programs, with settings that are theirs too (wire/warm.py)."""
    if _read:
        return
    with contextlib.suppress(Exception):  # a torch that has one of these elsewhere goes without: as if alone
        if torch.backends.mkl.is_available():
            _read[:] = map(os.environ.get, SETTINGS)
            for dtype in (torch.float32, torch.float64):
                half = torch.full((1,), 0.5, dtype=dtype, device="cpu")
                for name in FUNCTIONS:
                    getattr(torch, name)(half)


def settings_too_late() -> list[str]:
    """The settings that the program made, or changed, after the calls; each is told once."""
    late = [name for name, value in zip(SETTINGS, _read, strict=False) if os.environ.get(name) != value]
    _read.clear()
    return late
