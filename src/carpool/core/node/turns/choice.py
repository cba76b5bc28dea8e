"""Whose turn it is: who may have a lane, whom the policy or a guarantee puts first, and for how long a turn lasts.

Everything here is a question; dispatch.py acts on the answers, words/explain.py tells them.
"""

from __future__ import annotations

from carpool.core.kernel.ids import SHARE_ONE, JobId, Nanos
from carpool.core.node import accounts
from carpool.core.node.memory import admission
from carpool.core.node.model import BLOCKED, WAITING, Device, Job, JobState, Lane, LeaseState
from carpool.core.node.node import Node, is_over_limit, was_given
from carpool.core.node.turns import parts, shares
from carpool.core.node.words import reasons, tenancy
from carpool.core.policies.view import JobView
from carpool.units import MS, SECOND

PROFILE_QUANTUM_NS = 2 * SECOND  # a job being measured keeps its turn this long; slow steps need it
LOOK_PART = 4  # a holder that has had its quantum is compared again after a quarter of it, or of what it had since
LOOK_NS_MIN = 1 * MS  # a Tick costs the daemon about 50 µs


def why_not_on(node: Node, device: Device, holder: Job, *, now: Nanos) -> str:
    """Why a holder may not go on though it is not to leave: it outgrew its promise, or used up its limit."""
    if not node.may_run(holder):
        return reasons.uncovered(holder, device)
    if not device.has_shares or not is_over_limit(holder, now=now):
        return ""
    part = holder.share.part
    is_its_tenants = part is not None and part.limit_milli < SHARE_ONE and part.free_from_ns > now
    return tenancy.over_limit(part, device) if part and is_its_tenants else reasons.over_limit(holder, device)


def why_limited(device: Device, job: Job, view: JobView, left_ns: Nanos) -> str:
    """Why a waiting job may have no turn yet: its own limit or its tenant's is used up."""
    part = job.share.part
    if part is not None and part.limit_milli < SHARE_ONE and part.free_from_ns >= job.share.free_from_ns:
        return tenancy.limit_wait(view, part, device, left_ns)
    return reasons.limit_wait(view, job, device, left_ns)


def ready(node: Node, device: Device, lane: Lane, *, now: Nanos) -> list[Job]:
    """Who waits for the lane and may have it."""
    waiting = node.ready_in(device, lane)
    return [job for job in waiting if shares.may_start(job, now=now)] if device.has_shares else waiting


def choose(node: Node, device: Device, waiting: list[Job], holder: Job | None, *, now: Nanos) -> Job | None:
    if node.queue and (holder is None or holder.state is not JobState.PROFILING):
        unmeasured = [job for job in waiting if job.memory.needs is None and job.spec.cap_bytes is None]
        if unmeasured:
            return min(unmeasured, key=lambda job: (job.arrived_ns, job.id))
    wanting = _rested(waiting if holder is None else [*waiting, holder], now=now)
    if len(wanting) == 1:
        return wanting[0]
    if device.has_shares:
        wanting = _owed_part(wanting, now=now)
        owed = shares.most_owed(wanting, now=now)
        if owed is not None:
            return owed
    picked = accounts.pick(node, wanting, now=now, on=device)
    return node.jobs[picked] if picked is not None else None


def _owed_part(wanting: list[Job], *, now: Nanos) -> list[Job]:
    """The jobs of the tenant that is owed a turn, if one is (N16)."""
    part = parts.most_owed(wanting, now=now)
    return wanting if part is None else [job for job in wanting if job.share.part is part]


def _rested(jobs: list[Job], *, now: Nanos) -> list[Job]:
    """Without those that kept others waiting and let them go first now (H3), unless there is nobody else."""
    return [job for job in jobs if job.rests_until_ns <= now] or jobs


def successor(node: Node, device: Device, lane: Lane, *, now: Nanos) -> JobId | None:
    """Whom the policy would give this lane if its recalled turn came back now (D5)."""
    waiting = ready(node, device, lane, now=now)
    chosen = choose(node, device, waiting, None, now=now) if waiting else None
    return chosen.id if chosen is not None and has_its_room(node, chosen) else None


def has_its_room(node: Node, chosen: Job) -> bool:
    """Whether nobody may have to make room before a job has its turn, so that it can be told beforehand (D5)."""
    return chosen.state is not BLOCKED and not admission.lacks_first_room(node, chosen)


def is_sure(node: Node, holder: Job) -> bool:
    """Whether the holder's return only frees its lane, so that nothing decides anew who follows (D5)."""
    return node.policy.lanes_max == 1 and not was_given(holder) and not node.is_pressed(node.device_of(holder))


def newcomer(node: Node, device: Device, *, now: Nanos) -> Job | None:
    """The oldest job whose needs nobody knows, and which waits for a turn and may have it (S1)."""
    wanting = [job for job in node.lively_on(device) if job.memory.needs is None and node.wants_turn(job)]
    wanting = [job for job in wanting if not device.has_shares or shares.may_start(job, now=now)]
    unmeasured = [job for job in wanting if job.id != device.claimant]
    return min(unmeasured, key=lambda job: (job.arrived_ns, job.id), default=None)


def is_due(node: Node, holder: Job, *, now: Nanos) -> bool:
    """Whether the holder could be recalled for somebody else: its quantum is over, and it is not recalled yet."""
    lease = holder.lease
    if lease is None or lease.state is not LeaseState.HELD:
        return False
    return now - lease.granted_ns >= quantum_of(node, holder, now=now) or has_early_rival(node, holder)


def has_early_rival(node: Node, holder: Job) -> bool:
    """Whether somebody waits who wanted no more when its last turn ended: no quantum keeps that one waiting (D7)."""
    if holder.state is not JobState.RUNNING:
        return False
    lane = node.lane_of(holder)
    return lane is not None and any(
        node.jobs[job_id].service.is_early and node.jobs[job_id].state is WAITING for job_id in lane.lively
    )


def quantum_of(node: Node, holder: Job, *, now: Nanos) -> Nanos:
    """How long this holder keeps its turn before it may be recalled for somebody else."""
    quantum_ns = node.quantum_ns
    if quantum_ns is None:
        quantum_ns = accounts.chosen_quantum(node, holder)
    if holder.state is JobState.PROFILING and not holder.share.is_paced:
        return max(quantum_ns, min(PROFILE_QUANTUM_NS, node.settings.latency_ns))
    if node.policy.by_length and holder.lease is not None and holder.state_since_ns > holder.lease.granted_ns:
        return min(quantum_ns, accounts.TURN_NS)  # it was measured in this turn: now it can be judged
    lane = node.lane_of(holder)
    if lane is None or not node.device_of(holder).has_shares:
        return quantum_ns
    waiting = node.waiting_in(lane)
    if parts.is_kept_waiting(waiting, holder, now=now):
        quantum_ns = min(quantum_ns, parts.PART_QUANTUM_NS)
    is_wanted = any(shares.is_owed(job, now=now) for job in waiting)
    return min(quantum_ns, shares.SHARE_QUANTUM_NS) if is_wanted else quantum_ns


def why_quantum(node: Node, job: Job, *, now: Nanos) -> str:
    """Why a turn of this job lasts as long as it does; empty where that was not chosen by what a change costs it."""
    change_ns, lane = job.service.changes.each_ns, node.lane_of(job)
    if node.quantum_ns is not None or change_ns is None or lane is None:
        return ""
    chosen_ns, kept_short = accounts.unhurried_quantum(node, job), ""
    hurrying = accounts.hurried_by(node, job, chosen_ns) if chosen_ns > accounts.TURN_NS else None
    if hurrying is not None:
        kept_short = reasons.hurried(hurrying)
    elif chosen_ns < accounts.paying_ns(job):
        waiters = max(1, len([other for other in node.waiting_in(lane) if other is not job]))
        kept_short = reasons.latency(node.settings.latency_ns, waiters)
    return reasons.quantum(max(0, change_ns), accounts.CHANGE_PERCENT, kept_short)


def look_after(node: Node, holder: Job, quantum: Nanos, due: Nanos, *, now: Nanos) -> Nanos:
    """How long until a holder that has had its quantum is compared again: the longer it has been preferred
    to those who wait now, the longer it will be."""
    lane = node.lane_of(holder)
    waiting = node.waiting_in(lane) if lane is not None else []
    newest = max((job.state_since_ns for job in waiting), default=due)
    if any(job.service.is_early for job in waiting):
        return max(LOOK_NS_MIN, (now - newest) // LOOK_PART)
    return max(LOOK_NS_MIN, quantum // LOOK_PART, (now - max(due, newest)) // LOOK_PART)


def unheard_until(node: Node, holder: Job, *, now: Nanos) -> Nanos | None:
    """Until when nobody need hear that this recalled holder's turn went on; None: at once."""
    if node.device_of(holder).has_shares or len(node.devices) > 1 or holder.lease is None:
        return None
    since, lane = holder.lease.recalled_ns or now, node.lane_of(holder)
    late = now + max(LOOK_NS_MIN, now - since)  # ever later if it takes longer than usual
    successor = node.jobs[lane.successor] if lane is not None and lane.successor is not None else holder
    return max(late, since + (holder.service.step_ns or 0) + quantum_of(node, successor, now=now))


def why_first(node: Node, chosen: Job, over: Job, *, now: Nanos) -> str:
    """Why one goes before the other, as a guarantee or the policy has decided."""
    owed = _owed_words(node, chosen, over, now=now)
    return owed if owed else accounts.why(node, chosen, over, now=now)


def preference(node: Node, first: Job, second: Job, *, now: Nanos) -> str:
    """Why a guarantee or the policy puts one before the other, in its words; empty if neither does."""
    owed = _owed_words(node, first, second, now=now)
    if owed is not None:
        return owed
    if accounts.pick(node, [first, second], now=now) != first.id:
        return ""
    return accounts.why(node, first, second, now=now)


def _owed_words(node: Node, first: Job, second: Job, *, now: Nanos) -> str | None:
    """Why a guarantee puts the first before the second; empty if one puts the second first, None if none decides."""
    if not node.device_of(first).has_shares:
        return None
    part = parts.most_owed([first, second], now=now)
    if part is not None and first.share.part is not second.share.part:
        return tenancy.owed(part, node.device_of(first)) if part is first.share.part else ""
    owed = shares.most_owed([first, second], now=now)
    if owed is None:
        return None
    return reasons.owed(first, node.device_of(first)) if owed is first else ""


# --- turns that do not come back ----------------------------------------------------------------------------


def patience_ns(node: Node, job: Job) -> Nanos:
    return max(node.settings.hog_floor_ns, node.settings.hog_factor * (job.service.step_ns or 0))


def deadline(node: Node, job: Job) -> Nanos | None:
    """When a recalled holder becomes a hog; None if its turn is not recalled."""
    if job.lease is None or job.lease.recalled_ns is None:
        return None
    return job.lease.recalled_ns + patience_ns(node, job)


# --- when to look again -------------------------------------------------------------------------------------


def is_watched(node: Node, device: Device) -> bool:
    """Whether anybody wants a turn of this device, or one was recalled (perhaps for a job in the queue)."""
    if any(job.state is BLOCKED or node.wants_turn(job) for job in node.lively_on(device)):
        return True
    return any(job.lease is not None and job.lease.recalled_ns is not None for job in node.holders_on(device))


def next_looks(node: Node, device: Device, *, now: Nanos) -> list[Nanos]:
    """When holders, quanta and shares of this device have to be looked at again."""
    times: list[Nanos] = []
    if is_watched(node, device):
        times.append(now + node.settings.watch_ns)
        for holder in node.holders_on(device):
            if holder.lease is not None and holder.lease.state is LeaseState.HELD:
                quantum = quantum_of(node, holder, now=now)
                due = now if has_early_rival(node, holder) else holder.lease.granted_ns + quantum
                times.append(due if due > now else now + look_after(node, holder, quantum, due, now=now))
                kept_until = holder.lease.granted_ns + accounts.chosen_quantum(node, holder)
                if node.policy.by_turns and due <= now < kept_until:
                    times.append(kept_until)
    if device.has_shares:
        for lane in device.lanes.values():
            holder_job = node.jobs[lane.holder] if lane.holder is not None else None
            waiting = node.waiting_in(lane)
            times += shares.wakeups(waiting, holder_job, now=now) + parts.wakeups(waiting, holder_job, now=now)
    return times
