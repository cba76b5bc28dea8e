"""One job as the daemon sees it, put together from its parts.

Its file (files.py) is what a restarted daemon must know; its page (job_page.py) is shared with its programs; its turn
(turns.py) is shared by its processes. What they say is told to the core by progress.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobExited, LeaseReturned
from carpool.core.node.model import Order
from carpool.daemon import processes
from carpool.daemon.files import JobFile
from carpool.daemon.job_page import JobPage
from carpool.daemon.start_and_end import WARM, End, Start
from carpool.daemon.turns import Member, Peer, SharedTurn
from carpool.daemon.user_files import is_taken, make_directory, remove_aside
from carpool.devices.kinds import kind_named
from carpool.errors import PeerError
from carpool.wire import messages as m
from carpool.wire.page import LEASE_HELD, LEASE_PARKED, Page
from carpool.wire.places import make_private

log = logging.getLogger("carpool")
UNNOTED_MAX = 1000  # directories of ended jobs that are kept while the journal cannot be written


class LiveJob:
    def __init__(self, *, id: JobId, directory: Path, file: JobFile, kept: Path | None = None) -> None:
        self.id = id
        self.directory = directory  # its user's: its programs and its runner write there
        self.kept = kept or directory  # the daemon's own; only the machine's daemon has two
        self.file = file
        self.job_page = JobPage(file.uid)
        self.turn = SharedTurn(self.job_page, file.detached_pids)
        self.runner: Peer | None = None
        self.child_pidfd: int | None = None
        self.moving: set[int] = set()  # members that were told to park or unpark and have not answered
        self.move_trouble = ""  # why one of them could not
        self.park_bytes: int | None = None  # what they may move together; None if an earlier daemon told them
        self.trouble = ""
        self.refusal = ""  # why no process of it may take turns any more
        self.exit_status: int | None = None  # of its first process, as wait(2) has it, where the kernel told us
        self.ended: JobExited | None = None  # how its first process ended, while others of it go on
        self.orphans: set[int] = set()  # those others, as they were found last
        self.unlimited: dict[int, str] = {}  # its processes in which a limit of it is not kept, and why
        self.is_stopping = False  # somebody wants it to end
        self.is_untold = False  # the core was told of its end before its runner told how it ended
        self.last_look = (0, 0, 0)  # steps, bytes held and bytes asked for, as the core was told last
        self.noted_ns = -1  # since when it does what its account in the journal says
        self.noted_orders: tuple[Order, ...] = ()  # of people, in that account

    @property
    def page(self) -> Page | None:
        return self.job_page.page

    @property
    def name(self) -> str:
        """As its user calls it."""
        return self.file.name or self.file.spec.name

    @property
    def page_path(self) -> str:
        """By which its processes are known: they were started with it."""
        return str(self.directory / "page")

    @property
    def is_unstarted(self) -> bool:
        """Whether it has neither a page nor a process, so only the core knows of it."""
        return self.page is None and not self.file.child_pid

    @property
    def members(self) -> dict[int, Member]:
        """Its processes that take turns, by pid; one that the daemon does not see, by its slot's number, negative."""
        return self.turn.members

    @property
    def is_listened_to(self) -> bool:
        """Whether an allocation of it waited when it was last looked at, or may wait without a knock, as those of the
        CUDA guest do."""
        if self.last_look[2] > 0:
            return True
        if self.file.spec.wait_memory_ns is None or self.page is None:  # asked of every job after every event
            return False
        return not kind_named(self.file.kind).knocks

    def note_runner(self, pid: int) -> None:
        """Which process its runner is, for the next daemon too when the file is saved."""
        self.file.runner_pid, self.file.runner_birth = pid, processes.birth_of(pid) or 0

    def learn_start(self) -> bool:
        """Take in what its runner wrote down of its start, if no runner told it; whether one was made."""
        start = Start.load(self.directory, self.file.uid)
        if start is not None:
            self.file.how = start.how
        if start is not None and not self.file.child_pid:
            self.file.runner_pid, self.file.runner_birth = start.runner_pid, start.runner_birth
            self.file.child_pid, self.file.child_birth = start.child_pid, start.child_birth
        return start is not None or bool(self.file.child_pid)

    def learn_end(self) -> End | None:
        """How it ended: what became of it, as the last daemon wrote down, or else how its program did, as its runner
        wrote. What stands in its user's directory says nothing of the first."""
        end = End.load(self.kept, os.geteuid())
        if end is None and self.kept != self.directory:
            end = End.load(self.directory, self.file.uid)
            return replace(end, state="") if end is not None else None
        return end

    def how_it_started(self) -> str:
        """As `calls.Job.start`. A program that started warm may have begun again, cold, and has noted that."""
        if self.file.how == WARM:
            self.learn_start()
        return self.file.how

    def make_directories(self) -> None:
        """Make what is not there; a PeerError or OSError says why that cannot be."""
        make_private(self.kept)
        if self.directory != self.kept:
            if is_taken(self.directory) and self.directory.lstat().st_uid != self.file.uid:
                remove_aside(self.directory)  # of a job of somebody else that had this id
            make_directory(self.directory, self.file.uid)

    def save(self) -> None:
        """Write the job's file; OSError if the disk refuses."""
        self.file.save(self.kept)

    def save_or_warn(self) -> None:
        """Write it where a disk that refuses is no reason to fail: only the next daemon would miss what is new."""
        try:
            self.save()
        except OSError as error:
            log.warning("job.unsaved job=%s reason=%s", self.id, error)

    # --- who takes turns ---------------------------------------------------------------------------------

    def speaks_for_all(self, member: Member) -> bool:
        """Whether the job takes no turns when this member does not: a helper that never took one changes nothing for
        those who do."""
        others = set(self.members) - {member.pid, *self.file.detached_pids}
        turn = self.turn
        is_known = member.is_holding or member.is_asking or turn.lease_of(member) or turn.steps_of(member)
        return not others or bool(is_known)

    def returned(self, *, wants_more: bool) -> LeaseReturned:
        """The fact that its turn came back."""
        held_ns, pause_ns = self.turn.idle_totals_ns(now=time.monotonic_ns())
        steps = self.turn.steps()
        return LeaseReturned(
            job=self.id, wants_more=wants_more, steps=steps, stall_held_ns=held_ns, pause_ns=pause_ns
        )

    def detach(self, member: Member, reason: str) -> None:
        """It goes on outside the turns, also for the next daemon."""
        self.turn.revoke()
        self.turn.left(member.pid)
        member.is_asking = False
        self.file.detached = reason
        self.file.detached_pids = [*self.file.detached_pids, member.pid]

    def leave_turns(self, reason: str) -> None:
        """None of its processes takes turns any more; those that speak to the daemon again are told why."""
        for member in list(self.members.values()):
            self.detach(member, reason)
            if member.peer is not None:
                member.peer.close()
        self.members.clear()
        self.file.detached = reason
        self.save_or_warn()

    def lose_page(self, reason: str) -> None:
        """A program of it spoilt its page."""
        is_first = not self.refusal
        self.refusal = reason
        self.leave_turns(reason)
        if is_first:
            self.job_page.renew()
        else:
            self.job_page.close()

    @property
    def is_detached(self) -> bool:
        """Whether nobody of it takes turns any more."""
        return bool(self.file.detached) and set(self.members) <= set(self.file.detached_pids)

    def find_members(self) -> None:
        """Take in the processes of a job that outlived its daemon, as the page tells it."""
        if self.page is None:
            return
        for number in self.page.pids():
            self.page.clear_pass(number)
        for number, pid in self.job_page.owners().items():
            slot = self.page.slot(number)
            if slot.lease or slot.steps:
                member = self.members[pid] = Member(peer=None, pid=pid, slot=number)
                lease = self.turn.lease_of(member)
                member.is_holding = lease == LEASE_HELD
                if lease == LEASE_PARKED:
                    member.parked = m.Parked(moved_bytes=slot.parked_bytes, move_ns=0, reason="")

    # --- its processes -----------------------------------------------------------------------------------

    def pids(self) -> set[int]:
        """Every process of the job that is known."""
        known = {pid for pid in self.members if pid > 0} | ({self.file.child_pid} if self.file.child_pid else set())
        return known | self.job_page.pids() | self.orphans

    def living_orphans(self) -> list[int]:
        """Of the processes that outlived its first one, those that still run."""
        return sorted(filter(processes.is_alive, self.orphans))

    def find_left(self) -> set[int]:
        """Its living processes, whoever started them: those with its page in their environment. A program may have
        written over its environment; one that is connected is known by that."""
        connected = {member.pid for member in self.members.values() if member.peer is not None}
        inside = processes.by_page(self.file.uid).get(self.page_path, set()) | forks_of(self)
        return inside | set(filter(processes.is_alive, connected))

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
        self.job_page.close()

    def remove(self) -> None:
        """Take its directory away; on a busy disk that takes longer than many turns."""
        shutil.rmtree(self.kept, ignore_errors=True)
        if self.kept != self.directory:
            remove_aside(self.directory)


