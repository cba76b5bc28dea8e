"""Compute shares: how much of a device's time a job is guaranteed, and how much it may have at most.

A share is counted in thousandths of the device. Both sides are one moment a job: `owed_from_ns` is when its guarantee
next owes it a turn, `free_from_ns` when its limit next lets it have one. Held time moves both on by held / share, so
at a guarantee of 250 a turn of 20 ms moves the first on by 80 ms.

Rules
  S1  Over any span a job holds its device no longer than limit x span, plus BURST_NS of it and the turn that was
      under way. A turn is not cut inside a step, but paid back before the next one.
  S2  A waiting job that is owed goes before everybody who is not, and before those owed later; while it waits, the
      holder keeps its turn for SHARE_QUANTUM_NS only. Where nobody is owed, the policy chooses: what one does not use
      is for the others.
  S3  The guarantees of the jobs on a device are at most the whole device; a job that finds less waits in the queue.
  S4  Time not used is not saved up beyond BURST_NS, as a claim or a right; others' idle time is not held against one.
  S5  A job that paces itself (its programs keep to the limit by their kernels' own time) is not held back by turns.

What is deliberately not here: who keeps to the limit inside a program (native/share.c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from carpool.core.kernel.ids import SHARE_ONE, Nanos
from carpool.core.node.effects import Effect, SetCompute
from carpool.core.node.model import AWAY, Device, Job, JobSpec, JobState
from carpool.core.node.node import ASKED_SHARES, Node, start_ns
from carpool.core.node.turns import parts
from carpool.core.node.words import tenancy
from carpool.errors import InternalError
from carpool.units import MS

BURST_NS = 100 * MS
SHARE_QUANTUM_NS = 30 * MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicy:
    """One row of the table: what becomes of the numbers the jobs of a device ask for."""

    guarantee: str  # asked: as it is; part: asked / all that is asked; even: the same for every job
    limit: str  # asked: as it is; guarantee: the same as the guarantee; whole: all that is free
    about: str


SHARE_POLICIES = {
    "fixed": SharePolicy(
        guarantee="asked", limit="asked", about="what each job asks for; those who ask for nothing share the rest"
    ),
    "best-effort": SharePolicy(
        guarantee="even", limit="whole", about="the same for all who want, idle time for others"
    ),
    "equal": SharePolicy(
        guarantee="even", limit="guarantee", about="1/n each, used or not; equal:4 is a quarter each, alone or not"
    ),
    "weighted": SharePolicy(
        guarantee="part", limit="guarantee", about="in proportion to what the jobs ask for, used or not"
    ),
    "burst": SharePolicy(
        guarantee="part", limit="whole", about="in proportion to what the jobs ask for, idle time for others"
    ),
}


def split(policy: SharePolicy, specs: Sequence[JobSpec], slots: int) -> list[tuple[int, int]]:
    """Guarantee and limit of each of the jobs of one device; `slots`: at least so many parts, where they are even."""
    asked = sum(spec.guaranteed_milli for spec in specs)
    made = []
    for spec in specs:
        match policy.guarantee:
            case "asked":
                guarantee = spec.guaranteed_milli
            case "part":
                guarantee = spec.guaranteed_milli * SHARE_ONE // asked if asked else 0
            case _:
                guarantee = SHARE_ONE // max(slots, len(specs))
        whole = {"asked": spec.limit_milli, "guarantee": guarantee, "whole": SHARE_ONE}
        made.append((guarantee, max(1, whole[policy.limit])))  # a part that is rounded to nothing is no ban
    return made


def refusal(node: Node, spec: JobSpec) -> str | None:
    """Why a job can have no share here, or None."""
    name = node.settings.share_policy
    if SHARE_POLICIES[name].guarantee == "part" and not spec.guaranteed_milli:
        return f"job {spec.name} asks for no share, and share policy {name} divides by what is asked: give --compute"
    return None


def settle(node: Node, device: Device) -> list[Effect]:
    """Give the jobs of a device their shares, and tell those that pace themselves what changed."""
    parts.settle(node, device)
    takers = [job for job in node.jobs_on(device) if job.state is not JobState.UNMANAGED and job.state not in AWAY]
    policy = SHARE_POLICIES[node.settings.share_policy]
    made = split(policy, [job.spec for job in takers], node.settings.share_slots)
    for job in node.jobs_on(device):
        if job.state is JobState.UNMANAGED:
            job.share.guaranteed_milli, job.share.limit_milli = 0, SHARE_ONE
    for job, (guarantee, limit) in zip(takers, made, strict=True):
        most = job.share.part.limit_milli if job.share.part is not None else SHARE_ONE  # of all jobs of its tenant
        job.share.guaranteed_milli, job.share.limit_milli = min(guarantee, most), min(limit, most)
    device.has_shares = bool(device.parts) or any(part != (0, SHARE_ONE) for part in made)
    effects: list[Effect] = []
    for job in takers:
        # Beside a share, a job without a limit is held to 100 %, so that its turn can be taken back soon.
        told = job.share.limit_milli if device.has_shares else None
        if told != job.share.told_milli:
            job.share.told_milli = told
            effects.append(SetCompute(job=job.id, limit_milli=told))
    return effects


def trouble(node: Node, job: Job, guaranteed_milli: int) -> str | None:
    """Why a live job cannot have this guarantee, or None (S3)."""
    for device_id in (job.device, job.move.source):
        if device_id is not None and node.settings.share_policy == ASKED_SHARES:
            room = node.unpromised_milli(node.devices[device_id]) + job.spec.guaranteed_milli
            if guaranteed_milli > room:
                return tenancy.no_share(job, guaranteed_milli, room, device_id)
    return refusal(node, replace(job.spec, guaranteed_milli=guaranteed_milli))


def note_pace(job: Job, is_paced: bool) -> None:
    """Whether its programs keep to the limit themselves (S5)."""
    job.share.is_paced = is_paced


def charge_holders(node: Node, device: Device, *, now: Nanos) -> None:
    """Whoever holds a turn has had it until now."""
    if device.parts:
        parts.charge_holders(node, device, now=now)
    for holder in node.holders_on(device):
        if holder.service.charged_ns < now:
            charge(holder, now - holder.service.charged_ns, now=now)


def check_shares(node: Node, device: Device) -> None:
    """Assert S3, that no job is allowed less than it is guaranteed, and that the device knows of every share."""
    jobs = node.jobs_on(device)
    made = {(job.share.guaranteed_milli, job.share.limit_milli) for job in jobs if job.state not in AWAY}
    if not device.has_shares and (device.parts or made - {(0, SHARE_ONE)}):
        raise InternalError(f"a job of {device.id} has a share, and the device is said to have none")
    if sum(job.share.guaranteed_milli for job in jobs if job.state not in AWAY) > SHARE_ONE:
        raise InternalError(f"S3 broken: more than all of {device.id} is guaranteed")
    if any(job.share.guaranteed_milli > job.share.limit_milli for job in jobs):
        raise InternalError(f"a job of {device.id} is guaranteed more than it may have")


def charge(job: Job, span: Nanos, *, now: Nanos) -> None:
    """The job has had its turn for `span` until now."""
    earliest = now - span - BURST_NS
    if job.share.guaranteed_milli:
        latest = now + max(BURST_NS, job.service.step_ns or 0) * SHARE_ONE // job.share.guaranteed_milli
        job.share.owed_from_ns = min(
            latest, max(job.share.owed_from_ns, earliest) + span * SHARE_ONE // job.share.guaranteed_milli
        )
    job.share.free_from_ns = max(job.share.free_from_ns, earliest) + span * SHARE_ONE // job.share.limit_milli


def refund(job: Job, idle_ns: Nanos, *, now: Nanos) -> None:
    """The end of its turn was nobody's: the device was idle, and the turn was taken as soon as somebody wanted it."""
    if job.share.guaranteed_milli:
        job.share.owed_from_ns = max(
            now - BURST_NS, job.share.owed_from_ns - idle_ns * SHARE_ONE // job.share.guaranteed_milli
        )


