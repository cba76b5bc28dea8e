"""Strict priority."""

from __future__ import annotations

from carpool.core.cluster.model import Job, Key
from carpool.core.kernel.ids import Nanos


class Priority:
    """The highest priority goes first; among equals who came first. `Settings.wait_ns` bounds the wait."""

    name = "priority"
    seats = 1
    splits_by_weight = False

    def key(self, job: Job) -> Key:
        return (-job.priority, job.number)

    def speed(self, job: Job) -> int:
        return 0

    def rest_ns(self, job: Job) -> Nanos | None:
        return None
