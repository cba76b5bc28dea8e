"""Whose cap stands in the page, and up to what an allocation over it is worth waiting for.

The cap (H_CAP) of a job without `--memory` is what others leave of its device: a larger one may come by itself, so
its allocations wait for it. One that the user drew, at the start or with `carpool resize`, is not: what goes over it
fails at once, unless the job was told to wait for a larger one (`--wait-memory`). Both are said in H_CAPACITY.
"""

from __future__ import annotations

import os

from carpool.wire import page


def tell(words: memoryview, capacity_bytes: int, cap_bytes: int | None, *, may_wait: bool) -> None:
    """Daemon only: what the job's device has, and the cap its user drew, if any."""
    if cap_bytes is None:
        words[page.H_CAPACITY] = capacity_bytes
    else:
        words[page.H_CAPACITY] = page.OWN_CAP | (capacity_bytes if may_wait else min(capacity_bytes, cap_bytes))


def is_own(words: memoryview) -> bool:
    """Whether the cap is the user's; a job that was started with one has it in its environment too."""
    return bool(words[page.H_CAPACITY] & page.OWN_CAP) or bool(os.environ.get("CARPOOL_IS_CAPPED"))


def is_worth_waiting(words: memoryview, total_bytes: int) -> bool:
    """Whether a job that may wait could ever hold so much."""
    most = words[page.H_CAPACITY] & ~page.OWN_CAP
    return not most or total_bytes <= most
