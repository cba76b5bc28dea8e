"""What a simulated job of a node does, and on which machine. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.node.model import JobSpec, Needs
from carpool.units import GIB

MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One job: what it said, what it needs, and its loop."""

    id: str
    submit_ns: int
    spec: JobSpec
    needs: Needs
    steps: int
    step_ns: int  # alone
    stall_ns: int = 0  # after every iteration but the last: without the device
    start_ns: int = 0  # from its start to its first wish for a turn: imports, building the model
    change_ns: int = 0  # what a change of turn costs it: its first iterations after others had the device
    busy_milli: int = MILLI  # thousandths of an iteration in which the device is busy
    is_known: bool = False  # its program ran before: the scheduler knows its needs and lengths
    tells_length: bool = False  # its first turns show how many iterations its loops have

    @property
    def work_ns(self) -> int:
        return self.steps * self.step_ns

    @property
    def alone_ns(self) -> int:
        """How long it runs when nobody else does."""
        return self.work_ns + (self.steps - 1) * self.stall_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The devices, and what a hand-over costs."""

    devices: tuple[tuple[str, int], ...]  # name, bytes
    switch_ns: int = 0  # from a grant to the first operation
    move_bytes_per_s: int = 2 * GIB  # of a job that is parked or comes back
