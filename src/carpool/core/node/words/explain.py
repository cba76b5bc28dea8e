"""For every job one true sentence: what it does, or why it waits, with the numbers.

Why a job waits is asked of whoever decided it: the departures' table, the choice of turns, those who would have to
leave. The policy is asked to defend only what it decided.
"""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node import accounts
from carpool.core.node.memory import admission
from carpool.core.node.model import PARKED, WAITING, Device, Job, JobState, Lane, LeaseState
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node, is_asked_away, is_asking, next_try, start_ns
from carpool.core.node.turns import choice
from carpool.core.node.words import denials, reasons
from carpool.units import format_bytes, format_ns


def explain(node: Node, job: Job, *, now: Nanos) -> str:
    """One sentence: what the job does or waits for, with the numbers."""
    if job.state is WAITING:
        return turn_reason(node, node.device_of(job), job, now=now)
    if is_asking(job):
        return denials.blocked(job, node.device_of(job))
    if job.state is PARKED:
        return _away(node, node.device_of(job), job, now=now)
    if node.waits_for_starts(job):
        return reasons.start_wait(node.settings, len(node.starts), node.starts_most, node.start_trouble)
    late = choice.deadline(node, job)
    if late is not None and now >= late and job.lease is not None and job.lease.recalled_ns is not None:
        return reasons.hog(job, now - job.lease.recalled_ns, job.lease.hog_step)
    held = departures.held_words(job) if job.state is JobState.PARKING else ""
    return reasons.standing(job, f": {held}" if held else departures.asked_words(job), now=now)


def _away(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Why a parked job is not back, and what of it stayed."""
    kept = f"; {job.move.kept}" if job.move.kept else ""
    return _why_away(node, device, job, now=now) + kept


def _why_away(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    found = departures.first(job)
    since_ns = found[1].since_ns if found is not None and is_asked_away(job) else job.state_since_ns
    span = format_ns(now - since_ns)
    if found is not None and found[0].away is not None:
        return found[0].away(job, found[1], span)
    need = admission.returning_needs(node, job, device).total_bytes
    due_ns = next_try(job, now=now)
    outlook = leavers.outlook(node, device, job, now=now)
    outlook = f"it is tried again, in {format_ns(due_ns - now)}" if due_ns is not None else outlook or "others end"
    return reasons.kept_out(job, device, need, span, outlook)


def _stuck(job: Job, device: Device) -> str:
    """Why a job that is held back at a boundary is still there."""
    found = departures.first(job)
    if found is None:
        return ""
    held = f"{format_bytes(job.memory.promised_bytes)} still on {device.id}"
    return found[0].stuck(job, found[1], held, job.move.trouble or "it is about to move")


def turn_reason(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Why a waiting job has no turn right now."""
    lane = node.lane_of(job)
    view = accounts.view_of(node, job, now=now)
    if job.departures:
        return _stuck(job, device)
    if not node.may_run(job):
        return reasons.uncovered(job, device)
    if device.has_shares and start_ns(job) > now:
        return choice.why_limited(device, job, view, start_ns(job) - now)
    measured = next((other for other in node.holders_on(device) if other.state is JobState.PROFILING), None)
    if measured is not None and lane is not None:
        return reasons.profiling_wait(view, measured, lane.id)
    holder = node.jobs[lane.holder] if lane is not None and lane.holder is not None else None
    if holder is None or lane is None:
        return reasons.clearing_wait(view, node.holders_on(device), choice.newcomer(node, device, now=now), device)
    holder_view = accounts.view_of(node, holder, now=now)
    return reasons.turn_wait(view, holder_view, lane.id, _why_not_yet(node, device, lane, job, holder, now=now))


def _why_not_yet(node: Node, device: Device, lane: Lane, job: Job, holder: Job, *, now: Nanos) -> str:
    """How the sentence about a held lane ends; the policy is asked to defend only what it decided."""
    if holder.lease is None or holder.lease.state is LeaseState.RECALLED:
        newcomer = choice.newcomer(node, device, now=now) if node.policy.lanes_max > 1 else None
        following = newcomer.id if newcomer is not None else choice.successor(node, device, lane, now=now)
        if following is None or following == job.id:
            return reasons.already_recalled(choice.preference(node, job, holder, now=now))
        successor = node.jobs[following]
        return reasons.recalled_for(successor, choice.preference(node, successor, job, now=now))
    left_ns = holder.lease.granted_ns + choice.quantum_of(node, holder, now=now) - now
    if left_ns > 0 and not choice.has_early_rival(node, holder):
        return reasons.rest_of_quantum(left_ns, choice.why_quantum(node, holder, now=now))
    kept = choice.preference(node, holder, job, now=now)
    return reasons.preferred(kept) if kept else reasons.soon_recalled(choice.preference(node, job, holder, now=now))
