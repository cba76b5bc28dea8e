"""Device time: who had how much of it, at which fair level, and how long a step takes.

Rules
  A1  Held time is charged exactly once, in whole nanoseconds, to the job and to its tenant, whose levels
      count it by their weights.
  A2  A job that begins to want a turn, or could not run until now, starts at no lower level than the lowest of its
      tenant's jobs that want and may run on its device, a tenant at no lower level than the lowest such tenant;
      when nobody does, at the level of those who did last. Time not used is not saved up, and nobody has to
      wait until a newcomer has had as much as it had. A job parked for others may come back a rotation lower.
  A3  A step time is measured only over a span in which the same jobs were running. It falls quickly and rises by
      steps: who runs while something else keeps the machine busy makes few, and is not taken for a longer job.
  A4  A job's wall time is the sum of its rows, exactly; what it waited for a turn is told apart by who had it. A
      waiting job that may not run for want of memory waits for memory, one that is to leave the device is as good as
      parked, and one whose limit lets it have no turn waits for nobody, up to the very moment when it does.
  A5  An account outlives the driver. What a job is known to have done without one, keep its turn or stay as it was,
      stands in that row. What nobody knows is a row of its own: also what a driver that was killed had not noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carpool.core.kernel.ids import SHARE_ONE, WEIGHT_ONE, Nanos, TenantId
from carpool.core.node.model import AWAY, WANTING, Account, Device, Job, JobState, Lane, Mark
from carpool.core.node.node import Node, begin_row, is_holding, row_at, spent_until
from carpool.core.node.turns import shares
from carpool.core.policies.view import JobView
from carpool.units import MS

_WAITS = AWAY | {JobState.WAITING}
UNNOTED_NS = 500 * MS  # so old may be the last note of an account when its driver is killed
STEPS_MEASURED_MIN = 3  # fewer steps since the mark say little about packing
STEPS_TO_RISE = 64  # after so many slower steps a job's step time is half way up to theirs


def charge_holders(node: Node, *, now: Nanos) -> None:
    """Bring the accounts of everybody who holds a turn up to now (A1)."""
    for device in node.devices.values():
        if device.has_shares:
            _end_limits(node, device, now=now)
        for lane in device.lanes.values():
            holder = node.jobs[lane.holder] if lane.holder is not None else None
            if holder is not None and holder.service.charged_ns < now:
                _charge(node, device, lane, holder, now=now)


def _charge(node: Node, device: Device, lane: Lane, holder: Job, *, now: Nanos) -> None:
    span = now - holder.service.charged_ns
    holder.service.charged_ns = now
    holder.service.served_ns += span
    holder.service.level += span * WEIGHT_ONE // holder.spec.weight_milli
    tenant = device.tenants[holder.spec.tenant]
    tenant.level += span * WEIGHT_ONE // tenant.weight_milli
    if device.has_shares:
        shares.charge(holder, span, now=now)
    holder_id = holder.id
    for job_id in lane.jobs:
        job = node.jobs[job_id]
        if job.wall.row == "turn":  # for him (A4)
            waits, waited_ns = job.service.waited_for_ns, now - job.wall.row_since_ns
            if waited_ns:
                waits[holder_id] = waits.get(holder_id, 0) + (span if span < waited_ns else waited_ns)


def _end_limits(node: Node, device: Device, *, now: Nanos) -> None:
    """Whose limit let it have a turn before now has waited for one since then (A4)."""
    for job in node.jobs_on(device):
        row, since = row_at(job, now)
        if row != job.wall.row:
            begin_row(job, row, since=since)


def sort_rows(node: Node, *, now: Nanos) -> None:
    """Bytes or shares changed hands: who waits for memory may wait for a turn now, or the other way round."""
    for job in node.jobs.values():
        if job.state in (JobState.WAITING, JobState.BLOCKED):
            node.set_row(job, now=now)


def rows_of(job: Job, *, now: Nanos) -> dict[str, Nanos]:
    """A job's wall time by row, with what its own input took as a row of its own."""
    rows = spent_until(job, now)
    for row, stalled in (
        ("run", job.service.stall_held_ns),
        ("idle", job.service.stall_ns - job.service.stall_held_ns),
    ):
        moved = max(0, min(stalled, rows.get(row, 0)))
        if moved:
            rows[row] -= moved
            rows["input"] = rows.get("input", 0) + moved
    return rows


def account_of(job: Job, *, now: Nanos) -> Account:
    row, since = row_at(job, now)
    return Account(
        arrived_ns=job.arrived_ns,
        at_ns=now,
        row=row,
        row_since_ns=since,
        spent_ns=spent_until(job, now),
        waited_for_ns=dict(job.service.waited_for_ns),
        served_ns=job.service.served_ns + (now - job.service.charged_ns if is_holding(job) else 0),
        steps=job.service.steps,
    )


def carry_on(account: Account, at_ns: Nanos) -> Account:
    """The account of a job that went on with what it did until then."""
    span = at_ns - account.at_ns
    if span <= 0 or account.row is None:
        return account
    spent = {**account.spent_ns, account.row: account.spent_ns.get(account.row, 0) + span}
    served_ns = account.served_ns + (span if account.row == "run" else 0)
    return replace(account, at_ns=at_ns, spent_ns=spent, served_ns=served_ns)


