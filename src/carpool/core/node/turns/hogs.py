"""Jobs that were asked for their turn and do not reach a boundary: what happens to them, step by step.

Rules
  H1  A step is taken when the job is late by so many times its patience, each once a turn, in the order of the table.
      For the warning that is since it was asked; for the others since somebody has waited for what it holds as well.
  H2  Which steps are taken at all is the job's own choice (`on_hog`); nobody is ended who did not choose it.
  H3  A job that was put last lets others go first for as long as it kept them waiting, and then counts as before.
  H4  One that is sent away leaves the device at its next boundary, and comes back by itself when nobody else wants
      anything of it, or when it is resumed. One that cannot be parked goes on.
  H5  Where the settings say so, a job is ended that kept a job of another tenant waiting for so long since it was
      asked, whatever it chose: one tenant does not stop the others for ever. Its own tenant's jobs do not count.
"""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.effects import Effect, NameHog, StopJob
from carpool.core.node.model import BLOCKED, Departure, Device, HogStep, Job, JobState, Why
from carpool.core.node.moves import departures
from carpool.core.node.node import Node
from carpool.core.node.turns import choice
from carpool.core.node.words import reasons

LAPSE_STEPS = 3  # a holder is not idle while it may simply be inside a step of usual length
# In this order, when late by so many times its patience (H1).
STEPS: tuple[tuple[HogStep, int], ...] = (
    (HogStep.WARNED, 1),
    (HogStep.LAST, 2),
    (HogStep.SENT_AWAY, 10),
    (HogStep.ENDED, 20),
)
# How far it goes, by what was said with --on-hog (H2).
FURTHEST = {"warn": HogStep.LAST, "suspend": HogStep.SENT_AWAY, "kill": HogStep.ENDED}


def watch(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Take turns from holders that stopped computing (D6), and deal with those that stopped reaching boundaries."""
    effects: list[Effect] = []
    if not choice.is_watched(node, device):
        return effects
    for job in node.holders_on(device):
        lease = job.lease
        if lease is None:
            continue
        silent_ns = accounts.look_for_life(node, job, lease, now=now)
        patience = max(node.settings.lapse_ns, LAPSE_STEPS * (job.service.step_ns or 0))
        if silent_ns >= patience and not job.memory.pending_bytes:
            effects += lifecycle.revoke(node, job, reasons.lapse(job, silent_ns), now=now)
            continue
        effects += escalate(node, job, now=now)
    return effects


def escalate(node: Node, job: Job, *, now: Nanos) -> list[Effect]:
    """Take every step that is due and was not taken in this turn."""
    lease = job.lease
    if lease is None or lease.recalled_ns is None:
        return []
    effects: list[Effect] = _end_for_others(node, job, now=now)
    late_ns, patience = now - lease.recalled_ns, choice.patience_ns(node, job)
    kept_ns = kept_waiting_ns(node, job, now=now) if late_ns > patience else 0
    for step, times in STEPS[lease.hog_steps :]:
        if (late_ns if step is HogStep.WARNED else kept_ns) < times * patience:
            break
        lease.hog_steps, lease.hog_step = lease.hog_steps + 1, step
        effects.append(NameHog(job=job.id, step=step, reason=reasons.hog(job, late_ns, step)))
        if step is HogStep.SENT_AWAY:
            departures.add(node, job, Why.SENT_AWAY, Departure(since_ns=now))
        if step is HogStep.ENDED:
            lifecycle.order_end(job, reasons.hog(job, late_ns, step))
            effects.append(StopJob(job=job.id))
        if step is FURTHEST[job.spec.on_hog]:
            lease.hog_steps = len(STEPS)
    return effects


def _end_for_others(node: Node, job: Job, *, now: Nanos) -> list[Effect]:
    """End a job that keeps another tenant waiting for longer than the settings let it (H5)."""
    end_ns = node.settings.hog_end_ns
    if end_ns is None or job.ending.is_asked:
        return []
    kept_ns = kept_waiting_ns(node, job, now=now, only_others=True)
    if kept_ns < end_ns:
        return []
    lifecycle.order_end(job, reasons.hog_for_others(job, kept_ns, end_ns))
    return [StopJob(job=job.id)]


def kept_waiting_ns(node: Node, job: Job, *, now: Nanos, only_others: bool = False) -> Nanos:
    """How long somebody has waited for the lane or the memory of a holder since it was asked; 0 if nobody does: its
    owner may have asked for the turn, to move it say, and no other job is the worse for its being late. With
    `only_others` jobs of its own tenant are nobody."""
    if job.lease is None or job.lease.recalled_ns is None:
        return 0
    device = node.device_of(job)
    since = [
        other.state_since_ns
        for other in node.jobs_on(device) + node.queued_for(device)
        if not (only_others and other.spec.tenant == job.spec.tenant)
        and (
            other.state is BLOCKED
            or node.wants_memory(other, now=now)
            or (node.wants_turn(other) and (other.lane == job.lane or other.memory.needs is None))
        )
    ]
    return now - max(job.lease.recalled_ns, min(since, default=now))


def turn_ended(node: Node, job: Job, *, now: Nanos) -> None:
    """A hog gives its turn back at last: it rests for as long as the others waited (H3)."""
    step = job.lease.hog_step if job.lease is not None else None
    if step is not None and step is not HogStep.WARNED:
        job.rests_until_ns = now + kept_waiting_ns(node, job, now=now)


def forgive(node: Node, device: Device) -> None:
    """Let those who were sent away come back when nobody else wants anything (H4)."""
    here = node.jobs_on(device)
    sent_away = [job for job in here if Why.SENT_AWAY in job.departures]
    if not sent_away:
        return
    others = node.queued_for(device)
    others += [job for job in here if Why.SENT_AWAY not in job.departures and job.state is not JobState.UNMANAGED]
    if all(departures.stays_away(job) for job in others):
        for job in sent_away:
            departures.drop(node, job, Why.SENT_AWAY)
