"""The turn of one job, as its processes share it.

The core knows jobs; the operating system knows processes. Several processes of one job (the ranks of a distributed
run) share its turn: the job asks when its first member asks, and has given back when its last member has.
A member that is recalled stops at a step number that no member has passed, so that ranks stop together. One that asks
meanwhile and is not there yet is let through, or the others would wait for it for ever.

Rules
  I6  Whether a job has its turn (`is_granted`) and is asked to give it back (`is_recalled`) is changed in this module
      alone; drivers of messages and effects call its methods.
  D16 A process that waits for memory in a pause is not idle, though it sleeps: its turn is taken as W1 says, and
      comes back with the bytes. As an idle one it would be at no boundary, and nobody could be parked for the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from carpool.daemon import processes
from carpool.daemon.job_page import JobPage
from carpool.wire import messages as m
from carpool.wire.page import FLAG_IDLE, FLAG_PACED, LAPSED, LEASE_HELD, LEASE_NONE, PAUSE_FORETOLD, PAUSE_INPUT, Slot
from carpool.wire.protocol import STALL_NS

IDLE_LOOK_NS = 5_000_000
IDLE_LOOK_NS_MAX = 250_000_000  # the core asks for a Tick so often while somebody waits
IDLE_LOOK_PART = 8  # of what it computed is lost at most while its turn is idle and nobody knows
SHORT_NS = 1_000_000  # shorter gaps between kernels are not worth taking


class Peer(Protocol):
    """The sending half of a connection."""

    def send(self, message: m.Message) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Member:
    """A process of the job that takes turns."""

    peer: Peer | None  # None after a restart, until it attaches again
    pid: int
    slot: int
    is_holding: bool = False
    is_asking: bool = False
    parked: m.Parked | None = None  # its answer, while its tensors are on the host
    park_bytes: int = 0  # what it may move at most, as it was told last
    gradient_bytes: int = 0  # of what it keeps between turns
    measured: m.Measured | None = None  # None until it says what it needs, to this daemon
    steps_max: int = 0  # the most that its slot said since it was last counted anew


class SharedTurn:
    def __init__(self, page: JobPage, detached_pids: Iterable[int] = ()) -> None:
        self._page = page
        self._detached = set(detached_pids)  # they went on outside the turns; what their slots say is old
        self.members: dict[int, Member] = {}  # by pid
        self._is_granted = False
        self._is_recalled = False
        self._guest_idle_ns = 0  # idle turns that were taken from CUDA programs: nobody counts them in the page
        self._idle_told_ns = (0, 0)
        self._busy_ns = 0  # how long it was found computing since it was last found idle, while others waited
        self._stop_at = 0  # the step at which the members of a recalled job stop

    @property
    def is_granted(self) -> bool:
        return self._is_granted

    @property
    def is_recalled(self) -> bool:
        return self._is_recalled

    def is_asking(self) -> bool:
        return any(member.is_asking for member in self.members.values())

    def is_holding(self) -> bool:
        return any(member.is_holding for member in self.members.values())

    # --- the core's orders -----------------------------------------------------------------------------------

    def grant(self, message: m.Grant) -> None:
        self._is_granted, self._is_recalled = True, False
        for member in self.members.values():
            if member.is_asking:
                self.grant_member(member, message)
                continue
            self.set_recall(member, 0)
            if self.lease_of(member) == LEASE_HELD:
                member.is_holding = True

    def grant_member(self, member: Member, message: m.Grant) -> None:
        member.is_asking, member.is_holding, member.parked = False, True, None
        self.set_recall(member, self._stop_at if self._is_recalled else 0)
        if member.peer is not None:
            member.peer.send(message)

    def recall(self) -> None:
        self._is_recalled = True
        # Ranks keep step with each other. Not the next step: one of them may pass it while this is written.
        self._stop_at = self.steps() + 2 if len(self.members) > 1 else 1
        for member in self.members.values():
            if member.is_holding:
                self.set_recall(member, self._stop_at)

    def revoke(self) -> None:
        """The turn is taken: a member that computes again must ask first."""
        self._is_granted = self._is_recalled = False
        for member in self.members.values():
            member.is_holding = False
            slot = self._page.slot(member.slot)
            if slot is not None:
                slot.taken_ns = 0 if slot.pending_bytes else time.monotonic_ns()  # D16
                slot.recall = LAPSED

    # --- what happened to it ---------------------------------------------------------------------------------

    def take_up(self, *, is_granted: bool) -> None:
        """After a restart: whether the core found that the job has its turn."""
        self._is_granted = is_granted

    def gave_back(self) -> None:
        """Its last member that held it has given it back."""
        self._is_granted = self._is_recalled = False

    def passed_on(self, member: Member) -> None:
        """Its only member rang the next job, and waits for another turn."""
        member.is_holding, member.is_asking = False, True
        self.gave_back()

    def lets_through(self, member: Member) -> bool:
        """Whether a member that asks may go on at once: the job has its turn, or others of it wait for this one."""
        is_behind = len(self.members) > 1 and self.steps_of(member) < self._stop_at
        return self._is_granted and (not self._is_recalled or is_behind)

    def left(self, pid: int) -> None:
        """A process goes on outside the turns."""
        self._detached.add(pid)

    # --- the slots of its members ----------------------------------------------------------------------------

    def set_recall(self, member: Member, value: int) -> None:
        slot = self._page.slot(member.slot)
        if slot is not None:
            slot.recall = value

    def lease_of(self, member: Member) -> int:
        """What the member itself says of its turn; one that went on outside the turns left its word as it was."""
        slot = self._page.slot(member.slot)
        return LEASE_NONE if slot is None or member.pid in self._detached else slot.lease

    def steps_of(self, member: Member) -> int:
        slot = self._page.slot(member.slot)
        steps = slot.steps if slot is not None else 0
        member.steps_max = max(member.steps_max, steps)
        return steps

    def steps(self) -> int:
        return max((self.steps_of(member) for member in self.members.values()), default=0)

    def take_recount(self) -> bool:
        """Whether its processes took steps back that were none. A recalled job then stops at a step that is near."""
        if self.steps() >= max((member.steps_max for member in self.members.values()), default=0):
            return False
        for member in self.members.values():
            member.steps_max = 0
        if self._is_recalled:
            self.recall()
        return True

    def boundary_ns(self) -> int:
        """When a process of it last reached a boundary; 0 if none did."""
        return max((slot.boundary_ns for slot in self._slots()), default=0)

    def waits_ns(self, *, now: int) -> tuple[int, int, int]:
        """How long it waited for its input, in all and while it had its turn, and how long it had its turn and did
        nothing else. The wait that goes on now is in it."""
        slots = self._slots()
        stall_ns, held_ns = max(((slot.stall_ns, slot.stall_held_ns) for slot in slots), default=(0, 0))
        pause_ns = min((slot.pause_ns for slot in slots), default=0) + self._guest_idle_ns
        now_ns = self.idle_ns(now=now) if self._is_granted and not any(slot.has(FLAG_IDLE) for slot in slots) else 0
        if any(slot.pause_from & PAUSE_INPUT for slot in slots):
            return stall_ns + now_ns, held_ns + now_ns, pause_ns
        return stall_ns, held_ns, pause_ns + now_ns

    def idle_totals_ns(self, *, now: int) -> tuple[int, int]:
        """How long it had a turn and did nothing, in all: waited for input, and paused."""
        _, held_ns, pause_ns = self.waits_ns(now=now)
        self._idle_told_ns = max(self._idle_told_ns[0], held_ns), max(self._idle_told_ns[1], pause_ns)
        return self._idle_told_ns

    def has_idled(self, *, now: int) -> bool:
        """Whether it did since that was last asked."""
        return sum(self.waits_ns(now=now)[1:]) - sum(self._idle_told_ns) >= SHORT_NS

    def take_idle(self, *, now: int) -> bool:
        """Take its turn if nobody of it uses it now; whether it did."""
        idle_ns = self.idle_ns(now=now) if self._is_granted else 0
        if idle_ns and any(slot.has(FLAG_IDLE) for slot in self._slots()):
            self._guest_idle_ns += idle_ns
        if idle_ns:
            self.idle_totals_ns(now=now)
            self.revoke()
            self._busy_ns = 0
        return bool(idle_ns)

    def found_busy(self) -> None:
        """A look found that it computes."""
        self._busy_ns += self.look_again_ns() or 0

    def look_again_ns(self) -> int | None:
        """When to look next whether a turn for which others wait is idle: the longer it was found computing, the
        later, so that a job which never pauses is hardly looked at. None: the looks of every Tick are enough."""
        is_foretold = any(slot.pause_from & PAUSE_FORETOLD for slot in self._slots())  # and it is just not asleep yet
        span = max(SHORT_NS if is_foretold else IDLE_LOOK_NS, self._busy_ns // IDLE_LOOK_PART)
        return span if span < IDLE_LOOK_NS_MAX else None

    def changes(self) -> tuple[int, int]:
        """How many changes of turn its processes compared, and what these cost them in all."""
        slots = self._slots()
        return sum(slot.changes for slot in slots), sum(slot.change_ns for slot in slots)

    def is_paced(self) -> bool:
        """Whether the CUDA guest takes the turns of a process of it, and keeps to the compute limit there."""
        return any(slot.has(FLAG_PACED) for slot in self._slots())

    def idle_ns(self, *, now: int) -> int:
        """How long all who hold its turn have had nothing on the device; 0 if one has, or soon may have."""
        holding = [member for member in self.members.values() if member.is_holding]
        spans = [self._idle_ns_of(member, now) for member in holding]
        return min(spans, default=0)

    def _idle_ns_of(self, member: Member, now: int) -> int:
        """Of one process. The CUDA guest knows what is on the device; the agent shows where its program is in its
        loop, and the kernel whether it sleeps there."""
        slot = self._page.slot(member.slot)
        if slot is None:
            return 0
        if slot.has(FLAG_IDLE):
            span = now - slot.boundary_ns
            return span if span >= SHORT_NS else 0
        from_ns = slot.pause_from
        is_idle = from_ns and (from_ns & PAUSE_FORETOLD or now - from_ns >= STALL_NS)
        if not is_idle or slot.pending_bytes or not processes.is_asleep(member.pid):
            return 0
        return max(1, now - from_ns) if slot.pause_from == from_ns else 0

    def _slots(self) -> list[Slot]:
        found = [self._page.slot(member.slot) for member in self.members.values()]
        return [slot for slot in found if slot is not None]
