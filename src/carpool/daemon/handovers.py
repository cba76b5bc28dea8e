"""Turns that go from job to job without the daemon in between (agent/turns/bell.py has the rules and the other side).

The core chooses the successor of a recalled turn beforehand (D5). After each decision that choice is armed: a word in
the holder's slot names the process to ring. Before the next decision every word is taken back; one that was used
meanwhile is a turn that came back and was granted, and the core is told so first. A holder in the middle of its last
update cannot know that its turn is recalled now, so the daemon knocks for it (B4).
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease
from carpool.daemon.jobs import LiveJob, Member
from carpool.wire import page as pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A turn that may go, or went, from `giver` to the job of `grant`."""

    giver: LiveJob
    member: Member
    grant: GrantLease
    word: int

    @property
    def serial(self) -> int:
        return pages.pass_serial(self.word)

    def is_used(self) -> bool:
        return bool(self._word(pages.S_PASS) & pages.PASSED)

    def boundary_ns(self) -> int:
        """When the giver reached its newest boundary: there it passed the turn on, if it did."""
        return self._word(pages.S_BOUNDARY_NS)

    def _word(self, word: int) -> int:
        assert self.giver.page is not None  # arm() saw it, and nothing was decided since
        return self.giver.page.words[pages.slot_base(self.member.slot) + word]


class Handovers:
    def __init__(self, bells: Path) -> None:
        self._bells = bells
        self._armed: list[Pass] = []
        self._serial = 0

    def arm(self, giver: LiveJob, taker: LiveJob, grant: GrantLease, *, is_quiet: bool) -> bool:
        """Let the holder pass its recalled turn on, where both jobs are one process that can ring and be rung."""
        if len(giver.members) != 1 or len(taker.members) != 1 or giver.page is None or taker.page is None:
            return False
        holder, waiting = next(iter(giver.members.values())), next(iter(taker.members.values()))
        flags = taker.page.words[pages.slot_base(waiting.slot) + pages.S_FLAGS]
        if not holder.is_holding or holder.peer is None or not waiting.is_asking or waiting.peer is None:
            return False
        if not flags & pages.FLAG_BELL:
            return False
        self._serial += 1
        word = pages.make_pass(pid=waiting.pid, is_shared=grant.is_shared, serial=self._serial, is_quiet=is_quiet)
        taker.set_recall(waiting, 0)  # it may begin before it is looked at again
        taker.page.words[pages.slot_base(waiting.slot) + pages.S_OFFER] = word
        base = pages.slot_base(holder.slot)
        giver.page.words[base + pages.S_PASS] = word
        self._armed.append(Pass(giver=giver, member=holder, grant=grant, word=word))
        if giver.page.words[base + pages.S_FLAGS] & pages.FLAG_SOON:
            self._knock(waiting.pid, word)
        return True

    def _knock(self, pid: int, word: int) -> None:
        knock, where = (word | pages.PASSED).to_bytes(8, "little"), os.fsencode(self._bells / str(pid))
        # Where that does not go, it is rung asleep.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(knock, socket.MSG_DONTWAIT, where)

    def has_used(self) -> bool:
        return any(each.is_used() for each in self._armed)

    def who_has(self, job: JobId) -> JobId:
        """Who has the turn that this job had when anything was last decided: it may have passed it on."""
        for each in self._armed:
            if each.giver.id == job and each.is_used():
                return each.grant.job
        return job

    def take_back(self) -> list[Pass]:
        """Take back what is armed; returns what was used before."""
        armed, self._armed = self._armed, []
        used = []
        for each in armed:
            assert each.giver.page is not None  # arm() saw it, and nothing was decided since
            words, at = each.giver.page.words, pages.slot_base(each.member.slot) + pages.S_PASS
            if not pages.swap(words, at, each.word, 0) and each.is_used():  # or wiped, when its process attached anew
                words[at] = 0
                used.append(each)
        return used
