"""The one place that imports the code under test: a module that moves is edited here. Logs name types by class.

A log speaks of a scheduler as "node" or "cluster". What a scheduler is made of (a policy, settings, nodes) is said in
a session's first line, in words and numbers, and made again from them by `make`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_args
from zlib import crc32

import msgspec

from carpool.core.cluster import effects as cluster_effects
from carpool.core.cluster import events as cluster_events
from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Placement
from carpool.core.cluster.placement.rules import RULES, make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.node import effects as node_effects
from carpool.core.node import events as node_events
from carpool.core.node.scheduler import Scheduler as NodeScheduler
from carpool.core.node.settings import Settings as NodeSettings
from carpool.policies import POLICIES

Plain = Any  # what JSON holds
Scheduler = NodeScheduler | ClusterScheduler

NODE, CLUSTER = "node", "cluster"
RAISED = "raised"  # instead of effects: the scheduler raised an error

NAMES_IN_LOGS: dict[type, str] = {  # types that were renamed after the logs were recorded
    cluster_effects.SuspendJob: "ParkJob",
    cluster_events.JobSuspended: "JobParked",
}


def name_of(kind: type) -> str:
    """What the logs call a type."""
    return NAMES_IN_LOGS.get(kind, kind.__name__)


EVENTS: dict[str, dict[str, type]] = {
    NODE: {name_of(kind): kind for kind in get_args(node_events.Event)},
    CLUSTER: {name_of(kind): kind for kind in get_args(cluster_events.Event)},
}
EFFECTS: dict[str, dict[str, type]] = {
    NODE: {name_of(kind): kind for kind in get_args(node_effects.Effect)},
    CLUSTER: {name_of(kind): kind for kind in get_args(cluster_effects.Effect)},
}

_FIELDS: dict[object, tuple[str, ...]] = {}
__all__ = ["POLICIES", "ClusterScheduler", "NodeScheduler"]  # what others take from here of the code itself


# --- schedulers --------------------------------------------------------------------------------------------------


def describe_node(policy: Any, settings: NodeSettings | None) -> dict[str, Plain] | None:
    """The first line of a session with a node's scheduler; None if it cannot be said in words."""
    name: str = policy.name
    if POLICIES.get(name) is not policy:
        return None
    return {"scheduler": NODE, "policy": name, "settings": _unusual(settings or NodeSettings())}


def describe_cluster(inventory: Any, policy: Any, settings: ClusterSettings | None) -> dict[str, Plain] | None:
    name: str = policy.name
    if POLICIES.get(name) is not policy:
        return None
    said: dict[str, Plain] = {
        "scheduler": CLUSTER,
        "policy": name,
        "settings": _unusual(settings or ClusterSettings()),
    }
    if type(inventory) is CardInventory and inventory.free_milli == inventory.capacity_milli:
        return {**said, "nodes": [_unusual(node) for node in inventory._specs]}
    if type(inventory) is not PlacerInventory or inventory.free_milli != inventory.capacity_milli:
        return None
    fleet, rule = inventory._fleet, inventory._placer.rule
    if rule.name not in RULES or rule.lots is not None or getattr(rule, "demand", None):
        return None
    nodes = [_unusual(node) for node in fleet.nodes]
    return {**said, "rule": rule.name, "overcommit_percent": fleet.overcommit_percent, "nodes": nodes}


def make(said: dict[str, Plain]) -> Scheduler:
    """A new scheduler as a session's first line describes it."""
    if said["scheduler"] == NODE:
        settings = msgspec.convert(said["settings"], NodeSettings)
        return NodeScheduler(POLICIES[said["policy"]], settings)
    nodes = [msgspec.convert(node, NodeSpec) for node in said["nodes"]]
    if "rule" in said:
        fleet = Fleet(nodes, overcommit_percent=said["overcommit_percent"])
        inventory: CardInventory | PlacerInventory = PlacerInventory(Placer(fleet, make_rule(said["rule"])))
    else:
        inventory = CardInventory(nodes)
    return ClusterScheduler(inventory, POLICIES[said["policy"]], msgspec.convert(said["settings"], ClusterSettings))


