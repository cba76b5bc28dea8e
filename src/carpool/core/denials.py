"""The sentences for allocations that wait in vain (waiting.py, W6 and W7): what was asked, who has it, what to do."""

from __future__ import annotations

from carpool.core.model import AWAY, Device, Job, Nanos
from carpool.units import format_bytes, format_ns

NAMED_MAX = 3  # others whose part of a device is told by name


def waited_long(job: Job, device: Device, here: list[Job], waited_ns: Nanos) -> str:
    """Its deadline is over."""
    waited = f"waited {format_ns(waited_ns)}, as long as --wait-memory allows"
    cap = job.spec.cap_bytes
    if cap is not None and job.live_bytes + job.pending_bytes > cap:
        remedy = "raise the cap with --memory, or while it waits with carpool resize"
        return f"{_cap_reached(job, cap)}, and {waited}; {remedy}"
    return f"{_out_of_memory(job, device, here)}; it {waited}"


def at_its_cap(job: Job) -> str:
    """It is over the cap that its user drew, and was not told to wait for a larger one."""
    return f"{_cap_reached(job, job.spec.cap_bytes or 0)}; raise the cap with carpool resize {job.id} --memory SIZE"


def not_told_to_wait(job: Job, device: Device, here: list[Job]) -> str:
    return (
        f"{_out_of_memory(job, device, here)}, which cannot be parked for it now; let it wait with --wait-memory, or"
        " start it when they have ended"
    )


def nobody_goes_on(job: Job, device: Device, here: list[Job]) -> str:
    return (
        f"{_out_of_memory(job, device, here)}; nobody there can go on without more, and this job has the least to"
        f" lose ({format_ns(job.served_ns)} of device time); give --memory, or start them one by one"
    )


def _cap_reached(job: Job, cap_bytes: int) -> str:
    return f"memory cap reached: job {job.id} may hold {format_bytes(cap_bytes)}, {_asked(job)}"


def _asked(job: Job) -> str:
    return f"holds {format_bytes(job.live_bytes)} and asked for {format_bytes(job.pending_bytes)} more"


def _out_of_memory(job: Job, device: Device, here: list[Job]) -> str:
    """What it holds and asked for, what it could have, and who has the rest."""
    others = sorted((other for other in here if other is not job), key=lambda other: -_booked(other))
    rest = [f"{other.id} has {format_bytes(_booked(other))}" for other in others[:NAMED_MAX]]
    if len(others) > NAMED_MAX:
        rest.append(f"{len(others) - NAMED_MAX} more have {format_bytes(sum(map(_booked, others[NAMED_MAX:])))}")
    room = max(0, device.capacity_bytes - sum(map(_booked, others)))
    return (
        f"out of memory: job {job.id} {_asked(job)}; of the {format_bytes(device.capacity_bytes)} of {device.id} it"
        f" can have {format_bytes(room)}: {' and '.join(rest) or 'nobody else is there'}"
    )


def _booked(job: Job) -> int:
    return max(job.promised_bytes, job.live_bytes if job.state not in AWAY else 0)
