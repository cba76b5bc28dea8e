"""The page of one job from the daemon's side: what it tells the job's programs there, and what it reads of them.

A job has no page before it starts and after its end; then nothing is told, and what is read is nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

from carpool.core.kernel.ids import SHARE_ONE
from carpool.core.node.model import JobSpec
from carpool.daemon import processes
from carpool.wire import caps
from carpool.wire.page import PRICE_ONE, Page, Slot


class JobPage:
    def __init__(self) -> None:
        self.page: Page | None = None
        self._slots: dict[int, Slot] = {}  # made once: a hand-over asks for a few

    def make(self, directory: Path) -> None:
        path = directory / "page"
        path.unlink(missing_ok=True)
        self.close()
        self.page = Page.create(path)

    def open(self, directory: Path) -> None:
        """Take up the page of a job that outlived its daemon; PeerError if it cannot be used."""
        self.page = Page.open(directory / "page")

    def close(self) -> None:
        self._slots.clear()
        if self.page is not None:
            self.page.close()
            self.page = None

    def slot(self, number: int) -> Slot | None:
        """The words of one process; None while there is no page."""
        found = self._slots.get(number)
        if found is None and self.page is not None:
            found = self._slots[number] = self.page.slot(number)
        return found

    # --- what the programs are told --------------------------------------------------------------------------

    def set_capacity(self, capacity_bytes: int, spec: JobSpec) -> None:
        """How much the job's device has and whether its user drew a cap: no more is worth waiting for."""
        if self.page is not None:
            may_wait = spec.wait_memory_ns is not None
            caps.tell(self.page.words, capacity_bytes, spec.cap_bytes, may_wait=may_wait)

    def set_cap(self, cap_bytes: int) -> None:
        if self.page is not None:
            self.page.header.cap_bytes = max(1, cap_bytes)  # 0 is no cap there

    def set_compute(self, limit_milli: int | None) -> None:
        """What device time costs the programs; a price of 0 is no limit."""
        if self.page is not None:
            price = 0 if limit_milli is None else max(1, round(PRICE_ONE * SHARE_ONE / limit_milli))
            self.page.header.price = price

    def set_waiters(self, count: int) -> None:
        if self.page is not None and self.page.header.waiters != count:
            self.page.header.waiters = count

    def deny(self, reason: str) -> None:
        """Allocations that wait now fail."""
        if self.page is not None:
            self.page.deny(reason, now=time.monotonic_ns())

    # --- what they say ---------------------------------------------------------------------------------------

    def pids(self) -> set[int]:
        return set(self.page.pids().values()) if self.page is not None else set()

    def live_bytes(self) -> int:
        """Bytes the job's living processes hold together."""
        if self.page is None:
            return 0
        claimed = self.page.pids()
        return sum(self.page.live_bytes(slot) for slot, pid in claimed.items() if processes.is_alive(pid))

    def live_bytes_of(self, slot: int) -> int:
        return self.page.live_bytes(slot) if self.page is not None else 0

    def pending_bytes(self) -> int:
        """Bytes for which allocations of its living processes wait; those under the cap are being made just now."""
        pending = self.page.pending() if self.page is not None else []
        if self.page is None or not pending:  # nearly always, and asked often
            return 0
        pending_bytes = sum(count for pid, count in pending if processes.is_alive(pid))
        return pending_bytes if 0 < self.page.header.cap_bytes < self.live_bytes() + pending_bytes else 0

    def device_ns(self) -> int:
        """Device time of all processes the job ever had, as the CUDA guest counts it."""
        return self.page.header.device_ns if self.page is not None else 0

    def denied(self) -> tuple[int, int]:
        """How many allocations were refused for the cap, and the bytes of the newest."""
        return (self.page.header.denied_count, self.page.header.denied_bytes) if self.page is not None else (0, 0)

    def usage(self) -> list[dict[str, int]]:
        """Bytes and device time of each of its living processes that has either."""
        found: list[dict[str, int]] = []
        for number, pid in self.page.pids().items() if self.page is not None else ():
            slot = self.slot(number)
            assert slot is not None
            used = {
                "live_bytes": slot.live_bytes,
                "spilled_bytes": slot.spilled_bytes,
                "device_ns": slot.device_ns,
            }
            if any(used.values()) and processes.is_alive(pid):
                found.append({"pid": pid, **used})
        return found
