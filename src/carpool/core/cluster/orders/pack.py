"""Several jobs side by side on the same cards, where measurements say that it helps."""

from __future__ import annotations

from carpool.core.cluster.orders.las import LeastAttained


class Pack(LeastAttained):
    """As `las`; and a job that would wait rides on the cards of one that runs, up to four there: see packing.py."""

    name = "pack"
    seats = 4
