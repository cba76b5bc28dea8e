"""A running job is given more or less: a larger cap at once, a smaller one when it can keep it.

Rules
  Z1  A larger cap, a new weight and a new share count from now on: the job is told in the same call.
  Z2  A smaller cap is told to a job only when it is known to need no more. Until then it keeps the old one and gets
      no turn; at its next boundary it gives back what it can spare and is measured anew.
  Z3  A job that still needs more leaves the device until its cap is raised. It is ended only if that was asked.
  Z4  A cap larger than every device the job may use, and a smaller one for a job of which nobody knows what it needs,
      are refused and change nothing. So is a share that others are guaranteed (S3).
"""

from __future__ import annotations

from dataclasses import replace

from carpool.core.node import lifecycle
from carpool.core.node.effects import Effect, StopJob, TrimJob
from carpool.core.node.events import JobResized
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import ENDED, WAITING, Departure, Device, Job, JobState, Why
from carpool.core.node.moves import departures
from carpool.core.node.node import Node
from carpool.core.node.turns import shares
from carpool.core.node.words import reasons


def refusal(node: Node, job: Job, event: JobResized) -> str | None:
    """Why the job cannot be resized like this, or None (Z4)."""
    trouble = shares.trouble(node, job, event.share_milli[0]) if event.share_milli is not None else None
    if trouble is not None or event.cap_bytes is None:
        return trouble
    devices = [node.device_of(job)] if job.device is not None else admission.allowed_devices(node, job)
    largest = max(devices, key=lambda device: (device.capacity_bytes, device.id))
    if event.cap_bytes > largest.capacity_bytes:
        return reasons.resized_beyond(job, event.cap_bytes, largest)
    told = job.memory.cap_sent_bytes
    if job.state is JobState.UNMANAGED and event.cap_bytes < job.memory.live_bytes and not event.may_end:
        return reasons.resized_outside(job, event.cap_bytes)
    is_known = job.memory.is_measured or job.state in (JobState.QUEUED, JobState.UNMANAGED)
    if not is_known and told is not None and event.cap_bytes < told:
        return reasons.resized_unmeasured(job, event.cap_bytes, told)
    return None


def take(node: Node, job: Job, event: JobResized) -> list[Effect]:
    """Take in what is not refused."""
    spec = job.spec
    guaranteed, limit = event.share_milli or (spec.guaranteed_milli, spec.limit_milli)
    job.spec = replace(
        spec,
        cap_bytes=spec.cap_bytes if event.cap_bytes is None else event.cap_bytes,
        weight_milli=spec.weight_milli if event.weight_milli is None else event.weight_milli,
        guaranteed_milli=guaranteed,
        limit_milli=limit,
    )
    for device in node.devices.values():
        ledger.touch(device)
    if event.cap_bytes is None:
        return []
    if job.state is JobState.UNMANAGED and event.cap_bytes < job.memory.live_bytes:
        return _end(job)
    is_too_large = Why.TOO_LARGE in job.departures
    if admission.fits_cap(job):
        _relax(node, job)
    elif is_too_large and event.may_end:
        return _end(job)
    elif not is_too_large:
        departures.add(node, job, Why.SHRINKS, Departure(may_end=event.may_end))
    return []


def keep_priority(node: Node, job: Job) -> None:
    """Its tenant may use certain priorities only (N11)."""
    priority = node.priority_of(job.spec)
    if priority != job.spec.priority and job.state not in ENDED:
        job.spec = replace(job.spec, priority=priority)


def keep_priorities(node: Node) -> None:
    """Tenants may use other priorities from now on (N11)."""
    for job in node.jobs.values():
        keep_priority(node, job)


def trim_waiting(node: Node, device: Device) -> list[Effect]:
    """Tell the jobs that are to become smaller and wait at a boundary to give back what they can (Z2)."""
    effects: list[Effect] = []
    for job in node.jobs_on(device):
        shrinks = job.departures.get(Why.SHRINKS)
        if shrinks is not None and not shrinks.is_told and job.state is WAITING:
            departures.add(node, job, Why.SHRINKS, replace(shrinks, is_told=True))
            effects.append(TrimJob(job=job.id))
    return effects


def ask_again(node: Node, job: Job) -> None:
    """It asks for a turn as if it were new: whoever was told to give memory back before is gone."""
    shrinks = job.departures.get(Why.SHRINKS)
    if shrinks is not None and shrinks.is_told:
        departures.add(node, job, Why.SHRINKS, replace(shrinks, is_told=False))


def judge(node: Node, job: Job) -> list[Effect]:
    """A job was measured: one that is to become smaller keeps its cap from now on, or cannot (Z2, Z3)."""
    shrinks = job.departures.get(Why.SHRINKS)
    if admission.fits_cap(job):
        _relax(node, job)
    elif shrinks is not None and shrinks.is_told:
        departures.drop(node, job, Why.SHRINKS)
        departures.add(node, job, Why.TOO_LARGE, Departure())
        departures.retry_now(job)
        return _end(job) if shrinks.may_end else []
    return []


def _relax(node: Node, job: Job) -> None:
    """It keeps its cap."""
    departures.drop(node, job, Why.SHRINKS)
    departures.drop(node, job, Why.TOO_LARGE)


def _end(job: Job) -> list[Effect]:
    lifecycle.order_end(job, reasons.too_large(job, admission.needed_bytes(job)))
    return [StopJob(job=job.id)]
