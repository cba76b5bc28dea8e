"""One job as the daemon sees it, put together from its parts.

Its file (files.py) is what a restarted daemon must know; its page (job_page.py) is shared with its programs; its turn
(turns.py) is shared by its processes. What they say is told to the core by progress.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.daemon import processes
from carpool.daemon.files import JobFile
from carpool.daemon.job_page import JobPage
from carpool.daemon.turns import Member, Peer, SharedTurn
from carpool.devices.kinds import kind_named
from carpool.errors import PeerError
from carpool.wire import messages as m
from carpool.wire.page import LEASE_HELD, LEASE_PARKED, Page

log = logging.getLogger("carpool")


class LiveJob:
    def __init__(self, *, id: JobId, directory: Path, file: JobFile) -> None:
        self.id = id
        self.directory = directory
        self.file = file
        self.job_page = JobPage()
        self.turn = SharedTurn(self.job_page, file.detached_pids)
        self.runner: Peer | None = None
        self.child_pidfd: int | None = None
        self.moving: set[int] = set()  # members that were told to park or unpark and have not answered
        self.move_trouble = ""  # why one of them could not
        self.park_bytes: int | None = None  # what they may move together; None if an earlier daemon told them
        self.trouble = ""
        self.is_untold = False  # the core was told of its end before its runner told how it ended
        self.last_look = (0, 0, 0)  # steps, bytes held and bytes asked for, as the core was told last
        self.noted_ns = -1  # since when it does what its account in the journal says

    @property
    def page(self) -> Page | None:
        return self.job_page.page

    @property
    def members(self) -> dict[int, Member]:
        """Its processes that take turns, by pid."""
        return self.turn.members

    @property
    def is_listened_to(self) -> bool:
        """Whether an allocation of it waited when it was last looked at, or may wait without a knock, as those of the
        CUDA guest do."""
        may_wait = self.page is not None and self.file.spec.wait_memory_ns is not None
        is_silent = may_wait and not kind_named(self.file.kind).knocks
        return is_silent or self.last_look[2] > 0

    def save(self) -> None:
        """Write the job's file; OSError if the disk refuses."""
        self.file.save(self.directory)

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

    def detach(self, member: Member, reason: str) -> None:
        """It goes on outside the turns, also for the next daemon."""
        self.turn.revoke()
        self.turn.left(member.pid)
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
        for number, pid in self.page.pids().items():
            slot = self.page.slot(number)
            self.page.clear_pass(number)
            if processes.is_alive(pid) and (slot.lease or slot.steps):
                member = self.members[pid] = Member(peer=None, pid=pid, slot=number)
                lease = self.turn.lease_of(member)
                member.is_holding = lease == LEASE_HELD
                if lease == LEASE_PARKED:
                    member.parked = m.Parked(moved_bytes=slot.parked_bytes, move_ns=0, reason="")

    # --- its processes -----------------------------------------------------------------------------------

    def pids(self) -> set[int]:
        """Every process of the job that is known."""
        known = set(self.members) | ({self.file.child_pid} if self.file.child_pid else set())
        return known | self.job_page.pids()

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
        shutil.rmtree(self.directory, ignore_errors=True)


def is_underway(file: JobFile) -> bool:
    """Whether the job's program runs, or its runner is just starting it."""
    if file.child_pid:
        return processes.is_alive(file.child_pid, file.child_birth)
    return processes.is_alive(file.runner_pid)


def is_parked(directory: Path) -> bool:
    """Whether a process of the job says in its page that its tensors are away."""
    try:
        page = Page.open(directory / "page")
    except PeerError:
        return False
    leases = [page.slot(number).lease for number in page.pids()]
    page.close()
    return LEASE_PARKED in leases
