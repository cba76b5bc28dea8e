"""Device time: who had how much of it, at which fair level, and how long a step takes.

Rules
  A1  Held time is charged exactly once, in whole nanoseconds, to the job and to its tenant, whose levels
      count it by their weights.
  A2  A job that begins to want a turn, or could not run until now, is a newcomer. Its level is no lower than the
      lowest of its tenant's jobs that want a turn of its device and may run. A tenant's level is no lower than the
      lowest of such tenants. When nobody wants a turn, the level of those who did last counts. Time not used is not
      saved up, and nobody has to wait until a newcomer has had as much. A job parked for others may come back a
      rotation lower.
  A3  A step time is measured only over a span in which the same jobs were running: beside another job a step takes
      longer. It falls quickly and rises by steps. A job that runs while something else keeps the machine busy makes
      few steps, and should not be taken for a longer job because of them.
  A6  A turn in which a job does nothing is not charged: it is no service, and counts for no level and no share.
  A7  What a change of turn costs a job is a fading mean over its latest changes, as its program measured them. A mean
      and not a median: most changes may cost little and a few much, and all of it is lost.
  D8  A turn lasts so long that what a change of turn costs its job is at most CHANGE_PERCENT of it, and TURN_NS at
      least, also while nobody knows that cost.
  D9  Those who wait for turns have one each within `latency_ns`: a turn is no longer than that divided by the number
      of those who wait, less the step in which it ends. But for their number alone no turn is shorter than TURN_NS.
  D10  Where somebody waits who never had a turn, or is known to end within one, a turn lasts TURN_NS at most: each
      such job makes it short only once.

This module alone changes `Job.service`, the accounts of tenants, and the shortest step time of the node. Where wall
time goes (A4, A5) is in lifecycle.py, beside the states it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import SHARE_ONE, WEIGHT_ONE, JobId, Nanos, TenantId
from carpool.core.node.model import (
    AWAY,
    WANTING,
    Changes,
    Device,
    Job,
    JobSpec,
    JobState,
    Lane,
    Lease,
    Mark,
    Tenant,
    Waits,
)
from carpool.core.node.node import Node, TurnPolicy, is_holding
from carpool.core.policies.view import JobView
from carpool.units import MS

_WAITS = AWAY | {JobState.WAITING}
STEPS_MEASURED_MIN = 3  # fewer steps since the mark say little about packing
STEPS_TO_RISE = 64  # after so many slower steps a job's step time is half way up to theirs
EARLY_SLACK_NS = 20 * MS  # a job that was early may have had so much more than the others
CHANGES_MEANT = 8  # a change's cost is a mean over about so many
TURN_NS = 100 * MS  # the shortest turn that is chosen
CHANGE_PERCENT = 2  # of a turn, at most, for the change
ACTIVE_PERCENT = 5  # a holder that used this share of a core since the last look is computing


def charge_holders(node: Node, *, now: Nanos) -> None:
    """Bring the accounts of everybody who holds a turn up to now (A1)."""
    for device in node.devices.values():
        for lane in device.lanes.values():
            holder = node.jobs[lane.holder] if lane.holder is not None else None
            if holder is not None and holder.service.charged_ns < now:
                _charge(node, device, lane, holder, now=now)


def _charge(node: Node, device: Device, lane: Lane, holder: Job, *, now: Nanos) -> None:
    service = holder.service
    span = now - service.charged_ns
    service.charged_ns = now
    service.served_ns += span
    service.level += span * WEIGHT_ONE // holder.spec.weight_milli
    tenant = device.tenants[holder.spec.tenant]
    tenant.level += span * WEIGHT_ONE // tenant.weight_milli
    holder_id = holder.id
    for job_id in lane.lively:
        job = node.jobs[job_id]
        wall = job.wall
        if wall.row == "turn":  # for the holder (A4)
            waits, waited_ns = job.service.waited_for_ns, now - wall.row_since_ns
            if waited_ns:
                waits[holder_id] = waits.get(holder_id, 0) + (span if span < waited_ns else waited_ns)


def note_idle(node: Node, job: Job, idle_ns: Nanos) -> Nanos:
    """Take in how long the job had a turn and did nothing, in all; returns what of it was charged until now (A6)."""
    service = job.service
    span = min(idle_ns - service.idle_ns, service.served_ns)
    service.idle_ns = max(service.idle_ns, idle_ns)
    if span <= 0:
        return 0
    service.served_ns -= span
    service.level = max(0, service.level - span * WEIGHT_ONE // job.spec.weight_milli)
    tenant = _tenant_of(node, job)
    tenant.level = max(0, tenant.level - span * WEIGHT_ONE // tenant.weight_milli)
    return span


def note_end(job: Job, *, wants_more: bool) -> None:
    """Its turn ended: one that wants no more goes before its equals when it asks again (D7)."""
    job.service.is_early = not wants_more


def begin_turn(node: Node, device: Device, job: Job, *, now: Nanos) -> None:
    """The job's turn begins: from now on it is charged for it, and shows signs of life."""
    job.service.charged_ns = job.service.last_active_ns = now
    reset_marks(node, device)


