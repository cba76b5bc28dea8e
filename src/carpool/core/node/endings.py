"""How a job leaves: it ends, is cancelled, goes on outside the turns, or is not started after all; its bytes and its
turn go with it."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.effects import CloseJob, Effect, RememberJob, StopJob
from carpool.core.node.events import CancelAsked, JobDetached, JobExited, StartPutOff
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import History, Job, JobState
from carpool.core.node.moves import departures
from carpool.core.node.node import Node


def detach(node: Node, job: Job, event: JobDetached, *, now: Nanos) -> None:
    """It takes no turns any more; its bytes still count."""
    device = node.device_of(job)
    if job.lease is not None:
        lifecycle.move_lease(node, job, JobDetached, now=now)
    lifecycle.move(node, job, JobDetached, now=now)
    lifecycle.note_reason(job, event.reason)
    departures.end(node, job, JobDetached)
    ledger.reserve_host(job, 0)
    ledger.remove(device, job)
    ledger.promise_up_to(device, job, admission.unmanaged_bytes(node, job))


def put_off(node: Node, job: Job, event: StartPutOff, *, now: Nanos) -> None:
    """It was let in, and the machine could not start it: it is back in the queue, where it was (M7)."""
    departures.end(node, job, JobExited)
    ledger.withdraw(node.device_of(job), job)
    lifecycle.move(node, job, StartPutOff, now=now)
    lifecycle.put_off_starts(node, event.reason, now=now)


def end(node: Node, job: Job, event: JobExited, *, now: Nanos) -> list[Effect]:
    """Its program is over."""
    if job.lease is not None:
        lifecycle.move_lease(node, job, JobExited, now=now)
    failed = JobState.CANCELLED if job.ending.is_asked else JobState.FAILED
    lifecycle.move(node, job, JobExited, now=now, to=JobState.FINISHED if event.code == 0 else failed)
    code = "exit code unknown" if event.code is None else f"exit code {event.code}"
    reason = job.ending.reason or event.reason or code
    if job.memory.denial and job.state is JobState.FAILED:
        reason += f"; {job.memory.denial}"
    lifecycle.note_reason(job, reason)
    departures.end(node, job, JobExited)
    ledger.reserve_host(job, 0)
    effects: list[Effect] = [CloseJob(job=job.id, state=job.state, reason=job.reason)]
    if job.device is not None:
        device = node.devices[job.device]
        ledger.remove(device, job)
        ledger.release(device, job)
        accounts.reset_marks(node, device)
    if job.state is JobState.FINISHED and job.spec.fingerprint and job.service.steps:
        known = job.memory.needs or (job.history.needs if job.history is not None else None)
        service = job.service
        past = History(needs=known, steps=service.steps, step_ns=service.step_ns, served_ns=service.served_ns)
        remember(node, job.spec.fingerprint, past)
        effects.append(RememberJob(fingerprint=job.spec.fingerprint, history=past))
    return effects


def remember(node: Node, fingerprint: str, past: History) -> None:
    """What was learnt of a program counts for its next run."""
    node.histories[fingerprint] = past


def cancel(node: Node, job: Job, event: CancelAsked, *, now: Nanos) -> list[Effect]:
    """Somebody wants it to end: at once if it is queued, else its program is told."""
    lifecycle.note_order(job, event, now=now)
    if job.state is not JobState.QUEUED:
        lifecycle.order_end(job, job.ending.reason or event.reason)
        return [] if event.is_told else [StopJob(job=job.id)]
    lifecycle.order_end(job)
    departures.end(node, job, JobExited)
    lifecycle.move(node, job, CancelAsked, now=now)
    lifecycle.note_reason(job, "cancelled before it started")
    return [CloseJob(job=job.id, state=job.state, reason=job.reason)]