def may_start(job: Job, *, now: Nanos) -> bool:
    """Whether its limit lets a waiting job have a turn (S1)."""
    return start_ns(job) <= now


def most_owed(wanting: Sequence[Job], *, now: Nanos) -> Job | None:
    """Who must go first because of its guarantee (S2)."""
    owed = [job for job in wanting if is_owed(job, now=now)]
    return min(owed, key=lambda job: (job.share.owed_from_ns, job.arrived_ns, job.id), default=None)


def is_owed(job: Job, *, now: Nanos) -> bool:
    return job.share.guaranteed_milli > 0 and job.share.owed_from_ns <= now


def wakeups(waiting: Sequence[Job], holder: Job | None, *, now: Nanos) -> list[Nanos]:
    """When a limit or a guarantee next changes who may run on a lane."""
    times = [start_ns(job) for job in waiting if start_ns(job) > now]
    if holder is not None and holder.lease is not None:
        kept = holder.lease.granted_ns + SHARE_QUANTUM_NS
        times += [
            max(job.share.owed_from_ns, kept)
            for job in waiting
            if job.share.guaranteed_milli and job.share.owed_from_ns > now
        ]
        if holder.share.limit_milli < SHARE_ONE and not holder.share.is_paced:
            left = max(0, now - max(holder.share.free_from_ns, now - BURST_NS))
            times.append(now + max(MS, left * holder.share.limit_milli // (SHARE_ONE - holder.share.limit_milli)))
    return times
