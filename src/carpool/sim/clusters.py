"""Which cluster is simulated: what people write after `--cluster`, as nodes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from carpool.core.cluster.placement.requests import NodeSpec
from carpool.errors import UsageError
from carpool.sim.traces import data_file, read_table
from carpool.units import MIB, parse_bytes

CARDS_MAX = 1_000_000
_GROUP = re.compile(r"(\d{1,7})x(\d{1,4})(?:x([0-9.]+[a-zA-Z]+))?(?::(\w+))?")
# Philly offers 374 cards on average, ITP 1,136: these sizes give contention. Muri's and Salus' are the papers'.
DEFAULTS = {
    "philly": "64x8x16GiB",
    "itp": "188x8x16GiB",
    "alibaba2023": "alibaba2023",
    "muri1": "8x8x16GiB",
    "muri2": "8x8x16GiB",
    "muri3": "8x8x16GiB",
    "muri4": "8x8x16GiB",
    "muri-testbed": "8x8x16GiB",
    "salus": "1x1x16GiB",
}


def parse_cluster(text: str, *, seed: int = 0) -> tuple[NodeSpec, ...]:
    """`64x8x16GiB` is 64 nodes of 8 cards of 16 GiB; groups are joined by commas, `:V100` names a card model.

    `alibaba2023` is the published cluster of 1,213 nodes. Rules break ties by the order of the nodes, so a seed
    other than 0 shuffles it.
    """
    nodes = _alibaba() if text == "alibaba2023" else [node for part in text.split(",") for node in _group(part)]
    if sum(node.cards for node in nodes) > CARDS_MAX:
        raise UsageError(f"--cluster {text} has more than {CARDS_MAX:,} cards")
    if seed:
        random.Random(seed).shuffle(nodes)
    return tuple(nodes)


def _group(text: str) -> list[NodeSpec]:
    match = _GROUP.fullmatch(text.strip())
    if match is None or not int(match[1]) or not int(match[2]):
        raise UsageError(f"--cluster '{text}' is no cluster; write NODESxCARDSxMEMORY, for example 64x8x16GiB")
    card_bytes = parse_bytes(match[3]) if match[3] else 0
    name = match[4] or ""
    return [
        NodeSpec(name=f"{name or 'node'}-{number}", cards=int(match[2]), model=name, card_bytes=card_bytes)
        for number in range(int(match[1]))
    ]


def _alibaba() -> list[NodeSpec]:
    _, rows = read_table(data_file("alibaba2023/nodes_gpu.csv.gz"))
    return [
        NodeSpec(
            name=row["sn"],
            cards=int(row["gpu"]),
            model=row["model"],
            cpu_milli=int(row["cpu_milli"]),
            memory_bytes=int(row["memory_mib"]) * MIB,
        )
        for _, row in rows
    ]


def cards_of(nodes: Sequence[NodeSpec]) -> int:
    return sum(node.cards for node in nodes)


def bytes_of(nodes: Sequence[NodeSpec]) -> int:
    """Of all cards; 0 if some are not known."""
    known = all(node.card_bytes for node in nodes)
    return sum(node.cards * node.card_bytes for node in nodes) if known else 0