class OverJobs:
    """Jobs that are over: their directories stay until their ends are in the journal, where the next daemon looks."""

    def __init__(self) -> None:
        self._unnoted: deque[LiveJob] = deque()

    def remove(self, live: LiveJob, flush: Callable[[Callable[[str], object]], object]) -> None:
        """Take its directory away after the flush. Where that finds trouble it is tried again at the next end, for as
        many jobs as are kept."""
        over = [self._unnoted.popleft() for _ in range(len(self._unnoted))] + [live]

        def remove_all(trouble: str) -> None:  # called by the journal's thread
            self._unnoted.extend(over[-UNNOTED_MAX:] if trouble else ())
            for each in over[:-UNNOTED_MAX] if trouble else over:
                each.remove()

        flush(remove_all)


def is_underway(file: JobFile, left: Collection[int]) -> bool:
    """Whether the job's program runs, or others of its processes do, or its runner starts it or tells its end."""
    if file.child_pid and processes.is_alive(file.child_pid, file.child_birth):
        return True
    return bool(left) or has_runner(file) or file.joins_until_ns > time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def forks_of(live: LiveJob) -> set[int]:
    """Of a joined job: its first process, and those that were forked from it, which no environment tells."""
    if not live.file.is_joined:
        return set()
    first = live.file.child_pid
    is_there = bool(first) and processes.is_alive(first, live.file.child_birth)
    return processes.with_file(live.page_path, live.file.uid) | ({first} if is_there else set())


def has_runner(file: JobFile) -> bool:
    """Whether its runner lives, connected or not."""
    return processes.is_alive(file.runner_pid, file.runner_birth or None)


def is_parked(directory: Path, owner: int) -> bool:
    """Whether a process of the job says in its page that its tensors are away."""
    try:
        page = Page.open(directory / "page", owner=owner)
    except PeerError:
        return False
    page.guard()
    leases = [page.slot(number).lease for number in page.pids()]
    page.close()
    return LEASE_PARKED in leases
