"""Merging: groups of a pool join each other where that frees the cards that one of its waiting jobs wants.

Without it a wide job waits for as long as there are enough smaller ones that go before it, although those could run
side by side at little loss: guests ride only where there are no cards, and get cards of their own as soon as some
are free. So for the first waiting job of every shape it is asked which groups would have to join others of their
shape for it to find room, and what they would lose by that. If they lose less than the job gains by running, they
join. Both are counted as in side_by_side.py: speed × cards, by what was measured; a mixture nobody has measured
does not count.

A job whose cards are wanted is parked as any other, and joins its new host at once or, if the driver takes its time,
by the rules of side_by_side.py once it has left its cards. Nobody's share is touched: all of this is inside one pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.model import ClusterJob, State
from carpool.core.cluster.placement.requests import WHOLE_MILLI, Request
from carpool.core.cluster.rates import Mixture, join, mixture_of
from carpool.core.cluster.side_by_side import GAIN_MILLI
from carpool.core.cluster.tenants import Pool


@dataclass(slots=True, kw_only=True)
class Merge:
    """One group would ride on another."""

    guest: ClusterJob
    host: ClusterJob
    lost: int  # speed × size of both


@dataclass(slots=True)
class Plan:
    """Merges so far, and the groups of the pool as they would be then."""

    groups: dict[ClusterJob, list[ClusterJob]]
    mixtures: dict[ClusterJob, Mixture]  # of the same groups
    merges: list[Merge] = field(default_factory=list)
    freed_milli: dict[int, int] = field(default_factory=dict)  # by node; below zero where the job would be

    @property
    def lost(self) -> int:
        return sum(merge.lost for merge in self.merges)

    def add(self, merge: Merge) -> None:
        guest, host = merge.guest, merge.host
        self.groups[host] += self.groups.pop(guest)
        self.mixtures[host] = join(self.mixtures[host], self.mixtures.pop(guest))
        self.merges.append(merge)
        for member, place in zip(guest.members, guest.places, strict=True):
            self.freed_milli[place.node] = self.freed_milli.get(place.node, 0) + member.total_milli


def merge_groups(cluster: Cluster) -> None:
    """Make room side by side for the first waiting job of every shape, in their order."""
    heads = [(row[0], pool) for pool in cluster.pools.values() for row in pool.waiting.rows.values()]
    for (_, _, job), pool in sorted(heads, key=lambda head: head[0][:2]):
        if not job.size_milli or (pool.tenant, job.shape) in cluster.merged_in_vain:
            continue
        plan = _find_merges(cluster, pool, job)
        if plan is None or not _carry_out(cluster, pool, job, plan):
            cluster.merged_in_vain.add((pool.tenant, job.shape))


def _carry_out(cluster: Cluster, pool: Pool, job: ClusterJob, plan: Plan) -> bool:
    owned_milli = pool.owned.size_milli - sum(each.guest.size_milli for each in plan.merges if each.guest.is_owned)
    is_owned = owned_milli + job.size_milli <= pool.share_milli
    if not is_owned and job.turn_ns > cluster.settings.deadline_ns:
        return False
    room = cluster.occupancy.find_without(job, [merge.guest for merge in plan.merges])
    if room is None:
        return False
    for merge in plan.merges:
        cluster.evict(merge.guest, by=job)
    cluster.run(job, room, is_owned=is_owned)
    for host, group in plan.groups.items():
        for guest in group[1:]:
            if guest.state is State.WAITING:
                cluster.join(guest, host)
    return True


def _find_merges(cluster: Cluster, pool: Pool, job: ClusterJob) -> Plan | None:
    """What must join what for the job to find room; None if that is not possible, or costs as much as it gives."""
    hosts = [host for hosts in cluster.hosts.values() for host in hosts if cluster.pool_of(host) is pool]
    groups = {host: [host, *host.guests] for host in hosts}
    plan = Plan(groups, {host: mixture_of(group) for host, group in groups.items()})
    gain = (WHOLE_MILLI - GAIN_MILLI) * job.size_milli
    for member in job.members:
        node = _clear_a_node(cluster, plan, member)
        if node is None or plan.lost > gain:
            return None
        plan.freed_milli[node] = plan.freed_milli.get(node, 0) - member.total_milli
    return plan


def _clear_a_node(cluster: Cluster, plan: Plan, member: Request) -> int | None:
    """Find the node that is cheapest to clear for the member, and plan the merges; None if there is none."""
    usable_milli = cluster.inventory.usable_milli
    best: tuple[int, int] | None = None
    cheapest: dict[tuple[int, Mixture], int | None] = {}  # what a group loses at least, whichever it joins
    for node, jobs in enumerate(cluster.occupancy.on_node):
        missing_milli = member.total_milli - usable_milli(member, node) - plan.freed_milli.get(node, 0)
        if missing_milli <= 0:
            return node
        costs = []
        for host in jobs:
            if host in plan.groups:
                mixture = (host.shape, plan.mixtures[host])
                if mixture not in cheapest:
                    merge = _best_merge(cluster, plan, host, node)
                    cheapest[mixture] = merge.lost if merge is not None else None
                lost = cheapest[mixture]
                if lost is not None:
                    costs.append((lost, jobs[host]))
        lost, missing_milli = _sum_up(costs, missing_milli)
        if missing_milli <= 0 and (best is None or lost < best[0]):
            best = (lost, node)
    return best[1] if best is not None and _clear(cluster, plan, member, best[1]) else None


def _sum_up(costs: list[tuple[int, int]], missing_milli: int) -> tuple[int, int]:
    """What the cheapest merges cost that free enough, and what is still missing after them."""
    total = 0
    for lost, milli in sorted(costs):
        if missing_milli > 0:
            total += lost
            missing_milli -= milli
    return total, missing_milli


def _clear(cluster: Cluster, plan: Plan, member: Request, node: int) -> bool:
    """Let groups of the node join others elsewhere, the cheapest first, until the member fits."""
    free_milli = cluster.inventory.usable_milli(member, node)
    while free_milli + plan.freed_milli.get(node, 0) < member.total_milli:
        hosts = [host for host in cluster.occupancy.on_node[node] if host in plan.groups]
        merges = [merge for host in hosts if (merge := _best_merge(cluster, plan, host, node)) is not None]
        if not merges:
            return False
        plan.add(min(merges, key=lambda merge: (merge.lost, merge.guest.number)))
    return True


def _best_merge(cluster: Cluster, plan: Plan, guest: ClusterJob, node: int) -> Merge | None:
    """The group elsewhere that a group loses least by joining; each of them must still add enough there."""
    total, party = cluster.rates.total_of, plan.mixtures[guest]
    alone, count = total(party), len(party[1])
    seen: set[Mixture] = set()
    best: Merge | None = None
    for host in cluster.hosts[guest.shape] if alone is not None else ():
        group = plan.mixtures.get(host)
        if group is None or group in seen or host is guest or len(group[1]) + count > cluster.order.seats:
            continue
        if any(place.node == node for place in host.places):
            continue
        seen.add(group)
        before, after = total(group), total(join(group, party))
        if alone is None or before is None or after is None or after - before < GAIN_MILLI * count:
            continue
        lost = (alone + before - after) * guest.size_milli
        if best is None or lost < best.lost:
            best = Merge(guest=guest, host=host, lost=lost)
    return best
