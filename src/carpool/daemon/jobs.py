"""One job as the daemon sees it: its directory, page, runner, and the processes of it that take turns.

The core knows jobs; the operating system knows processes. Several processes of one job (the ranks of a
distributed run) share its turn: the job asks when its first member asks, and has given back when its last member
has. A member that is recalled stops at a step number that no member has passed, so that ranks stop together; one
that asks meanwhile and is not there yet is let through, or the others would wait for it for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from carpool.core.kernel.ids import SHARE_ONE, DeviceId, JobId
from carpool.core.node.events import JobAdopted, ProgressSeen
from carpool.core.node.model import Account
from carpool.daemon import processes
from carpool.daemon.files import JobFile
from carpool.devices.kinds import kind_named
from carpool.errors import PeerError
from carpool.units import format_bytes
from carpool.wire import caps
from carpool.wire import messages as m
from carpool.wire import page as pages

log = logging.getLogger("carpool")


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


@dataclass(slots=True, eq=False)
class LiveJob:
    id: JobId
    directory: Path
    file: JobFile
    page: pages.Page | None = None
    runner: Peer | None = None
    child_pidfd: int | None = None
    members: dict[int, Member] = field(default_factory=dict)  # by pid
    is_granted: bool = False
    is_recalled: bool = False
    moving: set[int] = field(default_factory=set)  # members that were told to park or unpark and have not answered
    move_trouble: str = ""  # why one of them could not
    park_bytes: int | None = None  # what they may move together; None if an earlier daemon told them
    stop_at: int = 0  # the step at which the members of a recalled job stop
    trouble: str = ""
    is_untold: bool = False  # the core was told of its end before its runner told how it ended
    last_look: tuple[int, int, int] = (0, 0, 0)
    noted_ns: int = -1  # since when it does what its account in the journal says

    @property
    def is_listened_to(self) -> bool:
        """Whether an allocation of it waited when it was last looked at, or may wait without a knock, as those of the
        CUDA guest do."""
        may_wait = self.page is not None and self.file.spec.wait_memory_ns is not None
        is_silent = may_wait and not kind_named(self.file.kind).knocks
        return is_silent or self.last_look[2] > 0

    def save(self) -> None:
        """Write the job's file so that a restarted daemon finds a whole one; OSError if the disk refuses."""
        draft = self.directory / "job.json.new"
        # Not msgspec: arguments and variables may be bytes that are no text, which only json writes.
        draft.write_text(json.dumps(msgspec.to_builtins(self.file)))
        draft.replace(self.directory / "job.json")

    def save_or_warn(self) -> None:
        """Write it where a disk that refuses is no reason to fail: only the next daemon would miss what is new."""
        try:
            self.save()
        except OSError as error:
            log.warning("job.unsaved job=%s reason=%s", self.id, error)

    def make_page(self) -> None:
        path = self.directory / "page"
        path.unlink(missing_ok=True)
        self.page = pages.Page.create(path)

    def set_capacity(self, capacity_bytes: int) -> None:
        """Tell its programs how much its device has and whether its user drew a cap: no more is worth waiting for."""
        spec = self.file.spec
        if self.page is not None:
            caps.tell(self.page.words, capacity_bytes, spec.cap_bytes, may_wait=spec.wait_memory_ns is not None)

    def deny(self, reason: str) -> None:
        """Its allocations that wait now fail."""
        if self.page is not None:
            self.page.deny(reason, now=time.monotonic_ns())

    def set_cap(self, cap_bytes: int) -> None:
        if self.page is not None:
            self.page.words[pages.H_CAP] = max(1, cap_bytes)  # 0 is no cap there

    def set_compute(self, limit_milli: int | None) -> None:
        """Tell the programs what device time costs them; a price of 0 is no limit."""
        if self.page is not None:
            price = 0 if limit_milli is None else max(1, round(pages.PRICE_ONE * SHARE_ONE / limit_milli))
            self.page.words[pages.H_PRICE] = price

    def is_paced(self) -> bool:
        """Whether the CUDA guest takes the turns of a process of it, and keeps to the compute limit there."""
        if self.page is None:
            return False
        words = self.page.words
        return any(
            words[pages.slot_base(member.slot) + pages.S_FLAGS] & pages.FLAG_PACED for member in self.members.values()
        )

    def idle_ns(self, *, now: int) -> int:
        """How long all who hold its turn have had nothing on the device, as the CUDA guest knows; 0 if they have."""
        holding = [pages.slot_base(member.slot) for member in self.members.values() if member.is_holding]
        if self.page is None or not holding:
            return 0
        words = self.page.words
        if not all(words[base + pages.S_FLAGS] & pages.FLAG_IDLE for base in holding):
            return 0
        return max(0, now - max(words[base + pages.S_BOUNDARY_NS] for base in holding))

    def set_waiters(self, count: int) -> None:
        if self.page is not None and self.page.words[pages.H_WAITERS] != count:
            self.page.words[pages.H_WAITERS] = count

    # --- the turn, job to members ------------------------------------------------------------------------

    def grant(self, message: m.Grant) -> None:
        self.is_granted, self.is_recalled = True, False
        for member in self.members.values():
            self.set_recall(member, 0)
            if member.is_asking:
                self.grant_member(member, message)
            elif self._lease_of(member) == pages.LEASE_HELD:
                member.is_holding = True

    def grant_member(self, member: Member, message: m.Grant) -> None:
        member.is_asking, member.is_holding, member.parked = False, True, None
        self.set_recall(member, self.stop_at if self.is_recalled else 0)
        if member.peer is not None:
            member.peer.send(message)

    def recall(self) -> None:
        self.is_recalled = True
        # Ranks keep step with each other. Not the next step: one of them may pass it while this is written.
        self.stop_at = self.steps() + 2 if len(self.members) > 1 else 1
        for member in self.members.values():
            if member.is_holding:
                self.set_recall(member, self.stop_at)

    def lets_through(self, member: Member) -> bool:
        """Whether a member that asks may go on at once: the job has its turn, or others of it wait for this one."""
        is_behind = len(self.members) > 1 and self.steps_of(member) < self.stop_at
        return self.is_granted and (not self.is_recalled or is_behind)

    def is_asking(self) -> bool:
        return any(member.is_asking for member in self.members.values())

    def revoke(self) -> None:
        """The turn is taken: whoever computes again must ask first."""
        self.is_granted = self.is_recalled = False
        for member in self.members.values():
            member.is_holding = False
            self.set_recall(member, pages.LAPSED)

    def set_recall(self, member: Member, value: int) -> None:
        if self.page is not None:
            self.page.words[pages.slot_base(member.slot) + pages.S_RECALL] = value

    def _lease_of(self, member: Member) -> int:
        """What the member itself says of its turn; one that went on outside the turns left its word as it was."""
        if self.page is None or member.pid in self.file.detached_pids:
            return pages.LEASE_NONE
        return self.page.words[pages.slot_base(member.slot) + pages.S_LEASE]

    # --- who takes turns ---------------------------------------------------------------------------------

    def speaks_for_all(self, member: Member) -> bool:
        """Whether the job takes no turns when this member does not: a helper that never took one changes nothing for
        those who do."""
        others = set(self.members) - {member.pid, *self.file.detached_pids}
        is_known = member.is_holding or member.is_asking or self._lease_of(member) or self.steps_of(member)
        return not others or bool(is_known)

    def detach(self, member: Member, reason: str) -> None:
        """It goes on outside the turns, also for the next daemon."""
        self.revoke()
        member.is_asking = False
        self.file.detached = reason
        self.file.detached_pids = [*self.file.detached_pids, member.pid]

    @property
    def is_detached(self) -> bool:
        """Whether nobody of it takes turns any more."""
        return bool(self.file.detached) and set(self.members) <= set(self.file.detached_pids)

    def find_members(self) -> None:
        """Take in the processes of a job that outlived its daemon, as the page tells it."""
        if self.page is None:
            return
        words = self.page.words
        for slot, pid in self.page.pids().items():
            base = pages.slot_base(slot)
            self.page.clear_pass(slot)
            if processes.is_alive(pid) and (words[base + pages.S_LEASE] or words[base + pages.S_STEPS]):
                member = self.members[pid] = Member(peer=None, pid=pid, slot=slot)
                lease = self._lease_of(member)
                member.is_holding = lease == pages.LEASE_HELD
                if lease == pages.LEASE_PARKED:
                    member.parked = m.Parked(moved_bytes=words[base + pages.S_PARKED], move_ns=0, reason="")

    # --- facts -------------------------------------------------------------------------------------------

    def steps_of(self, member: Member) -> int:
        return self.page.words[pages.slot_base(member.slot) + pages.S_STEPS] if self.page is not None else 0

    def steps(self) -> int:
        return max((self.steps_of(member) for member in self.members.values()), default=0)

    def boundary_ns(self) -> int:
        """When a process of it last reached a boundary; 0 if none did."""
        words = self.page.words if self.page is not None else ()
        bases = [pages.slot_base(member.slot) for member in self.members.values()] if words else []
        return max((words[base + pages.S_BOUNDARY_NS] for base in bases), default=0)

    def stalls_ns(self) -> tuple[int, int]:
        """How long it waited for its input, in all and while it had its turn; of several processes the longest."""
        if self.page is None:
            return 0, 0
        bases = [pages.slot_base(member.slot) for member in self.members.values()]
        words = self.page.words
        found = [(words[base + pages.S_STALL_NS], words[base + pages.S_STALL_HELD_NS]) for base in bases]
        return max(found, default=(0, 0))

    def look(self) -> ProgressSeen | None:
        """Its progress as its page and the kernel show it; None if there is nothing new, which need not be told."""
        if self.page is None:
            return None
        steps, live_bytes, pending_bytes = self.steps(), self.live_bytes(), self.pending_bytes()
        if not self.is_granted and self.last_look == (steps, live_bytes, pending_bytes):
            return None  # `top` must not fill the journal
        self.last_look = (steps, live_bytes, pending_bytes)
        stall_ns, stall_held_ns = self.stalls_ns()
        return ProgressSeen(
            job=self.id,
            steps=steps,
            cpu_ns=self.cpu_ns(),
            live_bytes=live_bytes,
            stall_ns=stall_ns,
            stall_held_ns=stall_held_ns,
            pending_bytes=pending_bytes,
        )

    def cpu_ns(self) -> int:
        """What its processes and, where it is measured, the device have worked for it."""
        return self.device_ns() + sum(processes.busy_ns(pid) for pid in self.members)

    def live_bytes(self) -> int:
        """Bytes its living processes hold together."""
        if self.page is None:
            return 0
        claimed = self.page.pids()
        return sum(self.page.live_bytes(slot) for slot, pid in claimed.items() if processes.is_alive(pid))

    def measured(self, member: Member) -> m.Measured:
        """What one of its processes needs; until it says so, what it holds."""
        held = self.page.live_bytes(member.slot) if self.page is not None else 0
        return member.measured or m.Measured(persistent_bytes=held, ephemeral_bytes=0, overhead_bytes=0, step_ns=0)

    def pending_bytes(self) -> int:
        """Bytes for which allocations of its living processes wait; those under the cap are being made just now."""
        pending = self.page.pending() if self.page is not None else []
        if self.page is None or not pending:  # nearly always, and asked often
            return 0
        pending_bytes = sum(count for pid, count in pending if processes.is_alive(pid))
        return pending_bytes if 0 < self.page.words[pages.H_CAP] < self.live_bytes() + pending_bytes else 0

    def usage(self) -> list[dict[str, int]]:
        """Bytes and device time of each of its living processes that has either, by the page."""
        if self.page is None:
            return []
        words, found = self.page.words, []
        for slot, pid in self.page.pids().items():
            device_ns, live_bytes = words[pages.slot_base(slot) + pages.S_DEVICE_NS], self.page.live_bytes(slot)
            spilled = words[pages.slot_base(slot) + pages.S_SPILLED]
            if (device_ns or live_bytes or spilled) and processes.is_alive(pid):
                used = {"live_bytes": live_bytes, "spilled_bytes": spilled, "device_ns": device_ns}
                found.append({"pid": pid, **used})
        return found

    def device_ns(self) -> int:
        """Device time of all processes it ever had, as the CUDA guest counts it."""
        return self.page.words[pages.H_DEVICE_NS] if self.page is not None else 0

    def refusals(self) -> str:
        """How many of its allocations were refused, in words; with --oversubscribe they went elsewhere."""
        spec, count = self.file.spec, self.page.words[pages.H_DENIED_COUNT] if self.page is not None else 0
        if self.page is None or not count or spec.may_oversubscribe:
            return ""
        at = f" at its cap of {format_bytes(spec.cap_bytes)}" if spec.cap_bytes is not None else ""
        newest = format_bytes(self.page.words[pages.H_DENIED_BYTES])
        if count == 1:
            return f"1 allocation was refused{at} (it asked for {newest})"
        return f"{count} allocations were refused{at} (the newest asked for {newest})"

    def adopted(self, account: Account | None) -> JobAdopted:
        """The fact that it outlived a daemon, as the page and its file tell it."""
        away = [member.parked for member in self.members.values() if member.parked is not None]
        return JobAdopted(
            job=self.id,
            spec=self.file.spec,
            device=DeviceId(self.file.device),
            holding=any(member.is_holding for member in self.members.values()),
            steps=self.steps(),
            live_bytes=self.live_bytes(),
            needs=self.file.needs,
            is_parked=bool(away) and len(away) == len(self.members),
            parked_bytes=sum(parked.moved_bytes for parked in away),
            is_suspended=self.file.is_suspended,
            is_paced=self.is_paced(),
            is_waiting=any(self._lease_of(member) == pages.LEASE_ASKED for member in self.members.values()),
            account=account,
        )

    def pids(self) -> set[int]:
        """Every process of the job that is known."""
        known = set(self.members) | ({self.file.child_pid} if self.file.child_pid else set())
        return known | (set(self.page.pids().values()) if self.page is not None else set())

    def was_killed(self) -> bool:
        """Of a program that is gone: whether it left its slot as it was. The meter clears it at an ordinary end."""
        return self.page is not None and self.page.slot_of(self.file.child_pid) is not None

    def unwatch_child(self) -> None:
        """Close the descriptor that tells of the program's end; the loop must forget it first, or it would take the
        next connection that gets the same number for it."""
        if self.child_pidfd is not None:
            asyncio.get_running_loop().remove_reader(self.child_pidfd)
            os.close(self.child_pidfd)
            self.child_pidfd = None

    def close(self) -> None:
        """The job is over: let go of its page and of its processes."""
        self.unwatch_child()
        for member in self.members.values():
            if member.peer is not None:
                member.peer.close()
        if self.page is not None:
            self.page.close()
            self.page = None

    def remove(self) -> None:
        """Take its directory away; on a busy disk that takes longer than many turns."""
        shutil.rmtree(self.directory, ignore_errors=True)


def is_underway(file: JobFile) -> bool:
    """Whether the job's program runs, or its runner is just starting it."""
    if file.child_pid:
        return processes.is_alive(file.child_pid, file.child_birth)
    return processes.is_alive(file.runner_pid)


def is_parked(directory: Path) -> bool:
    """Whether a process of the job says in its page that its tensors are away."""
    try:
        page = pages.Page.open(directory / "page")
    except PeerError:
        return False
    leases = [page.words[pages.slot_base(slot) + pages.S_LEASE] for slot in page.pids()]
    page.close()
    return pages.LEASE_PARKED in leases
