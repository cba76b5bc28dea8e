"""Taking back a job that runs already, after the driver was restarted: its bytes are facts, and so is its turn."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node.accounts import begin_wanting, reset_marks, restore
from carpool.core.node.effects import Effect, GrantLease, RevokeLease, StartJob
from carpool.core.node.events import JobAdopted, LeaseAsked
from carpool.core.node.memory import admission, ledger, resize
from carpool.core.node.model import Account, Device, Job, JobState, Squeeze
from carpool.core.node.node import Node, begin_row
from carpool.core.node.turns import shares


def take_back(node: Node, device: Device, job: Job, event: JobAdopted, *, now: Nanos) -> list[Effect]:
    """Give a new entry of the queue what it has already, as far as L1 allows."""
    if event.account is not None:
        restore(job, event.account, _row_meanwhile(event, event.account), now=now)
    node.queue.remove(job.id)
    node.move(job, StartJob, now=now, to=JobState.PARKED if event.is_parked else None)
    job.is_suspended, job.memory.parked_bytes, job.move.came_ns = event.is_suspended, event.parked_bytes, now
    job.suspended_ns = now
    job.share.is_paced = event.is_paced
    job.memory.is_measured = event.needs is not None
    job.memory.measured_bytes = event.needs.total_bytes if event.needs is not None else None
    job.device, job.memory.needs, job.service.steps, job.memory.live_bytes = (
        device.id,
        event.needs,
        event.steps,
        event.live_bytes,
    )
    wanted = event.needs.resident_bytes if event.needs else event.spec.cap_bytes or event.live_bytes
    wanted = event.live_bytes if event.is_parked else wanted
    ledger.promise(device, job, max(0, min(wanted, ledger.free_bytes(device))))
    shares.take_back(node, device, job)
    job.squeeze = None if resize.fits(job) else Squeeze.ASKED  # it was resized before
    if event.is_parked:
        job.memory.stayed_bytes = job.memory.promised_bytes
        return []
    lane = admission.enter_lane(node, device, job)
    begin_row(job, _row_now(event), since=now)
    if not event.holding:
        return []
    if lane.holder is not None:
        return [RevokeLease(job=job.id, reason="its lane was taken while the daemon was away")]
    begin_wanting(node, job)
    node.move(job, LeaseAsked, now=now)
    node.move_lease(job, GrantLease, now=now)
    node.move(job, GrantLease, now=now, to=JobState.PROFILING if job.memory.needs is None else None)
    job.service.charged_ns = job.service.last_active_ns = now
    reset_marks(node, device)
    return []


def _row_meanwhile(event: JobAdopted, account: Account) -> str | None:
    """What the job did while there was no driver (A5): without one nobody is given a turn, leaves or comes back, and
    who made no step and asks for no turn still does what it did."""
    if event.is_parked or (event.is_suspended and event.is_waiting):
        return "parked"
    if event.holding:
        return "run"
    is_unmoved = event.steps == account.steps and not event.is_waiting
    return account.row if is_unmoved and account.row in ("start", "idle", "unmanaged") else None


def _row_now(event: JobAdopted) -> str:
    """What a job that holds nothing does until it has said itself what it wants."""
    if event.is_waiting:
        return "parked" if event.is_suspended else "away"
    return "idle" if event.steps else "start"