def restore(job: Job, waited_for_ns: dict[JobId, Nanos], served_ns: Nanos) -> None:
    """Go on with the account of a job that comes back."""
    job.service.waited_for_ns, job.service.served_ns = dict(waited_for_ns), served_ns


# --- fair levels --------------------------------------------------------------------------------------------


def lift_newcomer(node: Node, job: Job, *, slack: int = 0) -> None:
    """Clamp a job that begins to want turns to the incumbents' level (A2)."""
    _lift(node, job, raise_floors(node, node.device_of(job)), slack)


def rotation_slack(node: Node, job: Job) -> int:
    """How far an orderly rotation of all jobs of the device can have left behind one that was parked for others."""
    device = node.device_of(job)
    return len(device.promised) * device.quiet_ns


def forget_level(job: Job) -> None:
    """It goes on on another device, where it stands like a newcomer (V4)."""
    job.service.level = 0


def newcomer_level(node: Node, spec: JobSpec) -> int:
    """The level at which a queued job begins: that of its tenant's jobs where these have had the least."""
    devices = [device for device in node.devices.values() if spec.device in (None, device.id)]
    floors = [device.tenants[spec.tenant].jobs_floor for device in devices if spec.tenant in device.tenants]
    return min(floors, default=0)


def raise_floors(node: Node, device: Device) -> set[TenantId]:
    """Note the lowest levels at which jobs want turns (A2). Returns whose they are.

    lifecycle.py does it before the set of jobs that want turns changes, the scheduler before bytes change hands.
    """
    lowest: dict[TenantId, int] = {}
    stuck: list[Job] = []
    for job in node.lively_on(device):
        if job.state not in WANTING:
            continue
        if node.may_run(job):
            lowest[job.spec.tenant] = min(job.service.level, lowest.get(job.spec.tenant, job.service.level))
        else:
            stuck.append(job)
    for tenant_id, level in lowest.items():
        tenant = device.tenants[tenant_id]
        tenant.jobs_floor = max(tenant.jobs_floor, level)
    if lowest:
        lowest_tenant = min(device.tenants[tenant_id].level for tenant_id in lowest)
        device.tenants_floor = max(device.tenants_floor, lowest_tenant)
    for job in stuck:
        _lift(node, job, set(lowest), 0)
    return set(lowest)


def _lift(node: Node, job: Job, wanting: set[TenantId], slack: int) -> None:
    tenant = _tenant_of(node, job)
    job.service.level = max(job.service.level, tenant.jobs_floor - slack)
    if tenant.id not in wanting:
        tenant.level = max(tenant.level, node.device_of(job).tenants_floor - slack)


def _tenant_of(node: Node, job: Job) -> Tenant:
    """The account of the job's tenant on the job's device."""
    tenants, name = node.device_of(job).tenants, job.spec.tenant
    if name not in tenants:
        tenants[name] = Tenant(id=name, weight_milli=node.weight_of(name))
    return tenants[name]


def weigh_anew(node: Node) -> None:
    """Tenants may count differently from now on; what they have had stays as it was counted."""
    for device in node.devices.values():
        for tenant in device.tenants.values():
            tenant.weight_milli = node.weight_of(tenant.id)


# --- steps and signs of life --------------------------------------------------------------------------------


def reset_marks(node: Node, device: Device) -> None:
    """The set of running jobs changed: measurements of step times begin anew (A3)."""
    holders = node.holders_on(device)
    for job in holders:
        mates = tuple(sorted(other.id for other in holders if other is not job)) if len(holders) > 1 else ()
        job.service.mark = Mark(job.service.steps, job.service.served_ns, mates)


