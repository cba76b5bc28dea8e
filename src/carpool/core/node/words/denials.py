"""The sentences for allocations that wait, or wait in vain (waiting.py): what was asked, who has it, what to do."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.kernel.ids import Nanos
from carpool.core.node.memory import ledger
from carpool.core.node.model import AWAY, Device, Job
from carpool.units import format_bytes, format_ns

NAMED_MAX = 3  # others whose part of a device is told by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A job that asked for more than the `room_bytes` it would be given, and who else is on its device."""

    job: Job
    device: Device
    others: list[Job]
    room_bytes: int

    def waited_long(self, waited_ns: Nanos) -> str:
        """Its deadline is over."""
        waited, cap = f"waited {format_ns(waited_ns)}, as long as --wait-memory allows", self.job.spec.cap_bytes
        if cap is not None and self.job.memory.live_bytes + self.job.memory.pending_bytes > cap:
            remedy = "raise the cap with --memory, or while it waits with carpool resize"
            return f"{_cap_reached(self.job, cap)}, and {waited}; {remedy}"
        return f"{self._out_of_memory()}; it {waited}: {self._remedy('let it wait longer')}"

    def not_told_to_wait(self) -> str:
        why = "; they cannot be parked for it now" if self._named() else ""
        return f"{self._out_of_memory()}{why}: {self._remedy('let it wait with --wait-memory')}"

    def nobody_goes_on(self) -> str:
        if not self._named():
            return f"{self._out_of_memory()}: {self._remedy('')}"
        return (
            f"{self._out_of_memory()}; nobody there can go on without more, and this job has the least to lose"
            f" ({format_ns(self.job.service.served_ns)} of device time): start them with --memory, or one by one"
        )

    def _out_of_memory(self) -> str:
        """What it holds and asked for, what it could have, and who has the rest."""
        job, device, named = self.job, self.device, self._named()
        rest = [f"{other.id} has {format_bytes(self._has_bytes(other))}" for other in named[:NAMED_MAX]]
        if len(named) > NAMED_MAX:
            more = sum(map(self._has_bytes, named[NAMED_MAX:]))
            rest.append(f"{len(named) - NAMED_MAX} more have {format_bytes(more)}")
        if scratch := ledger.lanes_bytes(device):
            rest.append(f"{format_bytes(scratch)} is for turns")
        listed = f"{', '.join(rest[:-1])} and {rest[-1]}" if len(rest) > 1 else "".join(rest)
        room = max(0, min(self.room_bytes, device.capacity_bytes - sum(map(self._has_bytes, named))))
        return (
            f"out of memory: job {job.id} {_asked(job)}; of the {format_bytes(device.capacity_bytes)} of {device.id}"
            f" it can have {format_bytes(room)}{f': {listed}' if listed else ''}"
        )

    def _remedy(self, wait: str) -> str:
        return (
            f"{wait}, or start it when they have ended" if self._named() else "ask for less, or use a larger device"
        )

    def _named(self) -> list[Job]:
        """Who has something there, the largest first."""
        return sorted(filter(self._has_bytes, self.others), key=lambda other: -self._has_bytes(other))

    def _has_bytes(self, other: Job) -> int:
        """What it is promised or, beyond its lane, holds."""
        lane = self.device.lanes.get(other.lane) if other.lane is not None else None
        beyond = other.memory.live_bytes - (lane.bytes if lane is not None else 0) if other.state not in AWAY else 0
        return max(other.memory.promised_bytes, beyond)


def at_its_cap(job: Job) -> str:
    """It is over the cap that its user drew, and was not told to wait for a larger one."""
    return f"{_cap_reached(job, job.spec.cap_bytes or 0)}; raise the cap with carpool resize {job.id} --memory SIZE"


def is_to_end(job: Job) -> str:
    return f"job {job.id} {_asked(job)}, and was told to end while it waited for that"


def _cap_reached(job: Job, cap_bytes: int) -> str:
    return f"memory cap reached: job {job.id} may hold {format_bytes(cap_bytes)}, {_asked(job)}"


def _asked(job: Job) -> str:
    return f"holds {format_bytes(job.memory.live_bytes)} and asked for {format_bytes(job.memory.pending_bytes)} more"


def blocked(job: Job, device: Device) -> str:
    """An allocation waits: for a larger cap, for others' memory, or only for its turn."""
    wanted, cap = job.memory.live_bytes + job.memory.pending_bytes, job.spec.cap_bytes
    asks = f"an allocation of {format_bytes(job.memory.pending_bytes)} waits for memory: the job holds"
    asks += f" {format_bytes(job.memory.live_bytes)}"
    if cap is not None and wanted > cap:
        return f"{asks} and may hold {format_bytes(cap)}; go on with: carpool resize {job.id} --memory SIZE"
    if job.memory.promised_bytes >= wanted:
        return f"{asks}; there is room now, and it waits for its turn"
    return f"{asks}, was promised {format_bytes(job.memory.promised_bytes)}, and {ledger.terms(device)}"
