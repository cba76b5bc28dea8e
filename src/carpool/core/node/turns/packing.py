"""Packing is a trial: jobs side by side stay so only while they are faster together than in turns.

While two jobs hold lanes of one device at the same time, each one's step time beside the other is compared with
its step time alone. The speed-up of the pair is solo_a / packed_a + solo_b / packed_b: 2 when they do not disturb
each other, 1 when they are exactly as fast as in turns. At or below the bound the pair is set apart: the lanes
are merged at the next boundary and the two are never packed again.
"""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node import accounts
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import Device, Job, JobState
from carpool.core.node.node import Node, is_asked_away

SPEEDUP_MIN_PERCENT = 102  # below this the pair gains nothing worth the longer steps


def speedup_percent(first: Job, second: Job) -> int | None:
    """The pair's measured speed-up over taking turns, or None while it is not measured."""
    total = 0
    for job, mate in ((first, second), (second, first)):
        packed = job.service.packed_step_ns.get(mate.id)
        if job.service.solo_step_ns is None or not packed:
            return None
        total += 100 * job.service.solo_step_ns // packed
    return total


def judge(node: Node, device: Device) -> Job | None:
    """Set apart pairs that are slower together; returns a holder to recall so that its lane can be merged."""
    holders = sorted(node.holders_on(device), key=lambda job: (job.arrived_ns, job.id))
    for index, younger in enumerate(holders):
        for older in holders[:index]:
            pair = frozenset({older.id, younger.id})
            speedup = speedup_percent(older, younger)
            if speedup is not None and speedup < SPEEDUP_MIN_PERCENT:
                node.apart.add(pair)
            if pair in node.apart:
                return younger
    return None


def arrange(node: Node, device: Device) -> None:
    """Merge free lanes of jobs set apart; spread waiting jobs over new lanes."""
    while _merge_apart(node, device) or _spread(node, device):
        accounts.reset_marks(node, device)


def forget(node: Node, job: JobId) -> None:
    """A job that is over is in no pair."""
    for pair in [pair for pair in node.apart if job in pair]:
        node.apart.discard(pair)


def _merge_apart(node: Node, device: Device) -> bool:
    for lane in list(device.lanes.values()):
        if lane.holder is not None:
            continue
        for other in device.lanes.values():
            pairs = (frozenset({a, b}) for a in lane.jobs for b in other.jobs)
            if other.id != lane.id and any(pair in node.apart for pair in pairs):
                ledger.merge(device, node.jobs, keep=other.id, close=lane.id)
                return True
    return False


def _spread(node: Node, device: Device) -> bool:
    if len(device.lanes) >= node.policy.lanes_max or _is_merging(node, device):
        return False
    for lane in list(device.lanes.values()):
        if len(lane.jobs) < 2:
            continue
        for job_id in lane.jobs:
            job = node.jobs[job_id]
            if job.state is not JobState.WAITING or job.memory.needs is None:
                continue
            mates = [other for other in node.jobs_on(device) if other.id != job_id and other.lane is not None]
            if any(frozenset({job_id, mate.id}) in node.apart for mate in mates):
                continue
            if job.memory.needs.ephemeral_bytes <= ledger.free_bytes(device):
                ledger.remove(device, job)
                ledger.place(device, job, ledger.Fit(lane=None, lane_bytes=job.memory.needs.ephemeral_bytes))
                return True
    return False


def _is_merging(node: Node, device: Device) -> bool:
    """Whether lanes are being merged, one boundary after the other, to let in a queued or an outgrown job."""
    may_come = [job for job in node.queued_for(device) if not is_asked_away(job)]
    return any(admission.merging_lets_in(node, job, device) for job in may_come + node.outgrown_on(device))