def note_steps(node: Node, job: Job, steps: int, *, now: Nanos) -> None:
    """Take in a job's step count; learns its step time, alone and beside one other job."""
    service = job.service
    if steps <= service.steps:
        return
    service.steps = steps
    service.last_step_ns = now
    mark = service.mark
    if mark is None or not is_holding(job):
        return
    done, spent = steps - mark.steps, service.served_ns - mark.served_ns
    if done <= 0 or spent <= 0:
        return
    sample = spent // done
    learn_step(node, job, sample, done)
    if done >= STEPS_MEASURED_MIN:
        if not mark.mates:
            service.solo_step_ns = sample
        elif len(mark.mates) == 1:
            service.packed_step_ns[mark.mates[0]] = sample
        service.mark = Mark(steps, service.served_ns, mark.mates)


def recount(job: Job, steps: int) -> None:
    """What it counted as steps were none: their times say nothing of those to come."""
    service = job.service
    service.steps, service.step_ns, service.solo_step_ns = steps, None, None
    service.steps_total = None
    service.packed_step_ns.clear()
    if service.mark is not None:
        service.mark = Mark(steps, service.served_ns, service.mark.mates)


def learn_step(node: Node, job: Job, sample: Nanos, steps: int = 1) -> None:
    """Take in so many steps that took `sample` each (A3)."""
    before = job.service.step_ns or sample
    rise = (sample - before) * steps // (steps + STEPS_TO_RISE)
    step_ns = (before + sample) // 2 if sample < before else before + rise
    job.service.step_ns = step_ns
    if step_ns < node.step_ns_least or not node.step_ns_least:
        node.step_ns_least = step_ns


def learn_length(job: Job, steps_total: int) -> None:
    """Its program's loops say how many steps it will have made at its end."""
    job.service.steps_total = steps_total


def note_changes(job: Job, changes: int, changes_ns: Nanos) -> None:
    """Take in how many changes of turn a job has been through, and what they cost it in all (A7)."""
    before = job.service.changes
    done, cost_ns = changes - before.number, changes_ns - before.all_ns
    if done == 0:
        return
    each_ns = before.each_ns
    if done > 0:  # else its program began anew
        known = min(before.number, CHANGES_MEANT - 1) if each_ns is not None else 0
        each_ns = ((each_ns or 0) * known + cost_ns) // (known + done)
    job.service.changes = Changes(changes, changes_ns, each_ns)


def learn_first_step(node: Node, job: Job, sample: Nanos) -> None:
    """Its program measured its first turns itself."""
    if job.service.step_ns is None:
        learn_step(node, job, sample)
        if job.service.mark is not None and not job.service.mark.mates:
            job.service.solo_step_ns = sample


def note_waits(node: Node, job: Job, *, stall_ns: Nanos, stall_held_ns: Nanos, pause_ns: Nanos) -> Nanos:
    """Take in how long it waited for its input, in all and in its turns, and how long it did nothing else in them;
    returns what of that was charged until now."""
    service = job.service
    before = service.waits
    service.waits = now = Waits(
        stall_ns=max(before.stall_ns, stall_ns, stall_held_ns),
        stall_held_ns=max(before.stall_held_ns, stall_held_ns),
        pause_ns=max(before.pause_ns, pause_ns),
    )
    return note_idle(node, job, now.stall_held_ns + now.pause_ns)


def see_signs(node: Node, job: Job, *, steps: int, cpu_ns: Nanos, now: Nanos) -> None:
    """Take in what the page and the operating system say of a job."""
    service = job.service
    used_ns = cpu_ns - service.cpu_ns
    # Of a long standstill of the whole machine only what was looked at counts (D6).
    span_ns = min(now - service.last_active_ns, service.silent_ns + node.settings.watch_ns)
    if steps > service.steps or used_ns * 100 >= max(1, span_ns) * ACTIVE_PERCENT:
        service.last_active_ns = now
        service.cpu_ns = cpu_ns
    note_steps(node, job, steps, now=now)


def look_for_life(node: Node, job: Job, lease: Lease, *, now: Nanos) -> Nanos:
    """Look at a holder; returns how long it has shown no sign of life, as far as it was looked at (D6)."""
    service = job.service
    seen_ns = max(service.last_active_ns, lease.granted_ns)
    if seen_ns >= service.looked_ns:
        service.silent_ns = 0
    service.silent_ns += min(now - max(service.looked_ns, seen_ns), node.settings.watch_ns)
    service.looked_ns = now
    return service.silent_ns