def restore(job: Job, account: Account, row: str | None, *, now: Nanos) -> None:
    """Go on with the account of a job that comes back (A5). `row` is what it is known to have done while there was no
    driver; None if nobody knows."""
    gap = now - account.at_ns
    if gap < 0 or account.arrived_ns > account.at_ns:
        return  # of another boot of the machine
    unknown = gap if row is None else 0 if row == account.row else min(gap, UNNOTED_NS)
    job.arrived_ns = account.arrived_ns
    job.wall.spent_ns, job.service.waited_for_ns = dict(account.spent_ns), dict(account.waited_for_ns)
    job.service.served_ns = account.served_ns + (gap - unknown if row == "run" else 0)
    for each, span in (("away", unknown), (row, gap - unknown)):
        if each is not None and span:
            job.wall.spent_ns[each] = job.wall.spent_ns.get(each, 0) + span


def begin_wanting(node: Node, job: Job, *, slack: int = 0) -> None:
    """Clamp a newcomer to the incumbents' level (A2); call before its state says that it wants a turn."""
    _lift(node, job, raise_floors(node, node.device_of(job)), slack)


def come_back(node: Node, job: Job) -> None:
    """A job that was parked for others wants turns all along: it keeps its level, as far as an orderly rotation
    of all jobs of the device can have left it behind (A2)."""
    device = node.device_of(job)
    begin_wanting(node, job, slack=len(device.promised) * device.quiet_ns)


def newcomer_level(node: Node, job: Job) -> int:
    """The level at which a queued job begins: that of its tenant's jobs where these have had the least."""
    devices = [device for device in node.devices.values() if job.spec.device in (None, device.id)]
    floors = [device.tenants[job.spec.tenant].jobs_floor for device in devices if job.spec.tenant in device.tenants]
    return min(floors, default=0)


def raise_floors(node: Node, device: Device) -> set[TenantId]:
    """Note the lowest levels at which jobs want turns; call before that set changes (A2). Returns whose they are."""
    lowest: dict[TenantId, int] = {}
    stuck: list[Job] = []
    for job in node.jobs_on(device):
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
    tenant = node.tenant_of(job)
    job.service.level = max(job.service.level, tenant.jobs_floor - slack)
    if tenant.id not in wanting:
        tenant.level = max(tenant.level, node.device_of(job).tenants_floor - slack)


def reset_marks(node: Node, device: Device) -> None:
    """The set of running jobs changed: measurements of step times begin anew (A3)."""
    holders = node.holders_on(device)
    for job in holders:
        mates = sorted(other.id for other in holders if other is not job) if len(holders) > 1 else ()
        job.service.mark = Mark(job.service.steps, job.service.served_ns, tuple(mates))


def note_steps(node: Node, job: Job, steps: int, *, now: Nanos) -> None:
    """Take in a job's step count; learns its step time, alone and beside one other job."""
    if steps <= job.service.steps:
        return
    job.service.steps = steps
    job.service.last_step_ns = now
    job.memory.denial = ""  # it went on
    mark = job.service.mark
    if mark is None or not is_holding(job):
        return
    done, spent = steps - mark.steps, job.service.served_ns - mark.served_ns
    if done <= 0 or spent <= 0:
        return
    sample = spent // done
    learn_step(node, job, sample, done)
    if done >= STEPS_MEASURED_MIN:
        if not mark.mates:
            job.service.solo_step_ns = sample
        elif len(mark.mates) == 1:
            job.service.packed_step_ns[mark.mates[0]] = sample
        job.service.mark = Mark(steps, job.service.served_ns, mark.mates)


def learn_step(node: Node, job: Job, sample: Nanos, steps: int = 1) -> None:
    """Take in so many steps that took `sample` each (A3)."""
    before = job.service.step_ns or sample
    rise = (sample - before) * steps // (steps + STEPS_TO_RISE)
    job.service.step_ns = (before + sample) // 2 if sample < before else before + rise
    node.step_ns_least = min(job.service.step_ns, node.step_ns_least or job.service.step_ns)


def remaining_ns(node: Node, job: Job, *, served_ns: Nanos) -> tuple[Nanos, bool]:
    """How much device time a job that has had so much still needs, and whether that is known rather than guessed.

    Declared steps × step time; else what the same program took last time; else as much as it has had. Declared but
    never measured steps are as short as the shortest here, unless a queue waits for room that measuring may free.
    """
    past, steps = job.history, job.spec.steps
    step_ns = past.step_ns if job.service.step_ns is None and past is not None else job.service.step_ns
    if steps is not None and step_ns is not None:
        return max(0, steps - job.service.steps) * step_ns, True
    if past is not None and served_ns < past.served_ns:
        return past.served_ns - served_ns, True
    if steps is not None and not node.queue:
        return max(served_ns, (steps - job.service.steps) * node.step_ns_least), False
    return served_ns, False


def view_of(node: Node, job: Job, *, now: Nanos, on: Device | None = None) -> JobView:
    """The job as a policy sees it; `on` its device, or one which a queued job might get."""
    return views_of(node, [job], now=now, on=on)[0]


def views_of(node: Node, jobs: Sequence[Job], *, now: Nanos, on: Device | None = None) -> list[JobView]:
    """All candidates of one decision."""
    views = []
    make = tuple.__new__  # the class's own constructor takes twice as long, and with names four times as long
    for job in jobs:
        spec, lease, served_ns = job.spec, job.lease, job.service.served_ns
        remaining, is_known = served_ns, False
        if spec.steps is not None or job.history is not None:
            remaining, is_known = remaining_ns(node, job, served_ns=served_ns)
        held_ns = waited_ns = 0
        if lease is not None:
            held_ns = now - lease.granted_ns
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
            job.service.level,
            node.tenant_level(job, on) if tenant is None else tenant.level,
            SHARE_ONE,
        )
        views.append(make(JobView, fields))
    return views
