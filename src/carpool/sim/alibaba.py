"""Alibaba's 2023 GPU-sharing cluster as a placement problem: its nodes, its pods, and the published way to load it.

The published way (Weng et al., USENIX ATC 2023): the list of pods is shuffled by the seed; if it asks for more than
so many percent of all cards, pods drawn at random are removed; then copies of pods drawn at random are appended until
the next one would exceed the percentage. The order of the nodes, which breaks ties, is shuffled by the seed too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.sim.traces import Row, data_file, read_table
from carpool.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Nodes, and the requests that arrive one after the other and never leave."""

    nodes: tuple[NodeSpec, ...]
    requests: tuple[Request, ...]
    demand: Counter[Request]  # of the list that the requests were drawn from


def read_nodes() -> list[NodeSpec]:
    """The 1,213 nodes with cards."""
    _, rows = read_table(data_file("alibaba2023/nodes_gpu.csv.gz"))
    return [_node(row) for _, row in rows]


def read_pods(workload: str) -> list[Request]:
    """The pods of one of the 17 published lists, like default or gpushare100."""
    _, rows = read_table(data_file(f"alibaba2023/pods_{workload}.csv.gz"))
    return [_pod(row) for _, row in rows]


def make_problem(nodes: Sequence[NodeSpec], pods: Sequence[Request], *, seed: int, percent: int) -> Problem:
    """Load the cluster the published way, up to so many percent of its cards."""
    random = Random(seed)
    most_milli = sum(node.cards for node in nodes) * 10 * percent
    requests = list(pods)
    random.shuffle(requests)
    asked_milli = sum(pod.total_milli for pod in requests)
    while asked_milli > most_milli:
        asked_milli -= requests.pop(random.randrange(len(requests))).total_milli
    while True:
        copy = random.choice(pods)
        asked_milli += copy.total_milli
        if asked_milli > most_milli:
            break
        requests.append(copy)
    ordered = list(nodes)
    random.shuffle(ordered)
    return Problem(nodes=tuple(ordered), requests=tuple(requests), demand=Counter(pods))


def _node(row: Row) -> NodeSpec:
    return NodeSpec(
        name=row["sn"],
        cards=int(row["gpu"]),
        model=row["model"],
        cpu_milli=int(row["cpu_milli"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
    )


def _pod(row: Row) -> Request:
    cards = int(row["num_gpu"])
    return Request(
        cards=cards,
        card_milli=int(row["gpu_milli"]) if cards else 0,
        cpu_milli=int(row["cpu_milli"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
        models=frozenset(model for model in row.get("gpu_spec", "").split("|") if model),
    )
