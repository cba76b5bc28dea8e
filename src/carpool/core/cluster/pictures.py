"""The frozen pictures people see of a cluster: nodes with cards, tenants with shares, jobs with reasons."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.model import ClusterJob, State
from carpool.core.cluster.placement.requests import Place
from carpool.core.cluster.reasons import explain
from carpool.core.kernel.ids import JobId, Nanos, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPicture:
    id: str
    model: str
    is_cordoned: bool
    is_drained: bool
    jobs: tuple[JobId, ...]  # on it, with those that have yet to leave it


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePicture:
    """One node of the cluster."""

    name: str
    is_expected: bool  # jobs were found there, and it has not come yet
    cards: tuple[CardPicture, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPicture:
    tenant: TenantId  # empty: everybody, where nobody has a share
    given_milli: int | None  # None: it was given none
    share_milli: int  # what counts now
    owned_milli: int  # in use of that
    loans_milli: int
    waiting: int  # jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJobPicture:
    id: JobId
    tenant: TenantId
    state: State
    places: tuple[Place, ...]
    is_loan: bool
    host: JobId | None
    attained_ns: Nanos
    arrived_ns: Nanos
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPicture:
    policy: str
    is_syncing: bool
    nodes: tuple[MachinePicture, ...]
    tenants: tuple[TenantPicture, ...]
    jobs: tuple[ClusterJobPicture, ...]


def picture_cluster(cluster: Cluster, *, now: Nanos) -> ClusterPicture:
    inventory = cluster.inventory
    there = (node for node in range(inventory.nodes) if inventory.has_node(node) or node in cluster.expected)
    return ClusterPicture(
        policy=cluster.order.name,
        is_syncing=cluster.is_syncing,
        nodes=tuple(_picture_node(cluster, node) for node in there),
        tenants=tuple(_picture_tenant(cluster, tenant) for tenant in cluster.pools),
        jobs=tuple(picture_job(cluster, job, now=now) for job in cluster.jobs.values()),
    )


def picture_job(cluster: Cluster, job: ClusterJob, *, now: Nanos) -> ClusterJobPicture:
    on = job.host or job
    since_ns = (now - job.settled_ns) * job.rate_milli // 1000 if job.is_running and not job.queued_why else 0
    return ClusterJobPicture(
        id=job.id,
        tenant=job.tenant,
        state=job.state,
        places=tuple(cluster.inventory.named(place) for place in on.places),
        is_loan=job.state is State.RUNNING and not job.is_owned,
        host=job.host.id if job.host is not None else None,
        attained_ns=job.attained_ns + since_ns,
        arrived_ns=job.arrived_ns,
        reason=explain(cluster, job),
    )


def _picture_node(cluster: Cluster, node: int) -> MachinePicture:
    spec, drains = cluster.inventory.spec_of(node), cluster.drains.get(node, {})
    on_card: dict[int, list[JobId]] = {}
    for job in (*cluster.occupancy.on_node[node], *cluster.leaving.on_node(node)):
        for place in job.places:
            for card in place.cards if place.node == node else ():
                on_card.setdefault(card, []).extend(each.id for each in (job, *job.guests))
    return MachinePicture(
        name=spec.name,
        is_expected=node in cluster.expected,
        cards=tuple(
            CardPicture(
                id=card.id,
                model=card.model,
                is_cordoned=cluster.inventory.is_closed(node, number),
                is_drained=None in drains or number in drains,
                jobs=tuple(on_card.get(number, ())),
            )
            for number, card in enumerate(spec.card_specs)
        ),
    )


def _picture_tenant(cluster: Cluster, tenant: TenantId) -> TenantPicture:
    pool = cluster.pools[tenant]
    return TenantPicture(
        tenant=tenant,
        given_milli=cluster.shares_milli.get(tenant),
        share_milli=pool.share_milli,
        owned_milli=pool.owned.size_milli,
        loans_milli=pool.loans.size_milli,
        waiting=len(pool.waiting),
    )
