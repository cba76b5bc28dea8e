"""Makes torch's vector functions on the CPU repeatable: each is called once, on one number, before the program's own.

In MKL 2024.2, which torch 2.13 has in it, a vector function looks up its code at its first call. Where two threads
make that call, one of them may compute its half with the code of the lowest accuracy: relative errors of 3e-4 in the
square root of the first step of Adam, in one of a hundred to one of five thousand starts, and the more often the
busier the processors are (docs/design/0015-first-calls.md, pytorch issue 188792). Sharing makes processors busy, so
this is ours to prevent; one number is computed by one thread.
"""

from __future__ import annotations

import contextlib
from typing import Any

# Those that torch hands to MKL, by its own header ATen/cpu/vml.h; each has code of its own for each precision.
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp"),
    *("log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)


def make(torch: Any) -> None:
    """Draws no random number, starts no thread and leaves no tensor behind."""
    with contextlib.suppress(Exception):  # a torch that has one of these elsewhere goes without: as if alone
        if torch.backends.mkl.is_available():
            for dtype in (torch.float32, torch.float64):
                half = torch.full((1,), 0.5, dtype=dtype, device="cpu")
                for name in FUNCTIONS:
                    getattr(torch, name)(half)