# --- what a policy sees -------------------------------------------------------------------------------------


def remaining_ns(node: Node, job: Job, *, served_ns: Nanos) -> tuple[Nanos, bool]:
    """How much device time a job that has had so much still needs, and whether that is known rather than guessed.

    It is declared steps × step time; else what the same program took last time; else the steps that its loops have
    before them × step time; else as much as it has had: with heavy-tailed lengths that is the best guess. A loop may
    end by a break: so the last run is asked before the loops. It may not be the last one: a job that is beyond its
    loops needs as much again as it has had since then. Declared steps that were never measured are taken to be as
    short as the shortest here, so that a short job is tried before it is judged. While others queue for room they are
    not: then the job's first turns, which measure it and may free room, come by the order of what it has had.
    """
    past, steps = job.history, job.spec.steps
    step_ns = past.step_ns if job.service.step_ns is None and past is not None else job.service.step_ns
    if steps is not None and step_ns is not None:
        return max(0, steps - job.service.steps) * step_ns, True
    if past is not None and served_ns < past.served_ns:
        return past.served_ns - served_ns, True
    if (total := job.service.steps_total) is not None and step_ns is not None:
        left = total - job.service.steps
        return (left * step_ns, True) if left > 0 else (max(step_ns, served_ns - total * step_ns), False)
    if steps is not None and not node.queue:
        return max(served_ns, (steps - job.service.steps) * node.step_ns_least), False
    return served_ns, False


def chosen_quantum(node: Node, job: Job) -> Nanos:
    """How long a turn of this job is to last while those wait who wait now (D8, D9, D10)."""
    unhurried_ns = unhurried_quantum(node, job)
    return TURN_NS if unhurried_ns > TURN_NS and _hurrying(node, job, unhurried_ns) else unhurried_ns


def unhurried_quantum(node: Node, job: Job) -> Nanos:
    """The same but for those who wait for little."""
    paying = paying_ns(job)
    lane = node.lane_of(job) if paying > TURN_NS else None
    waiters = len(node.waiting_in(lane)) if lane is not None else 0
    each_ns = node.settings.latency_ns // max(1, waiters) - (job.service.step_ns or 0)
    return min(paying, max(each_ns, min(TURN_NS, node.settings.latency_ns)))


def hurried_by(node: Node, holder: Job, quantum_ns: Nanos) -> Job | None:
    """Who waits for this holder and makes its turn short (D10): for its first turn, or it ends within one."""
    hurrying, lane = _hurrying(node, holder, quantum_ns), node.lane_of(holder)
    return min(hurrying, key=lambda job: lane.jobs.index(job.id)) if hurrying and lane is not None else None


def _hurrying(node: Node, holder: Job, quantum_ns: Nanos) -> list[Job]:
    lane = node.lane_of(holder)
    waiting = [job for job in node.waiting_in(lane) if job is not holder] if lane is not None else []
    return [job for job in waiting if _is_short(node, job, quantum_ns)]


def _is_short(node: Node, job: Job, quantum_ns: Nanos) -> bool:
    served_ns = job.service.served_ns
    if not served_ns:
        return True
    left_ns, is_known = remaining_ns(node, job, served_ns=served_ns)
    return is_known and left_ns <= quantum_ns


