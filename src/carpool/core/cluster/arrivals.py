"""How jobs get here: they come and wait, or they are found where they run already. And why one never can run.

Found jobs are facts. They are counted at their places whether or not they fit there (F9 of placement/fleet.py), and
as loans until their pool is served, which makes as many of them owned as the share holds. So a restarted scheduler
begins with what is, moves nobody for it, and gets below every limit again as jobs end.
"""

from __future__ import annotations

from dataclasses import replace

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.effects import RefuseJob
from carpool.core.cluster.events import (
    JobArrived,
    JobDescribed,
    JobFound,
    JobLeft,
    JobQueued,
    JobRefused,
    JobStarted,
)
from carpool.core.cluster.model import ClusterJob, State
from carpool.core.cluster.nodes import find_places
from carpool.core.cluster.weights import least_level, split_by_weight


def arrive(cluster: Cluster, event: JobArrived) -> str:
    """A job comes and waits, or is refused; returns why the event makes no sense, empty if it does."""
    if event.job in cluster.jobs:
        return "a job with this id is here already"
    job = _make_job(cluster, event)
    reason = fault_of(job) or (None if cluster.is_syncing else refusal_of(cluster, job))
    if reason:
        cluster.effects.append(RefuseJob(job=job.id, reason=reason))
        return ""
    _enter(cluster, job)
    cluster.begin_waiting(job)
    if cluster.pool_of(job).waiting.is_first(job):
        cluster.touch(cluster.pool_of(job))
    return ""


def find(cluster: Cluster, event: JobFound) -> str:
    """A job runs somewhere already; returns why that cannot be, empty if it can."""
    job = cluster.jobs.get(event.job)
    fault = _fault_of_found(event) or _fault_of_known(event, job)
    if fault:
        return fault
    if job is None:
        job = _make_job(cluster, event)
        _enter(cluster, job)
    else:
        cluster.pool_of(job).waiting.remove(job)
    places = find_places(cluster, event.places)
    host = cluster.jobs.get(event.host) if event.host is not None else None
    if host is not None and host.state is State.RUNNING and host.shape == job.shape and host.places == places:
        cluster.ride(job, host)
    else:
        cluster.adopt(job, places, attained_ns=event.attained_ns, is_leaving=event.is_leaving)
    return ""


# --- what its node says of a placed job ---------------------------------------------------------------------------


def queue(cluster: Cluster, event: JobQueued | JobStarted) -> str:
    """The node keeps the job in its queue, or lets it run."""
    job = cluster.jobs.get(event.job)
    if job is None or job.state is not State.RUNNING:
        return "no such job" if job is None else f"the job is {job.state}"
    why = (event.reason or "its node said no reason") if isinstance(event, JobQueued) else ""
    if bool(why) == bool(job.queued_why):
        return "its node has it in its queue already" if why else "its node did not have it in its queue"
    cluster.queue_there(job, why)
    return ""


def leave(cluster: Cluster, event: JobLeft | JobRefused) -> str:
    """The job is off its cards by its node's doing; one that was refused keeps off that node from now on."""
    job = cluster.jobs.get(event.job)
    if job is None or job.state not in (State.RUNNING, State.RIDING, State.LEAVING):
        return "no such job" if job is None else f"the job is {job.state}"
    on = job.host or job
    names = {cluster.inventory.spec_of(place.node).name for place in on.places}
    if isinstance(event, JobRefused) and event.node not in names:
        return f"the job is not on node {event.node} but on {', '.join(sorted(names))}"
    cluster.take_off(job, event.reason)
    if isinstance(event, JobRefused):
        avoids = frozenset({event.node})
        cluster.want_other(job, tuple(replace(each, avoids=each.avoids | avoids) for each in job.members))
        reason = refusal_of(cluster, job)
        if reason:
            cluster.remove(job)
            cluster.effects.append(RefuseJob(job=job.id, reason=f"{reason}; node {event.node} said: {event.reason}"))
    return ""


def fault_of(job: ClusterJob) -> str | None:
    """What is wrong with the job itself, or None."""
    if not job.members:
        return f"job {job.id} can never run: it has no members; name what it wants of each node"
    if job.weight_milli <= 0 or job.turn_ns < 0 or (job.service_ns or 0) < 0:
        return f"job {job.id} can never run: its weight is above 0, its times are not below 0; correct them"
    return None


def refusal_of(cluster: Cluster, job: ClusterJob) -> str | None:
    """Why the job can never run here, or None.

    Not asked of jobs that are told in a sync: they were here before, and nodes or shares may come back.
    """
    total_milli = cluster.inventory.total_milli
    if job.size_milli > total_milli:
        return (
            f"job {job.id} can never run: it wants {job.size_milli / 1000:g} cards, the cluster has "
            f"{total_milli / 1000:g}; ask for fewer"
        )
    if job.shape not in cluster.too_wide:
        wide = (member for member in dict.fromkeys(job.members) if not cluster.inventory.could_ever_fit(member))
        cluster.too_wide[job.shape] = next((member.cards for member in wide), None)
    cards = cluster.too_wide[job.shape]
    if cards is not None:
        return f"job {job.id} can never run: no node holds {cards} cards as it wants them; ask for fewer"
    if cluster.shares_milli and job.tenant not in cluster.shares_milli:
        return f"job {job.id} can never run: tenant {job.tenant} has no share of this cluster; give it one"
    return None


def _make_job(cluster: Cluster, event: JobDescribed) -> ClusterJob:
    is_lendable = event.turn_ns <= cluster.settings.deadline_ns
    return ClusterJob(
        id=event.job,
        number=cluster.next_number(),
        members=event.members,
        size_milli=sum(member.total_milli for member in event.members),
        tenant=event.tenant,
        priority=event.priority,
        service_ns=event.service_ns,
        program=event.program,
        turn_ns=event.turn_ns,
        arrived_ns=cluster.now,
        weight_milli=event.weight_milli,
        shape=cluster.shapes.setdefault((event.members, is_lendable), len(cluster.shapes)),
        facts=(event.job, event.job, event.tenant, event.priority, cluster.now, False, 0, 0),
    )


def _enter(cluster: Cluster, job: ClusterJob) -> None:
    if cluster.order.splits_by_weight:
        if job.tenant not in cluster.pools:
            cluster.need_pool(job.tenant)
            split_by_weight(cluster)
        cluster.begin_at_level(job, least_level(cluster, cluster.pool_of(job)))
    cluster.enter(job)


def _fault_of_found(event: JobFound) -> str:
    if not event.members or len(event.members) != len(event.places):
        return f"it has {len(event.members)} members at {len(event.places)} places: one place for each"
    for member, place in zip(event.members, event.places, strict=True):
        if len(set(place.cards)) != member.cards or len(place.cards) != member.cards:
            return f"{len(place.cards)} cards of {place.node} for a member that has {member.cards} different ones"
    if event.weight_milli <= 0 or min(event.turn_ns, event.attained_ns, event.service_ns or 0) < 0:
        return "its weight is above 0, its times are not below 0"
    return ""


def _fault_of_known(event: JobFound, job: ClusterJob | None) -> str:
    if job is None:
        return ""
    if job.state is not State.WAITING:
        return f"the job is {job.state} already"
    return "" if job.members == event.members else "the job came with other members"
