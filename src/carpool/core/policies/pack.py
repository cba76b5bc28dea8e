"""As many jobs side by side as fit and as help."""

from __future__ import annotations

from carpool.core.policies.las import LeastServed
from carpool.core.policies.view import JobView


class Pack(LeastServed):
    """Every job gets a lane of its own while memory lasts, up to four at a time; within a lane, least served first.

    Packing is a trial: the schedulers measure each pair, and set jobs apart that are slower together than in turns.
    In a cluster a job that would wait rides on the cards of one that runs.
    """

    name = "pack"
    lanes_max = 4

    def why(self, chosen: JobView, over: JobView) -> str:
        return f"they share the lane, and {super().why(chosen, over)}"