def paying_ns(job: Job) -> Nanos:
    """How long a turn of this job is to be for the change of turn to pay (D8)."""
    return max(TURN_NS, (job.service.changes.each_ns or 0) * 100 // CHANGE_PERCENT)


def view_of(node: Node, job: Job, *, now: Nanos, on: Device | None = None) -> JobView:
    """The job as a policy sees it; `on` its device, or one which a queued job might get."""
    return views_of(node, [job], now=now, on=on)[0]


def views_of(node: Node, jobs: Sequence[Job], *, now: Nanos, on: Device | None = None) -> list[JobView]:
    """All candidates of one decision."""
    views = []
    make = tuple.__new__  # the class's own constructor takes twice as long, and with names four times as long
    for job in jobs:
        spec, lease, service = job.spec, job.lease, job.service
        served_ns = service.served_ns
        remaining, is_known = served_ns, False
        if spec.steps is not None or job.history is not None or service.steps_total is not None:
            remaining, is_known = remaining_ns(node, job, served_ns=served_ns)
        held_ns = waited_ns = quantum_ns = 0
        if lease is not None:
            held_ns, quantum_ns = now - lease.granted_ns, chosen_quantum(node, job)
        else:
            waited_ns = now - (job.wanting_since_ns if job.state in _WAITS else job.state_since_ns)
        tenant = on.tenants.get(spec.tenant) if on is not None else None
        fields = (
            job.id,
            spec.name,
            spec.tenant,
            spec.priority,
            job.arrived_ns,
            lease is not None,
            held_ns,
            waited_ns,
            served_ns,
            remaining,
            is_known,
            service.level,
            node.tenant_level(job, on) if tenant is None else tenant.level,
            SHARE_ONE,
            service.is_early and lease is None and _has_no_more(node, job, on),
            quantum_ns,
        )
        views.append(make(JobView, fields))
    return views


def _has_no_more(node: Node, job: Job, on: Device | None) -> bool:
    """Whether the job has had about as little as the least of its tenant's that want turns."""
    device = on or (node.devices[job.device] if job.device is not None else None)
    tenant = device.tenants.get(job.spec.tenant) if device is not None else None
    return tenant is None or job.service.level <= tenant.jobs_floor + EARLY_SLACK_NS


def pick(node: Node, jobs: Sequence[Job], *, now: Nanos, on: Device | None = None) -> JobId | None:
    """Whom of these the policy puts first; None only if there is nobody."""
    policy = node.policy
    if len(jobs) > 1 and policy.by_tenant:  # views are made only of the jobs of one tenant
        jobs = _of_first_tenant(node, jobs, on)
        policy = node.order_of(jobs[0].spec.tenant)
    if len(jobs) == 1:
        return jobs[0].id
    return _lowest(policy, views_of(node, jobs, now=now, on=on), now=now)


def first(policy: TurnPolicy, views: Sequence[JobView], *, now: Nanos) -> JobId | None:
    """Whom of these views the policy puts first: the lowest rank, of equals the one that came first."""
    if not views:
        return None
    if policy.by_tenant:
        return min(views, key=lambda view: _place(policy, view, now)).id
    return _lowest(policy, views, now=now)


def _lowest(policy: TurnPolicy, views: Sequence[JobView], *, now: Nanos) -> JobId | None:
    """The same of views whose tenants do not matter, or are one."""
    if not views:
        return None
    rank = policy.rank
    places = [(rank(view, now=now), view.arrived_ns, view.id) for view in views]  # as `_place` has it
    return min(places)[2]


def in_order(
    node: Node, jobs: Sequence[Job], *, now: Nanos, on: Device | None = None, at_most: int | None = None
) -> list[Job]:
    """The jobs as the policy would have them go; only the first of them if so many are enough."""
    if len(jobs) < 2:
        return list(jobs)

    def place(view: JobView) -> tuple[object, ...]:
        own = node.order_of(view.tenant).rank(view, now=now), view.arrived_ns, view.id
        return (view.tenant_level, view.tenant, *own) if node.policy.by_tenant else own

    views = sorted(views_of(node, jobs, now=now, on=on), key=place)
    return [node.jobs[view.id] for view in views[:at_most]]


def _place(policy: TurnPolicy, view: JobView, now: Nanos) -> tuple[object, ...]:
    """A job's place in the order of a policy: its tenant's where tenants come first, then its own."""
    place = (policy.rank(view, now=now), view.arrived_ns, view.id)
    return (view.tenant_level, view.tenant, *place) if policy.by_tenant else place


def _of_first_tenant(node: Node, jobs: Sequence[Job], on: Device | None) -> Sequence[Job]:
    """The jobs of the tenant that has had the least for its weight; of equals the first by name."""
    levels: dict[TenantId, int] = {}
    first: TenantId | None = None
    for job in jobs:
        tenant = job.spec.tenant
        if tenant not in levels:
            level = levels[tenant] = node.tenant_level(job, on)
            if first is None or level < levels[first] or (level == levels[first] and tenant < first):
                first = tenant
    return jobs if len(levels) == 1 else [job for job in jobs if job.spec.tenant == first]


def why(node: Node, chosen: Job, over: Job, *, now: Nanos) -> str:
    """Half a sentence: why the policy, which is named, puts the one before the other."""
    policy = node.policy if chosen.spec.tenant != over.spec.tenant else node.order_of(chosen.spec.tenant)
    return f"{policy.name}: {policy.why(view_of(node, chosen, now=now), view_of(node, over, now=now))}"
