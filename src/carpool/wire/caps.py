"""Whose cap stands in the page, and up to what an allocation over it is worth waiting for.

The cap (H_CAP) of a job without `--memory` is what others leave of its device. It may grow by itself, so allocations
over it wait. A cap that the user set, at the start or with `carpool resize`, does not grow by itself. An allocation
over it fails at once, unless the job was told to wait for a larger cap (`--wait-memory`). H_CAPACITY tells the two
apart.
"""

from __future__ import annotations

import os

from carpool.wire import page


def tell(words: memoryview, capacity_bytes: int, cap_bytes: int | None, *, may_wait: bool) -> None:
    """Daemon only: the size of the job's device, and the cap its user set, if any."""
    if cap_bytes is None:
        words[page.H_CAPACITY] = capacity_bytes
    else:
        words[page.H_CAPACITY] = page.OWN_CAP | (capacity_bytes if may_wait else min(capacity_bytes, cap_bytes))


def is_own(words: memoryview) -> bool:
    """Whether the user set the cap; a job that was started with one has that in its environment too."""
    return bool(words[page.H_CAPACITY] & page.OWN_CAP) or bool(os.environ.get("CARPOOL_IS_CAPPED"))


def is_worth_waiting(words: memoryview, total_bytes: int) -> bool:
    """Whether a job that may wait could ever hold so many bytes."""
    most = words[page.H_CAPACITY] & ~page.OWN_CAP
    return not most or total_bytes <= most
