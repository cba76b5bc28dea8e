"""The turn of one job, as its processes share it.

The core knows jobs; the operating system knows processes. Several processes of one job (the ranks of a distributed
run) share its turn: the job asks when its first member asks, and has given back when its last member has.
A member that is recalled stops at a step number that no member has passed, so that ranks stop together. One that asks
meanwhile and is not there yet is let through, or the others would wait for it for ever.

Rules
  I6  Whether a job has its turn (`is_granted`) and is asked to give it back (`is_recalled`) is changed in this module
      alone; drivers of messages and effects call its methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from carpool.daemon.job_page import JobPage
from carpool.wire import messages as m
from carpool.wire.page import FLAG_IDLE, FLAG_PACED, LAPSED, LEASE_HELD, LEASE_NONE, Slot


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
            self.set_recall(member, LAPSED)

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

    def stalls_ns(self) -> tuple[int, int]:
        """How long it waited for its input, in all and while it had its turn; of several processes the longest."""
        return max(((slot.stall_ns, slot.stall_held_ns) for slot in self._slots()), default=(0, 0))

    def is_paced(self) -> bool:
        """Whether the CUDA guest takes the turns of a process of it, and keeps to the compute limit there."""
        return any(slot.has(FLAG_PACED) for slot in self._slots())

    def idle_ns(self, *, now: int) -> int:
        """How long all who hold its turn have had nothing on the device, as the CUDA guest knows; 0 if they have."""
        holding = [self._page.slot(member.slot) for member in self.members.values() if member.is_holding]
        slots = [slot for slot in holding if slot is not None]
        if not slots or not all(slot.has(FLAG_IDLE) for slot in slots):
            return 0
        return max(0, now - max(slot.boundary_ns for slot in slots))

    def _slots(self) -> list[Slot]:
        found = [self._page.slot(member.slot) for member in self.members.values()]
        return [slot for slot in found if slot is not None]
