"""Parts by weight: where a policy puts tenants first, those that have jobs own the cluster by their weights."""

from __future__ import annotations

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.events import WeightGiven
from carpool.core.cluster.tenants import Pool
from carpool.core.kernel.ids import WEIGHT_ONE


def give_weight(cluster: Cluster, event: WeightGiven) -> str:
    """A tenant counts for so much from now on, under fair; returns why not, empty if it does."""
    if not cluster.order.splits_by_weight:
        return f"the order {cluster.order.name} knows no weights of tenants; fair does"
    if event.weight_milli <= 0:
        return f"tenant {event.tenant}: a weight of {event.weight_milli / 1000:g} is not above 0"
    cluster.weights[event.tenant] = event.weight_milli
    split_by_weight(cluster)
    return ""


def split_by_weight(cluster: Cluster) -> None:
    """Give every tenant that has jobs its part of all cards, in whole cards.

    What is left over goes, a card each, to those whose parts were cut most, and of equals to the first by name.
    """
    weights = {tenant: cluster.weights.get(tenant, WEIGHT_ONE) for tenant in sorted(cluster.pools)}
    total, cards = sum(weights.values()), cluster.inventory.capacity_milli // 1000
    parts = {tenant: divmod(cards * weight, total) for tenant, weight in weights.items()}
    left = cards - sum(whole for whole, _ in parts.values())
    for number, tenant in enumerate(sorted(parts, key=lambda each: -parts[each][1])):
        pool = cluster.pools[tenant]
        pool.share_milli = 1000 * (parts[tenant][0] + (number < left))
        while pool.owned.size_milli > pool.share_milli:
            cluster.disown_last(pool)
        cluster.touch(pool)


def least_level(cluster: Cluster, pool: Pool) -> int:
    """The level of the pool's job that was served least; 0 if it has none. The first of each row is enough to ask."""
    firsts = [row[0][2] for row in pool.waiting.rows.values()]
    for running in (pool.owned, pool.loans):
        firsts += [job for _, job in running.firsts(cluster.now)]
    return min((job.level for job in firsts), default=0)
