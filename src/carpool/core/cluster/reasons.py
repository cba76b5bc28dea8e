"""Why a job waits, in one true sentence with numbers; and what it does while it does not.

A sentence says what the job wants, how many nodes lack what, and what its tenant's share has to do with it. The same
reason with other numbers is the same reason: `Wait.kind` has no numbers, and ExplainWait is told when it changes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.effects import ExplainWait
from carpool.core.cluster.model import ClusterJob, State
from carpool.core.cluster.placement.requests import Request
from carpool.core.cluster.tenants import Pool
from carpool.units import format_bytes, format_ns

LACKS = {  # what a node lacks for a member, in words; in the order in which it is asked
    "avoided": "refused it",
    "cordoned": "{are} cordoned",
    "model": "{have} no card of an allowed model",
    "cards": "{have} too few free cards",
    "bytes": "{have} too little memory left on {their} cards",
    "cpu": "{have} too little CPU left",
    "memory": "{have} too little host memory left",
    "labels": "{have} company that its labels forbid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    kind: str  # equal for equal reasons, whatever the numbers
    sentence: str


def explain(cluster: Cluster, job: ClusterJob) -> str:
    """One sentence: what the job does or waits for."""
    match job.state:
        case State.WAITING:
            return wait_of(cluster, job).sentence
        case State.RIDING:
            return f"it runs beside job {job.host.id if job.host else ''}, on the same cards"
        case State.COMING:
            others = ", ".join(other.id for other in cluster.leaving.before(job))
            return f"it gets {_where(cluster, job)} as soon as {others} has left"
        case State.LEAVING:
            by = "" if job.leave_by_ns is None else f", in {format_ns(max(0, job.leave_by_ns - cluster.now))} at most"
            return f"it leaves {_where(cluster, job)} at its next boundary{by}"
        case _ if job.queued_why:
            return f"it is placed on {_where(cluster, job)}, and waits in the queue of its node: {job.queued_why}"
        case _:
            loan = "" if job.is_owned else ", as a loan: who owns the cards may want them back"
            return f"it runs on {_where(cluster, job)}{loan}"


def tell_waits(cluster: Cluster) -> None:
    """Say of every waiting job why it waits, if that is not what was said last."""
    for pool in cluster.pools.values():
        for row in pool.waiting.rows.values():
            first: Wait | None = None
            for number, (_, _, job) in enumerate(row):
                first = first or wait_of(cluster, job)
                wait = _behind(first, row[0][2], number) if number else first
                if cluster.note_wait(job, wait.kind):
                    cluster.effects.append(ExplainWait(job=job.id, reason=wait.sentence))


def wait_of(cluster: Cluster, job: ClusterJob) -> Wait:
    """Why a waiting job has no cards."""
    if cluster.is_syncing:
        return Wait(kind="sync", sentence="nothing is decided until all that runs has been told")
    pool = cluster.pool_of(job)
    share = _share_words(cluster, pool, job)
    if job.size_milli <= cluster.inventory.free_milli and cluster.occupancy.would_fit(job):
        turn, deadline = format_ns(job.turn_ns), format_ns(cluster.settings.deadline_ns)
        loan = f"it gets no loan: it may go {turn} without a boundary, and {deadline} is the most"
        sentence = "; ".join(part for part in ("there is room", share, loan) if part)
        return Wait(kind="no loan", sentence=sentence)
    number, member = _first_too_large(cluster, job)
    lacks = _lacks(cluster, member)
    kinds = [*lacks, *(["share"] if share else []), *(["room"] if cluster.leaving else [])]
    gang = f"its {len(job.members)} members start together; member {number + 1} " if len(job.members) > 1 else "it "
    parts = [f"{gang}wants {_wants(member)}", _lack_words(cluster, member, lacks)]
    parts += [part for part in (share, _room_words(cluster)) if part]
    return Wait(kind="+".join(kinds) or "gang", sentence="; ".join(parts))


def _behind(first: Wait, ahead: ClusterJob, count: int) -> Wait:
    who = f"job {ahead.id} goes" if count == 1 else f"{count} jobs go"
    sentence = f"{who} before it and want{'s' if count == 1 else ''} the same; of the first: {first.sentence}"
    return Wait(kind=f"behind:{first.kind}", sentence=sentence)


def _first_too_large(cluster: Cluster, job: ClusterJob) -> tuple[int, Request]:
    """The first member for which no node has room; of a gang whose members fit one by one, the largest."""
    for number, member in enumerate(job.members):
        if not any(cluster.inventory.fits_on(member, node) for node in range(cluster.inventory.nodes)):
            return number, member
    return max(enumerate(job.members), key=lambda each: each[1].total_milli)


def _lacks(cluster: Cluster, member: Request) -> Counter[str]:
    """How many nodes lack what; each node counts once. Nodes that have room are not counted."""
    inventory, found = cluster.inventory, Counter[str]()
    for node in range(inventory.nodes):
        if inventory.has_node(node):
            lack = inventory.lack_of(member, node)
            if lack:
                found[lack] += 1
    return Counter({lack: found[lack] for lack in LACKS if found[lack]})


def _lack_words(cluster: Cluster, member: Request, lacks: Counter[str]) -> str:
    inventory = cluster.inventory
    total = sum(inventory.has_node(node) for node in range(inventory.nodes))
    if not total:
        return "there is no node"
    if not lacks:
        return f"one of {total} nodes has room for one member, but not for all"
    said = []
    for lack, count in lacks.items():
        words = (
            LACKS[lack].format(are="is", have="has", their="its")
            if count == 1
            else LACKS[lack].format(are="are", have="have", their="their")
        )
        most = _most_free(cluster, member) if lack == "cards" else ""
        said.append(f"{count} {words}{most}")
    return f"of {total} node{'s' if total > 1 else ''} {', '.join(said)}"


def _most_free(cluster: Cluster, member: Request) -> str:
    inventory = cluster.inventory
    nodes = [node for node in range(inventory.nodes) if inventory.has_node(node)]
    best = max(nodes, key=lambda node: (inventory.usable_milli(member, node), -node))
    most = max(0, inventory.usable_milli(member, best)) / 1000
    return f" (at most {most:g}, on {inventory.spec_of(best).name})"


def _share_words(cluster: Cluster, pool: Pool, job: ClusterJob) -> str:
    """What the share has to do with it; empty if the job fits into it."""
    used, share, size = pool.owned.size_milli / 1000, pool.share_milli / 1000, job.size_milli / 1000
    if pool.owned.size_milli + job.size_milli <= pool.share_milli:
        return ""
    if not cluster.has_shares:
        return f"{used:g} of {share:g} cards are in use"
    if job.size_milli > pool.share_milli:
        return f"its {size:g} cards are more than the {share:g} that tenant {pool.tenant} owns"
    return f"tenant {pool.tenant} has {used:g} of its {share:g} cards in use"


def _room_words(cluster: Cluster) -> str:
    """For whom room is being made."""
    coming = [job for jobs in cluster.occupancy.on_node for job in jobs if job.state is State.COMING]
    if not coming:
        return ""
    first = min(coming, key=lambda job: job.number)
    return f"room is being made for job {first.id} on {_where(cluster, first)}"


def _wants(member: Request) -> str:
    if not member.cards:
        return f"{member.cpu_milli / 1000:g} CPUs of one node"
    whole = "whole card" if member.is_whole else f"card (each {member.card_milli / 10:g} %)"
    said = f"{member.cards} {whole.replace('card', 'cards', 1) if member.cards > 1 else whole} of one node"
    if member.models:
        said += f", of model {' or '.join(sorted(member.models))}"
    if member.card_bytes:
        said += f", with {format_bytes(member.card_bytes)} on each"
    return said


def _where(cluster: Cluster, job: ClusterJob) -> str:
    places = [cluster.inventory.named(place) for place in job.places]
    return " and ".join(f"{', '.join(place.cards) or 'no card'} of {place.node}" for place in places)
