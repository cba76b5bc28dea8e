"""The page of one job from the daemon's side: what it tells the job's programs there, and what it reads of them.

A job has no page before it starts and after its end; then nothing is told, and what is read is nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from carpool.core.kernel.ids import SHARE_ONE
from carpool.core.node.model import JobSpec
from carpool.daemon import processes
from carpool.wire import caps
from carpool.wire.page import COUNT_MAX, PRICE_ONE, Page, Slot


class JobPage:
    def __init__(self, owner: int | None = None) -> None:
        self._owner = os.geteuid() if owner is None else owner
        self.page: Page | None = None
        self._spec: JobSpec | None = None  # this and the next three: what the programs were told last
        self._capacity_bytes = 0
        self._cap_bytes: int | None = None
        self._limit_milli: int | None = None
        self._slots: dict[int, Slot] = {}  # made once: a hand-over asks for a few

    def make(self, directory: Path) -> None:
        """A new page; it says what the one before it said, if there was one."""
        path = directory / "page"
        path.unlink(missing_ok=True)
        self.close()
        self.page = Page.create(path, owner=self._owner)
        self.page.guard()
        self._tell_again()

    def open(self, directory: Path) -> None:
        """Take up the page of a job that outlived its daemon; PeerError if it cannot be used."""
        self.page = Page.open(directory / "page", owner=self._owner)
        self.page.guard()

    def is_spoilt(self) -> bool:
        """Whether a program of the job cut the page's file short, or wrote over its beginning."""
        return self.page is not None and self.page.is_spoilt()

    def renew(self) -> None:
        """Make a spoilt page whole again and tell the programs what they were told; without a page if that fails."""
        if self.page is None:
            return
        path = self.page.path
        self.close()
        with contextlib.suppress(OSError):
            self.page = Page.renew(path, owner=self._owner)
        self._tell_again()

    def _tell_again(self) -> None:
        """The core says each of these once."""
        if self._spec is not None:
            self.set_capacity(self._capacity_bytes, self._spec)
        if self._cap_bytes is not None:
            self.set_cap(self._cap_bytes)
        self.set_compute(self._limit_milli)

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

    def _slot(self, number: int) -> Slot:
        slot = self.slot(number)
        assert slot is not None
        return slot

    # --- what the programs are told --------------------------------------------------------------------------

    def set_capacity(self, capacity_bytes: int, spec: JobSpec) -> None:
        """How much the job's device has and whether its user drew a cap: no more is worth waiting for."""
        self._capacity_bytes, self._spec = capacity_bytes, spec
        if self.page is not None:
            may_wait = spec.wait_memory_ns is not None
            caps.tell(self.page.words, capacity_bytes, spec.cap_bytes, may_wait=may_wait)

    def set_cap(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        if self.page is not None:
            self.page.header.cap_bytes = max(1, cap_bytes)  # 0 is no cap there

    def set_compute(self, limit_milli: int | None) -> None:
        """What device time costs the programs; a price of 0 is no limit."""
        self._limit_milli = limit_milli
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

    def owners(self) -> dict[int, int]:
        """Slot to pid of its living processes. One that the daemon cannot see has the slot's number, negative: it is
        taken for living."""
        found: dict[int, int] = {}
        for number, inner in self.page.pids().items() if self.page is not None else ():
            pid = processes.everyone.find(inner, self._slot(number).namespace)
            if pid:
                found[number] = -number if pid == processes.UNSEEN else pid
        return found

    def pids(self) -> set[int]:
        """Its living processes that the daemon sees."""
        return {pid for pid in self.owners().values() if pid > 0}

    def live_bytes(self) -> int:
        """Bytes the job's living processes hold together."""
        return min(COUNT_MAX, sum(self._slot(number).live_bytes for number in self.owners()))

    def live_bytes_of(self, slot: int) -> int:
        return self.page.live_bytes(slot) if self.page is not None else 0

    def pending_bytes(self) -> int:
        """Bytes for which allocations of its living processes wait; those under the cap are being made just now."""
        if self.page is None or not self.page.pending():  # nearly always, and asked often
            return 0
        pending_bytes = min(COUNT_MAX, sum(self._slot(number).pending_bytes for number in self.owners()))
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
        for number, pid in self.owners().items():
            slot = self._slot(number)
            used = {
                "live_bytes": slot.live_bytes,
                "spilled_bytes": slot.spilled_bytes,
                "device_ns": slot.device_ns,
            }
            if any(used.values()) and pid > 0:
                found.append({"pid": pid, **used})
        return found
