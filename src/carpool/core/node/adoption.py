"""New jobs, and jobs that run already: those of an earlier driver are taken back with their bytes and their turns."""

from __future__ import annotations

from dataclasses import replace

from carpool.core.kernel.ids import SHARE_ONE, Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.effects import Effect, GrantLease, RevokeLease, StartJob
from carpool.core.node.events import JobAdopted, JobSubmitted, LeaseAsked
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import (
    Account,
    Departure,
    Device,
    Job,
    JobSpec,
    JobState,
    Memory,
    Move,
    Service,
    Share,
    Waits,
    WallTime,
    Why,
)
from carpool.core.node.moves import departures
from carpool.core.node.node import ASKED_SHARES, Node


def new_job(node: Node, event: JobSubmitted, *, now: Nanos) -> Job:
    """Put a new job into the queue."""
    spec = event.spec
    job = Job(
        id=event.job,
        spec=spec,
        arrived_ns=now,
        state_since_ns=now,
        wanting_since_ns=now,
        history=node.histories.get(spec.fingerprint) if spec.fingerprint else None,
        service=Service(level=accounts.newcomer_level(node, spec)),
        wall=WallTime(row_since_ns=now),
        share=Share(borrowed=_borrowed(event.account)),
    )
    lifecycle.enqueue(node, job)
    if event.account is not None:  # it waited in the queue of a driver that is gone
        lifecycle.restore(job, event.account, "memory", now=now)
    return job


def _borrowed(account: Account | None) -> int:
    return account.borrowed_ns * SHARE_ONE if account is not None else 0


def take_back(node: Node, device: Device, event: JobAdopted, *, now: Nanos) -> list[Effect]:
    """Take back a job that runs already: its bytes are facts, so it gets what L1 allows at once."""
    needs, spec = event.needs, event.spec
    wanted = needs.resident_bytes if needs else spec.cap_bytes or event.live_bytes
    wanted = event.live_bytes if event.is_parked else wanted
    job = Job(
        id=event.job,
        spec=_left_for(node, device, spec),
        arrived_ns=now,
        state_since_ns=now,
        wanting_since_ns=now,
        history=node.histories.get(spec.fingerprint) if spec.fingerprint else None,
        memory=Memory(
            needs=needs,
            is_measured=needs is not None,
            measured_bytes=needs.total_bytes if needs is not None else None,
            live_bytes=event.live_bytes,
            parked_bytes=event.parked_bytes,
        ),
        service=Service(
            level=accounts.newcomer_level(node, spec),
            steps=event.steps,
            waits=Waits(stall_ns=event.stall_ns, stall_held_ns=event.stall_held_ns, pause_ns=event.pause_ns),
            idle_ns=event.stall_held_ns + event.pause_ns,  # its account is without what was not charged
        ),
        wall=WallTime(row_since_ns=now),
        share=Share(is_paced=event.is_paced, borrowed=_borrowed(event.account)),
        move=Move(came_ns=now),
    )
    lifecycle.enqueue(node, job)
    if event.account is not None:
        lifecycle.restore(job, event.account, _row_meanwhile(event, event.account), now=now)
    lifecycle.move(node, job, StartJob, now=now, to=JobState.PARKED if event.is_parked else None)
    for why in event.held_for:
        departures.add(node, job, why, Departure(since_ns=now))
    ledger.promise(device, job, max(0, min(wanted, ledger.free_bytes(device))))
    if not admission.fits_cap(job):  # it was resized before
        departures.add(node, job, Why.SHRINKS, Departure())
    if event.is_parked:
        ledger.note_stayed(device, job, job.memory.promised_bytes)
        return []
    return _go_on(node, device, job, event, now=now)


def _left_for(node: Node, device: Device, spec: JobSpec) -> JobSpec:
    """A job that outlived its driver keeps of its guarantee what others leave it (S3)."""
    if node.settings.share_policy != ASKED_SHARES:
        return spec
    return replace(spec, guaranteed_milli=min(spec.guaranteed_milli, node.unpromised_milli(device)))


def _go_on(node: Node, device: Device, job: Job, event: JobAdopted, *, now: Nanos) -> list[Effect]:
    """It is in a lane again, and keeps its turn if it had one that nobody else has by now."""
    lane = admission.enter_lane(node, device, job)
    lifecycle.begin_row(job, _row_now(event), since=now)
    if not event.holding:
        return []
    if lane.holder is not None:
        return [RevokeLease(job=job.id, reason="its lane was taken while the daemon was away")]
    lifecycle.move(node, job, LeaseAsked, now=now)
    lifecycle.move_lease(node, job, GrantLease, now=now)
    lifecycle.move(node, job, GrantLease, now=now, to=JobState.PROFILING if event.needs is None else None)
    return []


def _row_meanwhile(event: JobAdopted, account: Account) -> str | None:
    """What the job did while there was no driver (A5): without one nobody is given a turn, leaves or comes back, and
    who made no step and asks for no turn still does what it did."""
    if event.is_parked or (event.held_for and event.is_waiting):
        return "parked"
    if event.holding:
        return "run"
    is_unmoved = event.steps == account.steps and not event.is_waiting
    return account.row if is_unmoved and account.row in ("start", "idle", "unmanaged") else None


def _row_now(event: JobAdopted) -> str:
    """What a job that holds nothing does until it has said itself what it wants."""
    if event.is_waiting:
        return "parked" if event.held_for else "away"
    return "idle" if event.steps else "start"
