"""Carpool's own calls on tensors, which a program that watches calls must not see.

A program may count or refuse what torch does: with modes, or with a tensor class of its own. It has to see the same
calls alone and in a job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def unseen(torch: Any) -> Iterator[None]:
    """No mode and no tensor class of the program sees what this thread asks of torch while the block lasts."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield
