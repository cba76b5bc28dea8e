"""Who has the device now: grants, recalls, lapses and hogs of one device.

Rules
  D1  A free lane for which somebody waits who may run is granted in the same call.
  D2  A job whose needs are not covered gets no turn, unless it is the oldest of its device (somebody always can).
  D3  A job without known needs has the whole device to itself for its first turns, and goes first while others
      queue for the memory its open promise holds.
  D4  A holder is recalled only for a job the policy prefers or a guarantee puts first, after its quantum, or because
      it outgrew its promise or used up its limit (shares.py).
  D5  Where one job runs at a time, the successor of a recalled holder is chosen beforehand, anew at every event: when
      the turn comes back he gets it, so a driver may tell him before it tells the core. Nobody is named if bytes
      change hands then: an allocation waits on the device, or the holder gives back what its own waited for (W2).
  D6  A holder loses its turn by lapse only after several looks that found it silent. A look that comes late counts no
      more than one in time: perhaps the whole machine stood still, and the holder is in the middle of a step.
"""

from __future__ import annotations

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.accounts import raise_floors, reset_marks, view_of, views_of
from carpool.core.node.effects import Effect, GrantLease, RecallLease, RevokeLease, SetCap
from carpool.core.node.memory import admission, ledger, waiting
from carpool.core.node.model import BLOCKED, Device, Job, JobState, Lane, Lease, LeaseState
from carpool.core.node.moves import parking, rotation
from carpool.core.node.node import Node
from carpool.core.node.turns import hogs, packing, shares
from carpool.core.node.words import reasons
from carpool.units import MS, SECOND

PROFILE_QUANTUM_NS = 2 * SECOND  # a job being measured keeps its turn this long; slow steps need it
LOOK_PART = 4  # a holder that has had its quantum is compared again after a quarter of it, or of what it had since
LOOK_NS_MIN = 1 * MS  # a Tick costs the daemon about 50 µs
LAPSE_STEPS = 3  # a holder is not idle while it may simply be inside a step of usual length


def dispatch(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Recall, merge, spread and grant until nothing more is to be done on this device."""
    effects: list[Effect] = []
    if node.policy.lanes_max > 1:
        slower = packing.judge(node, device)
        if slower is not None:
            effects += recall(node, slower, "it is slower beside its neighbour than in turns", now=now)
        while packing.arrange(node, device):
            reset_marks(node, device)
        newcomer = _newcomer(node, device, now=now)
        if newcomer is not None:
            return effects + _measure_alone(node, device, newcomer, now=now)
    for lane in list(device.lanes.values()):
        effects += _serve(node, device, lane, now=now)
    return effects


def _serve(node: Node, device: Device, lane: Lane, *, now: Nanos) -> list[Effect]:
    holder = node.jobs[lane.holder] if lane.holder is not None else None
    promised, lane.successor = lane.successor, None
    if holder is not None and not node.may_run(holder):
        return recall(node, holder, _why_not(holder, device), now=now)
    if holder is not None and device.has_shares and shares.is_over(holder, now=now):
        lane.successor = _successor(node, device, lane, now=now) if _is_sure(node, holder) else None
        return recall(node, holder, reasons.over_limit(holder, device), now=now)
    if holder is not None and not _is_due(node, holder, now=now):
        if promised is not None and _is_sure(node, holder):
            lane.successor = _successor(node, device, lane, now=now)
        return []
    waiting = _ready(node, device, lane, now=now)
    if not waiting:
        return []
    chosen = _named(waiting, promised) if holder is None and promised is not None else None
    chosen = chosen or _choose(node, device, waiting, holder, now=now)
    if chosen is None or chosen is holder:
        return []
    if rotation.make_first_room(node, device, chosen, now=now):
        parked = parking.park_leaving(node, device, now=now)
        if holder is None:
            return parked + _serve(node, device, lane, now=now)  # somebody else may have the lane meanwhile (D1)
        return parked + (recall(node, holder, reasons.held_back(holder), now=now) if holder.is_leaving else [])
    if holder is not None:
        lane.successor = chosen.id if _is_sure(node, holder) and chosen.state is not BLOCKED else None
        return recall(node, holder, _why_first(node, chosen, holder, now=now), now=now)
    if len(device.lanes) > 1 and any(job.state is JobState.PROFILING for job in node.holders_on(device)):
        return []
    return _grant(node, device, lane, chosen, now=now)


def _why_not(holder: Job, device: Device) -> str:
    """Why a holder may not go on."""
    return reasons.held_back(holder) if holder.is_held_back else reasons.uncovered(holder, device)


def _ready(node: Node, device: Device, lane: Lane, *, now: Nanos) -> list[Job]:
    """Who waits for the lane and may have it."""
    waiting = node.ready_in(device, lane)
    return [job for job in waiting if shares.may_start(job, now=now)] if device.has_shares else waiting


def _named(waiting: list[Job], promised: JobId) -> Job | None:
    """The successor, if he still waits (D5)."""
    return next((job for job in waiting if job.id == promised), None)


def _why_first(node: Node, chosen: Job, over: Job, *, now: Nanos) -> str:
    """Why one goes before the other, as a guarantee or the policy has decided."""
    if shares.most_owed([chosen, over], now=now) is chosen:
        return reasons.owed(chosen, node.device_of(chosen))
    return f"{node.policy.name}: {node.policy.why(view_of(node, chosen, now=now), view_of(node, over, now=now))}"


def _is_sure(node: Node, holder: Job) -> bool:
    """Whether the holder's return only frees its lane, so that nothing decides anew who follows (D5)."""
    return node.policy.lanes_max == 1 and not ledger.was_given(holder) and not node.device_of(holder).is_pressed


def _successor(node: Node, device: Device, lane: Lane, *, now: Nanos) -> JobId | None:
    """Whom the policy would give this lane if its recalled turn came back now (D5)."""
    waiting = _ready(node, device, lane, now=now)
    chosen = _choose(node, device, waiting, None, now=now) if waiting else None
    if chosen is None or chosen.state is BLOCKED or rotation.lacks_first_room(node, chosen):
        return None
    return chosen.id


def _newcomer(node: Node, device: Device, *, now: Nanos) -> Job | None:
    """The oldest job whose needs nobody knows, and which waits for a turn and may have it (S1)."""
    wanting = [job for job in node.jobs_on(device) if job.memory.needs is None and node.wants_turn(job)]
    wanting = [job for job in wanting if not device.has_shares or shares.may_start(job, now=now)]
    unmeasured = [job for job in wanting if job.id != device.claimant]
    return min(unmeasured, key=lambda job: (job.arrived_ns, job.id), default=None)


def _measure_alone(node: Node, device: Device, newcomer: Job, *, now: Nanos) -> list[Effect]:
    """With several lanes: clear the whole device for a newcomer's first turns (D3)."""
    holders = node.holders_on(device)
    lane = node.lane_of(newcomer)
    if holders or lane is None:
        reason = f"{newcomer.spec.name} is to be measured alone"
        settled = [job for job in holders if job.state is not JobState.PROFILING or job.is_leaving]
        settled += [job for job in holders if job not in settled and shares.is_over(job, now=now)]
        return [effect for job in settled for effect in recall(node, job, reason, now=now)]
    if rotation.make_first_room(node, device, newcomer, now=now):
        parked = parking.park_leaving(node, device, now=now)
        return parked + [effect for each in device.lanes.values() for effect in _serve(node, device, each, now=now)]
    return _grant(node, device, lane, newcomer, now=now)


def _choose(node: Node, device: Device, waiting: list[Job], holder: Job | None, *, now: Nanos) -> Job | None:
    if node.queue and (holder is None or holder.state is not JobState.PROFILING):
        unmeasured = [job for job in waiting if job.memory.needs is None and job.spec.cap_bytes is None]
        if unmeasured:
            return min(unmeasured, key=lambda job: (job.arrived_ns, job.id))
    wanting = hogs.first_those_who_do_not_rest(waiting if holder is None else [*waiting, holder], now=now)
    if len(wanting) == 1:
        return wanting[0]
    owed = shares.most_owed(wanting, now=now) if device.has_shares else None
    if owed is not None:
        return owed
    picked = node.policy.pick(views_of(node, wanting, now=now, on=device), now=now)
    return node.jobs[picked] if picked is not None else None


def _is_due(node: Node, holder: Job, *, now: Nanos) -> bool:
    """Whether the holder could be recalled for somebody else: its quantum is over, and it is not recalled yet."""
    lease = holder.lease
    if lease is None or lease.state is not LeaseState.HELD:
        return False
    return now - lease.granted_ns >= quantum_of(node, holder, now=now)


def quantum_of(node: Node, holder: Job, *, now: Nanos) -> Nanos:
    """How long this holder keeps its turn before it may be recalled for somebody else."""
    if holder.state is JobState.PROFILING and not holder.share.is_paced:
        return max(node.quantum_ns, PROFILE_QUANTUM_NS)
    lane = node.lane_of(holder)
    if lane is not None and node.device_of(holder).has_shares and _is_wanted(node, lane, now=now):
        return min(node.quantum_ns, shares.SHARE_QUANTUM_NS)
    return node.quantum_ns


def _is_wanted(node: Node, lane: Lane, *, now: Nanos) -> bool:
    return any(shares.is_owed(job, now=now) for job in node.waiting_in(lane))


def recall(node: Node, job: Job, reason: str, *, now: Nanos) -> list[Effect]:
    """Recall a held turn; does nothing if it is recalled already."""
    if job.lease is None or job.lease.state is not LeaseState.HELD:
        return []
    node.move_lease(job, RecallLease, now=now)
    return [RecallLease(job=job.id, reason=reason)]


def _grant(node: Node, device: Device, lane: Lane, job: Job, *, now: Nanos) -> list[Effect]:
    is_unknown, was_blocked = job.memory.needs is None, job.state is BLOCKED
    node.move_lease(job, GrantLease, now=now)
    node.move(job, GrantLease, now=now, to=JobState.PROFILING if is_unknown else JobState.RUNNING)
    job.service.charged_ns = now
    job.service.last_active_ns = now
    reset_marks(node, device)
    if was_blocked and not node.may_run(job):
        admission.cover(node, job)  # its lane may have been cut while it had its bytes for itself (W1)
    effects: list[Effect] = [grant_of(node, lane, job.id)]
    if was_blocked:  # now it may have the memory it waited for (W2)
        job.memory.is_given = True
        job.memory.pending_bytes, job.memory.cap_sent_bytes = 0, admission.room_bytes(node, job)
        effects.append(SetCap(job=job.id, cap_bytes=job.memory.cap_sent_bytes))
        if not node.may_run(job):  # only to come to its next boundary
            effects += recall(node, job, _why_not(job, device), now=now)
    return effects


def grant_of(node: Node, lane: Lane, job: JobId) -> GrantLease:
    is_shared = len(lane.jobs) > 1 or bool(node.queue)
    return GrantLease(job=job, lane=lane.id, lane_bytes=lane.bytes, is_shared=is_shared)


def watch(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Take turns from holders that stopped computing and name those that stopped reaching boundaries."""
    effects: list[Effect] = []
    if not _is_watched(node, device):
        return effects
    for job in node.holders_on(device):
        lease = job.lease
        if lease is None:
            continue
        silent_ns = _silent_ns(node, job, lease, now=now)
        patience = max(node.settings.lapse_ns, LAPSE_STEPS * (job.service.step_ns or 0))
        if silent_ns >= patience and not job.memory.pending_bytes:
            effects += revoke(node, device, job, reasons.lapse(job, silent_ns), now=now)
            continue
        effects += hogs.escalate(node, job, now=now)
    return effects


def _silent_ns(node: Node, job: Job, lease: Lease, *, now: Nanos) -> Nanos:
    """How long a holder has shown no sign of life, as far as it was looked at (D6)."""
    seen_ns = max(job.service.last_active_ns, lease.granted_ns)
    if seen_ns >= job.service.looked_ns:
        job.service.silent_ns = 0
    job.service.silent_ns += min(now - max(job.service.looked_ns, seen_ns), node.settings.watch_ns)
    job.service.looked_ns = now
    return job.service.silent_ns


def _is_watched(node: Node, device: Device) -> bool:
    """Whether anybody wants a turn of this device, or one was recalled (perhaps for a job in the queue)."""
    if any(job.state is BLOCKED or node.wants_turn(job) for job in node.jobs_on(device)):
        return True
    return any(job.lease is not None and job.lease.recalled_ns is not None for job in node.holders_on(device))


def revoke(node: Node, device: Device, job: Job, reason: str, *, now: Nanos) -> list[Effect]:
    raise_floors(node, device)
    node.move_lease(job, RevokeLease, now=now)
    node.move(job, RevokeLease, now=now)
    reset_marks(node, device)
    return [RevokeLease(job=job.id, reason=reason)]


def next_wakeup(node: Node, device: Device, *, now: Nanos) -> Nanos | None:
    """When this device next needs a Tick; None while nobody waits for anybody."""
    times: list[Nanos] = []
    if _is_watched(node, device):
        times.append(now + node.settings.watch_ns)
        for holder in node.holders_on(device):
            if holder.lease is not None and holder.lease.state is LeaseState.HELD:
                quantum = quantum_of(node, holder, now=now)
                due = holder.lease.granted_ns + quantum
                times.append(due if due > now else now + _look_after(node, holder, quantum, due, now=now))
    tries = [parking.next_try(job, now=now) for job in node.jobs_on(device) if job.move.retry_ns > now]
    tries += [rotation.next_look(node, device, now=now), waiting.next_look(node, device, now=now)]
    times += [time for time in tries if time is not None]
    if device.has_shares:
        for lane in device.lanes.values():
            holder_job = node.jobs[lane.holder] if lane.holder is not None else None
            times += shares.wakeups(node.waiting_in(lane), holder_job, now=now)
    if node.queue:
        for job in node.jobs_on(device):
            if admission.is_open_and_quiet(job):
                times.append(max(now + SECOND, job.state_since_ns + node.settings.start_patience_ns))
    return min(times, default=None)


def _look_after(node: Node, holder: Job, quantum: Nanos, due: Nanos, *, now: Nanos) -> Nanos:
    """How long until a holder that has had its quantum is compared again: the longer it has been preferred
    to those who wait now, the longer it will be."""
    lane = node.lane_of(holder)
    waiting = node.waiting_in(lane) if lane is not None else []
    newest = max((job.state_since_ns for job in waiting), default=due)
    return max(LOOK_NS_MIN, quantum // LOOK_PART, (now - max(due, newest)) // LOOK_PART)


def turn_reason(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Why a waiting job has no turn right now."""
    lane = node.lane_of(job)
    view = view_of(node, job, now=now)
    if job.is_leaving:
        return reasons.stays(job, device)
    if job.is_held_back:
        return reasons.squeezed(job)
    if not node.may_run(job):
        return reasons.uncovered(job, device)
    if device.has_shares and not shares.may_start(job, now=now):
        return reasons.limit_wait(view, job, device, job.start_ns - now)
    measured = next((other for other in node.holders_on(device) if other.state is JobState.PROFILING), None)
    if measured is not None and lane is not None:
        return reasons.profiling_wait(view, measured, lane.id)
    holder = node.jobs[lane.holder] if lane is not None and lane.holder is not None else None
    if holder is None or lane is None:
        return reasons.clearing_wait(view, node.holders_on(device), _newcomer(node, device, now=now), device)
    holder_view = view_of(node, holder, now=now)
    return reasons.turn_wait(view, holder_view, lane.id, _why_not_yet(node, device, lane, job, holder, now=now))


def _why_not_yet(node: Node, device: Device, lane: Lane, job: Job, holder: Job, *, now: Nanos) -> str:
    """How the sentence about a held lane ends; the policy is asked to defend only what it decided."""
    if holder.lease is None or holder.lease.state is LeaseState.RECALLED:
        newcomer = _newcomer(node, device, now=now) if node.policy.lanes_max > 1 else None
        following = newcomer.id if newcomer is not None else _successor(node, device, lane, now=now)
        if following is None or following == job.id:
            return reasons.already_recalled(_preference(node, job, holder, now=now))
        successor = node.jobs[following]
        return reasons.recalled_for(successor, _preference(node, successor, job, now=now))
    left_ns = holder.lease.granted_ns + quantum_of(node, holder, now=now) - now
    if left_ns > 0:
        return reasons.rest_of_quantum(left_ns)
    kept = _preference(node, holder, job, now=now)
    return reasons.preferred(kept) if kept else reasons.soon_recalled(_preference(node, job, holder, now=now))


def _preference(node: Node, first: Job, second: Job, *, now: Nanos) -> str:
    """Why a guarantee or the policy puts one before the other, in its words; empty if neither does."""
    owed = shares.most_owed([first, second], now=now)
    if owed is not None:
        return reasons.owed(first, node.device_of(first)) if owed is first else ""
    views = [view_of(node, first, now=now), view_of(node, second, now=now)]
    if node.policy.pick(views, now=now) != first.id:
        return ""
    return f"{node.policy.name}: {node.policy.why(*views)}"
