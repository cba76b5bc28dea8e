"""Nodes come, go, are cordoned and drained; and nodes are expected on which jobs were found before they came.

Cordoned: nobody new comes to the node, or to one card of it. Drained: its jobs leave too, each at its next boundary.
Both are undone by uncordoning. A job that has left waits as any other, with its place in the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.effects import SuspendJob
from carpool.core.cluster.events import NodeAdded, NodeCordoned, NodeDrained, NodeRemoved, NodeUncordoned
from carpool.core.cluster.inventory import gone
from carpool.core.cluster.model import ClusterJob
from carpool.core.cluster.placement.requests import CardSpec, NodeSpec, Place, Placement, node_of
from carpool.core.kernel.ids import Nanos

# Each of the first five takes an event in and returns why it makes no sense; empty if it does.


def add(cluster: Cluster, event: NodeAdded) -> str:
    inventory, spec = cluster.inventory, event.node
    number = inventory.find_node(spec.name)
    if number is not None and number not in cluster.expected and inventory.has_node(number):
        return f"node {spec.name} is here already; if it changed, remove it first"
    if number is not None and number in cluster.expected:
        _refit(cluster, number, spec)
        cluster.expected.discard(number)
    else:
        number = _set(cluster, number, spec)
    if event.is_cordoned:
        inventory.close(number)
    cluster.too_wide.clear()
    cluster.unfit_shares()
    return ""


def remove(cluster: Cluster, event: NodeRemoved) -> str:
    number = _find(cluster, event.name)
    if number is None:
        return f"there is no node {event.name}"
    cluster.lose_node(number)
    cluster.inventory.set_node(number, gone(event.name))
    cluster.expected.discard(number)
    cluster.drains.pop(number, None)
    cluster.too_wide.clear()
    cluster.unfit_shares()
    return ""


def cordon(cluster: Cluster, event: NodeCordoned) -> str:
    number, card, fault = _target(cluster, event.name, event.card)
    if fault:
        return fault
    if _is_closed(cluster, number, card):
        return f"{_words(event.name, event.card)} is cordoned already"
    cluster.inventory.close(number, None if card is None else [card])
    return ""


def drain(cluster: Cluster, event: NodeDrained) -> str:
    number, card, fault = _target(cluster, event.name, event.card)
    if fault:
        return fault
    drains = cluster.drains.setdefault(number, {})
    if card in drains and drains[card] == event.by_ns:
        return f"{_words(event.name, event.card)} is drained already"
    cluster.inventory.close(number, None if card is None else [card])
    drains[card] = event.by_ns
    for job in cluster.leaving.on_node(number):  # they have until then, if that is earlier
        if _is_on(job, number, card) and event.by_ns is not None:
            cluster.leave_by(job, event.by_ns if job.leave_by_ns is None else min(event.by_ns, job.leave_by_ns))
    carry_out_drains(cluster)
    return ""


def uncordon(cluster: Cluster, event: NodeUncordoned) -> str:
    number, card, fault = _target(cluster, event.name, event.card)
    if fault:
        return fault
    is_any = any(cluster.inventory.is_closed(number, each) for each in range(_cards(cluster, number)))
    if not (_is_closed(cluster, number, card) or (card is None and is_any)):
        return f"{_words(event.name, event.card)} is not cordoned"
    cluster.inventory.open(number, None if card is None else [card])
    if card is None:
        cluster.drains.pop(number, None)
    else:
        drains = cluster.drains.get(number, {})
        drains.pop(card, None)
        if None in drains:  # of a drained node all cards but this one
            by_ns = drains.pop(None)
            drains |= {each: by_ns for each in range(_cards(cluster, number)) if each != card}
    for job in cluster.leaving.on_node(number):
        if job.leave_by_ns is None:  # others may be given its cards from now on, and wait for it
            _hurry(cluster, job)
    cluster.unfit_shares()
    return ""


def carry_out_drains(cluster: Cluster) -> None:
    """Send off everybody who is on what is drained."""
    for number, drains in cluster.drains.items():
        name = cluster.inventory.spec_of(number).name
        for card, by_ns in drains.items():
            what = _words(name, None if card is None else _id_of(cluster, number, card))
            for job in list(cluster.occupancy.on_node[number]):
                if _is_on(job, number, card):
                    cluster.occupancy.lift(job)
                    cluster.send_off(job, by=None, by_ns=by_ns, reason=f"{what} is drained")


def find_places(cluster: Cluster, places: Iterable[Place]) -> tuple[Placement, ...]:
    """The numbers of named places; nodes and cards that nobody knows yet are expected from now on."""
    found = []
    for place in places:
        number = _find(cluster, place.node)
        if number is None:
            number = _set(cluster, cluster.inventory.find_node(place.node), _cards_named(place.node, place.cards))
            cluster.inventory.close(number)
            cluster.expected.add(number)
        known = {card.id for card in cluster.inventory.spec_of(number).card_specs}
        if not known.issuperset(place.cards):
            _refit(cluster, number, cluster.inventory.spec_of(number), and_found=place.cards)
        ids = [card.id for card in cluster.inventory.spec_of(number).card_specs]
        found.append(Placement(node=number, cards=tuple(sorted(ids.index(card) for card in place.cards))))
    return tuple(found)


# --- nodes -------------------------------------------------------------------------------------------------------


def _set(cluster: Cluster, number: int | None, spec: NodeSpec) -> int:
    """A node that nobody is on, with its number from before if it had one."""
    cluster.inventory.set_node(number, spec)
    if number is not None:
        return number
    cluster.occupancy.add_node()
    return cluster.inventory.nodes - 1


def _refit(cluster: Cluster, number: int, spec: NodeSpec, *, and_found: tuple[str, ...] = ()) -> None:
    """The node is as `spec` says, with everybody on it where they were.

    Cards that somebody uses and that the node does not name are kept, but closed. With `and_found` the node is as it
    was, and somebody was found on such cards.
    """
    inventory, occupancy = cluster.inventory, cluster.occupancy
    ids = [card.id for card in inventory.spec_of(number).card_specs]
    closed = [name for card, name in enumerate(ids) if and_found and inventory.is_closed(number, card)]
    is_closed = bool(and_found) and (number in cluster.expected or 0 < len(ids) == len(closed))
    holders, leaving = list(occupancy.on_node[number]), cluster.leaving.on_node(number)
    full = _with_found(spec, [*_used_ids([*holders, *leaving], number, ids), *and_found])
    order = {card.id: card_number for card_number, card in enumerate(full.card_specs)}
    places = {job: _moved(job, number, [order.get(name, 0) for name in ids]) for job in (*holders, *leaving)}
    for job in holders:
        occupancy.lift(job)
    for job in leaving:
        cluster.leaving.remove(job)
    inventory.set_node(number, full)
    for job in holders:
        occupancy.hold(job, places[job])
    for job in leaving:
        occupancy.note_places(job, places[job])
        cluster.leaving.add(job)
    if is_closed:
        inventory.close(number)
    else:
        inventory.close(number, [*(order[name] for name in closed), *range(spec.cards, full.cards)])


def _used_ids(jobs: Iterable[ClusterJob], number: int, ids: list[str]) -> list[str]:
    return [ids[card] for job in jobs for place in job.places if place.node == number for card in place.cards]


def _with_found(spec: NodeSpec, found: Iterable[str]) -> NodeSpec:
    """The node with cards more that it does not name itself."""
    known = {card.id for card in spec.card_specs}
    unknown = [name for name in dict.fromkeys(found) if name not in known]
    each = (*spec.card_specs, *(CardSpec(id=name) for name in unknown))
    return replace(spec, cards=len(each), each=each) if unknown else spec


def _moved(job: ClusterJob, number: int, order: list[int]) -> tuple[Placement, ...]:
    """The places of a job when the cards of one node have got other numbers."""
    return tuple(
        replace(place, cards=tuple(sorted(order[card] for card in place.cards))) if place.node == number else place
        for place in job.places
    )


def _find(cluster: Cluster, name: str) -> int | None:
    number = cluster.inventory.find_node(name)
    if number is None or not (cluster.inventory.has_node(number) or number in cluster.expected):
        return None
    return number


def _target(cluster: Cluster, name: str, card: str | None) -> tuple[int, int | None, str]:
    """The numbers of a node and of one of its cards; or why there is none."""
    number = _find(cluster, name)
    if number is None or number in cluster.expected:
        return 0, None, f"there is no node {name}"
    if card is None:
        return number, None, ""
    ids = [each.id for each in cluster.inventory.spec_of(number).card_specs]
    if card not in ids:
        return 0, None, f"node {name} has no card {card}; it has {', '.join(ids)}"
    return number, ids.index(card), ""


def _cards(cluster: Cluster, number: int) -> int:
    return cluster.inventory.spec_of(number).cards


def _id_of(cluster: Cluster, number: int, card: int) -> str:
    return cluster.inventory.spec_of(number).card_specs[card].id


def _is_closed(cluster: Cluster, number: int, card: int | None) -> bool:
    """Whether the card, or every card of the node, is closed."""
    cards = range(_cards(cluster, number)) if card is None else [card]
    return all(cluster.inventory.is_closed(number, each) for each in cards)


def _is_on(job: ClusterJob, number: int, card: int | None) -> bool:
    return any(place.node == number and (card is None or card in place.cards) for place in job.places)


def _hurry(cluster: Cluster, job: ClusterJob) -> None:
    by_ns: Nanos = cluster.now + cluster.settings.deadline_ns
    reason = "its cards may be given to others again"
    cluster.effects.append(SuspendJob(job=job.id, wanted_by=None, by_ns=by_ns, reason=reason))
    cluster.leave_by(job, by_ns)


def _cards_named(name: str, ids: Iterable[str]) -> NodeSpec:
    return node_of(name, tuple(CardSpec(id=each) for each in ids))


def _words(name: str, card: str | None) -> str:
    return f"node {name}" if card is None else f"card {card} of node {name}"
