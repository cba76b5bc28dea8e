"""Tiresias-L, as the published Muri figures simulate it: few queues, and running before waiting inside each."""

from __future__ import annotations

from carpool.core.policies.las import LeastServed
from carpool.core.policies.levels import Levels
from carpool.units import SECOND

LIMITS = (3_250 * SECOND * 1000, 7_200 * SECOND * 1000)  # GPU-seconds at which the first and second queue end


class Tiresias(LeastServed):
    """Three queues by attained service. In a queue: those that run, as they began; then those that wait, in order.

    A job that is parked goes to the front of those that wait. A job from the queue above goes to their end, and
    counts as running only once it has outlived one decision there. The published simulator looks at whole seconds.
    """

    name = "tiresias"
    runs_on = ("cluster",)  # its queues are hours long, and turns on a node have no standing among each other
    levels = Levels(LIMITS, keeps_standing=True, step_ns=SECOND)
