"""How a job leaves: it ends, is cancelled, or goes on outside the turns; its bytes and its turn go with it."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node.accounts import raise_floors, reset_marks
from carpool.core.node.effects import CloseJob, Effect, RememberJob, StopJob
from carpool.core.node.events import CancelAsked, JobDetached, JobExited
from carpool.core.node.memory import admission, lanes, ledger, waiting
from carpool.core.node.model import History, Job, JobState
from carpool.core.node.node import Node


def detach(node: Node, job: Job, event: JobDetached, *, now: Nanos) -> None:
    """It takes no turns any more; its bytes stay in the books."""
    device = node.device_of(job)
    raise_floors(node, device)
    _close_lease(node, job, JobDetached, now=now)
    node.move(job, JobDetached, now=now)
    job.reason = event.reason
    job.is_suspended = job.is_sent_away = job.gives_way = False
    job.leaving_for, job.memory.parked_bytes, job.squeeze = None, 0, None
    lanes.remove(device, job)
    wanted = admission.unmanaged_bytes(node, job)
    ledger.promise(device, job, min(wanted, job.memory.promised_bytes + ledger.free_bytes(device)))


def end(node: Node, job: Job, event: JobExited, *, now: Nanos) -> list[Effect]:
    """Its program is over."""
    if job.device is not None:
        raise_floors(node, node.devices[job.device])
    _close_lease(node, job, JobExited, now=now)
    if job.state is JobState.QUEUED:
        node.queue.remove(job.id)
    failed = JobState.CANCELLED if job.ending.is_asked else JobState.FAILED
    node.move(job, JobExited, now=now, to=JobState.FINISHED if event.code == 0 else failed)
    code = "exit code unknown" if event.code is None else f"exit code {event.code}"
    job.reason = job.ending.reason or event.reason or code
    job.reason += f"; {job.memory.denial}" if job.memory.denial and job.state is JobState.FAILED else ""
    job.leaving_for, job.memory.parked_bytes = None, 0
    effects: list[Effect] = [CloseJob(job=job.id, state=job.state, reason=job.reason)]
    if job.device is not None:
        device = node.devices[job.device]
        lanes.remove(device, job)
        ledger.release(device, job)
        reset_marks(node, device)
    if job.state is JobState.FINISHED and job.spec.fingerprint and job.service.steps:
        known = job.memory.needs or (job.history.needs if job.history is not None else None)
        past = History(
            needs=known, steps=job.service.steps, step_ns=job.service.step_ns, served_ns=job.service.served_ns
        )
        node.histories[job.spec.fingerprint] = past
        effects.append(RememberJob(fingerprint=job.spec.fingerprint, history=past))
    return effects


def cancel(node: Node, job: Job, event: CancelAsked, *, now: Nanos) -> list[Effect]:
    """Somebody wants it to end: at once if it is queued, else its program is told."""
    job.ending.is_asked = True
    if job.state is not JobState.QUEUED:
        job.ending.reason = job.ending.reason or event.reason
        return [*([] if event.is_told else [StopJob(job=job.id)]), *waiting.give_up(job, now=now)]
    node.queue.remove(job.id)
    node.move(job, CancelAsked, now=now)
    job.reason = "cancelled before it started"
    return [CloseJob(job=job.id, state=job.state, reason=job.reason)]


def _close_lease(node: Node, job: Job, cause: type, *, now: Nanos) -> None:
    if job.lease is not None:
        node.move_lease(job, cause, now=now)
        reset_marks(node, node.device_of(job))