def _unusual(record: Any) -> dict[str, Plain]:
    """The fields that differ from their defaults, and those that have none."""
    found = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if value != default:
            found[field.name] = plain(value)
    return found


# --- events and effects ------------------------------------------------------------------------------------------


def plain(value: object) -> Plain:
    """As JSON holds it; sets in order."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in fields_of(type(value))}
    return msgspec.to_builtins(value)


def fields_of(kind: Any) -> tuple[str, ...]:
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return _FIELDS[kind]


def fact_as_plain(fact: Any, fields: tuple[str, ...] | None = None) -> list[Plain]:
    """An event or effect: its name, then its fields; those of the log where one is given."""
    kind = type(fact)
    values = [plain(getattr(fact, name)) for name in fields or fields_of(kind)]
    if kind is cluster_effects.RejectEvent:  # one of its fields names a type
        values = [next((old for new, old in NAMES_IN_LOGS.items() if new.__name__ == each), each) for each in values]
    return [name_of(kind), *values]


def with_names(scheduler: Scheduler, effects: list[list[Plain]]) -> list[list[Plain]]:
    """Effects of a log from when nodes and cards were numbers: places by the names they have."""
    if isinstance(scheduler, NodeScheduler):
        return effects
    inventory = scheduler._cluster.inventory
    for effect in effects:
        if effect[0] == "PlaceJob":
            for number, place in enumerate(effect[2]):
                if isinstance(place["node"], int):
                    cards = tuple(place["cards"])
                    effect[2][number] = plain(inventory.named(Placement(node=place["node"], cards=cards)))
    return effects


def make_event(scheduler: str, name: str, values: dict[str, Plain]) -> Any:
    if values.pop("is_suspended", False):  # of JobAdopted, when a job could be held for one reason only
        values["held_for"] = ["suspended"]
    return msgspec.convert(values, EVENTS[scheduler][name])


def tell(scheduler: Scheduler, kind: str, name: str, values: dict[str, Plain], now: int) -> list[Any]:
    return list(scheduler.handle(make_event(kind, name, values), now=now))


# --- what is to be seen ------------------------------------------------------------------------------------------


def look(scheduler: Scheduler, now: int) -> tuple[int, dict[str, str]]:
    """A checksum of what each job had, and the sentence that explains each one."""
    if not isinstance(scheduler, NodeScheduler):
        return _look_at_cluster(scheduler, now)
    picture = scheduler.picture(now=now)
    rows: list[tuple[object, ...]] = []
    for job in picture.jobs:
        next_turn = scheduler.successor(job.id)
        turn = (next_turn.job, next_turn.lane, next_turn.lane_bytes) if next_turn is not None else None
        spent, waited = sorted(job.spent_ns.items()), sorted(job.waited_for_ns.items())
        had = (str(job.state), job.device, job.lane, job.steps, job.served_ns, job.waited_ns, job.promised_bytes)
        rows.append((str(job.id), *had, spent, waited, turn))
    for device in picture.devices:
        rows.append((str(device.id), device.promised_bytes, device.lanes_bytes, device.free_bytes, device.claimant))
    return crc32(repr(rows).encode()), {str(job.id): job.reason for job in picture.jobs if job.reason}


def _look_at_cluster(scheduler: ClusterScheduler, now: int) -> tuple[int, dict[str, str]]:
    picture = scheduler.picture(now=now)
    rows: list[tuple[object, ...]] = []
    for job in picture.jobs:
        places = [(place.node, place.cards) for place in job.places]
        rows.append((str(job.id), str(job.state), places, job.is_loan, job.host, job.attained_ns, job.arrived_ns))
    for tenant in picture.tenants:
        rows.append((tenant.tenant, tenant.share_milli, tenant.owned_milli, tenant.loans_milli, tenant.waiting))
    return crc32(repr(rows).encode()), {str(job.id): job.reason for job in picture.jobs if job.reason}


def state_before(scheduler: Scheduler, event: Any) -> str:
    """The state of the job an event speaks of; empty if it speaks of none, or of one that is not there."""
    job = getattr(event, "job", None)
    return str(scheduler.state_of(job) or "none") if job is not None else ""
