"""Hand-overs: how a turn can go to the next job before the core is told of it.

Everywhere else the daemon tells the core a fact and performs what it orders. A hand-over would then wait for the
daemon: the holder's message, the decision, the grant. So the order is turned round where the outcome is known.

  chosen beforehand   When a holder is recalled, the core says who would get its turn if nothing else happened first
                      (`Scheduler.successor`, rule D5). That is one grant, and it is the one the core will order.
  in the daemon       The holder's `Return` comes. `Driver.pass_on` sends that grant at once, then tells the core,
                      which orders the very same grant; one for anybody else is an InternalError. A decision's time
                      is saved.
  without the daemon  `arm` writes the choice, a *pass*, into the pages: the holder's slot names the process to ring,
                      the other's slot says by which word it may be rung. At its boundary the holder rings, and both
                      go on (rules B1 to B6, agent/turns/bell.py). The daemon's whole part is saved.

What keeps this true: a pass holds from one decision to the next. Before the core is told anything, `take_back`
withdraws every pass by an atomic exchange. A pass that was used by then is a turn that came back and was granted. The
core is told so first, as of the boundary where it happened, and orders the grant that was rung (`Driver.collect`). So
the core sees the same facts in the same order, only later, and its decisions are those it would have made.

A holder in the middle of its last update cannot know that its turn is recalled now, so the daemon knocks for it (B4).
With a quiet pass nobody tells the daemon at all; it looks when the next job has had its quantum (B6).
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease
from carpool.daemon.jobs import LiveJob
from carpool.daemon.turns import Member
from carpool.wire.page import FLAG_BELL, FLAG_SOON, PASSED, Slot, make_pass, pass_serial


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A turn that may go, or went, from `giver` to the job of `grant`."""

    giver: LiveJob
    member: Member
    grant: GrantLease
    word: int

    @property
    def serial(self) -> int:
        return pass_serial(self.word)

    def is_used(self) -> bool:
        return bool(self.slot.pass_word & PASSED)

    def boundary_ns(self) -> int:
        """When the giver reached its newest boundary: there it passed the turn on, if it did."""
        return self.slot.boundary_ns

    @property
    def slot(self) -> Slot:
        assert self.giver.page is not None  # arm() saw it, and nothing was decided since
        return self.giver.page.slot(self.member.slot)


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
        from_slot, to_slot = giver.page.slot(holder.slot), taker.page.slot(waiting.slot)
        if not holder.is_holding or holder.peer is None or not waiting.is_asking or waiting.peer is None:
            return False
        if not to_slot.has(FLAG_BELL) or waiting.pid < 0:
            return False
        self._serial += 1
        word = make_pass(pid=waiting.pid, is_shared=grant.is_shared, serial=self._serial, is_quiet=is_quiet)
        to_slot.recall = 0  # it may begin before it is looked at again
        to_slot.offer = word
        from_slot.pass_word = word
        self._armed.append(Pass(giver=giver, member=holder, grant=grant, word=word))
        if from_slot.has(FLAG_SOON):
            self._knock(waiting.pid, word)
        return True

    def _knock(self, pid: int, word: int) -> None:
        knock, where = (word | PASSED).to_bytes(8, "little"), os.fsencode(self._bells / str(pid))
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
            if not each.slot.swap_pass(each.word, 0) and each.is_used():  # or wiped, when its process attached anew
                each.slot.pass_word = 0
                used.append(each)
        return used
