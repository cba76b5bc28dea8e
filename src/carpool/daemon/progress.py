"""What the pages and the operating system say of a job's processes, as facts for the core. Decides nothing."""

from __future__ import annotations

import time

from carpool.core.kernel.ids import DeviceId
from carpool.core.node.events import JobAdopted, ProgressSeen
from carpool.core.node.model import ASKED_FOR, Account, Why
from carpool.daemon import processes
from carpool.daemon.jobs import LiveJob
from carpool.daemon.turns import Member
from carpool.wire import messages as m
from carpool.wire.page import LEASE_ASKED


def look(live: LiveJob) -> ProgressSeen | None:
    """Its progress as its page and the kernel show it; None if there is nothing new, which need not be told."""
    if live.page is None:
        return None
    steps, live_bytes, pending_bytes = live.turn.steps(), live.job_page.live_bytes(), live.job_page.pending_bytes()
    is_recount = live.turn.take_recount()
    if not live.turn.is_granted and not is_recount and live.last_look == (steps, live_bytes, pending_bytes):
        return None  # a job that rests must not fill the journal
    live.last_look = (steps, live_bytes, pending_bytes)
    now = time.monotonic_ns()
    stall_ns, stall_held_ns, pause_ns = live.turn.waits_ns(now=now)
    live.turn.idle_totals_ns(now=now)
    changes, change_ns = live.turn.changes()
    return ProgressSeen(
        job=live.id,
        steps=steps,
        cpu_ns=cpu_ns(live),
        live_bytes=live_bytes,
        stall_ns=stall_ns,
        stall_held_ns=stall_held_ns,
        pause_ns=pause_ns,
        pending_bytes=pending_bytes,
        changes=changes,
        change_ns=change_ns,
        is_recount=is_recount,
    )


def cpu_ns(live: LiveJob) -> int:
    """What its processes and, where it is measured, the device have worked for it."""
    return live.job_page.device_ns() + sum(processes.busy_ns(pid) for pid in live.members)


def measured(live: LiveJob, member: Member) -> m.Measured:
    """What one of its processes needs; until it says so, what it holds."""
    held = live.job_page.live_bytes_of(member.slot)
    return member.measured or m.Measured(
        persistent_bytes=held, ephemeral_bytes=0, overhead_bytes=0, step_ns=0, steps_total=0
    )


def adopted(live: LiveJob, account: Account | None) -> JobAdopted:
    """The fact that it outlived a daemon, as the page and its file tell it."""
    stall_ns, stall_held_ns, pause_ns = live.turn.waits_ns(now=time.monotonic_ns())
    away = [member.parked for member in live.members.values() if member.parked is not None]
    return JobAdopted(
        job=live.id,
        spec=live.file.spec,
        device=DeviceId(live.file.device),
        holding=live.turn.is_holding(),
        steps=live.turn.steps(),
        live_bytes=live.job_page.live_bytes(),
        needs=live.file.needs,
        is_parked=bool(away) and len(away) == len(live.members),
        parked_bytes=sum(parked.moved_bytes for parked in away),
        held_for=tuple(why for why in Why if why in ASKED_FOR and why in live.file.held_for),
        is_paced=live.turn.is_paced(),
        stall_ns=stall_ns,
        stall_held_ns=stall_held_ns,
        pause_ns=pause_ns,
        is_waiting=any(live.turn.lease_of(member) == LEASE_ASKED for member in live.members.values()),
        account=account,
    )
