"""Simulated jobs during a run: how far each has come, and how much of its device was used.

Jobs that hold turns of one device at the same time slow each other down only where together they want more than it
has: each says which part of an iteration the device is busy (`Script.busy_milli`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carpool.sim.scripts import MILLI, Script


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """A job during the run."""

    script: Script
    device: str = ""
    place: str = ""  # its lane
    is_holding: bool = False
    is_recalled: bool = False
    is_measured: bool = False
    is_away: bool = False  # parked
    is_killed: bool = False
    stalled_from_ns: int | None = None  # it stalls, and has its turn meanwhile
    idle_ns: int = 0  # how long it did, in all
    worked_ns: int = 0  # of script.work_ns
    seen_ns: int = 0  # up to when worked_ns counts
    granted_ns: int = 0
    held_ns: int = 0
    first_ns: int | None = None
    passed_ns: int = 0  # of that at its newest boundary; a recall in the very moment of the next one skips none
    target_ns: int = 0  # the progress at which its next boundary is due
    version: int = 0  # of that boundary in the heap; older ones there are void
    preemptions: int = 0
    changes: int = 0  # of turn that cost it something

    @property
    def steps(self) -> int:
        return self.worked_ns // self.script.step_ns

    @property
    def resident_bytes(self) -> int:
        """What it has on its device between turns."""
        needs = self.script.needs
        return needs.overhead_bytes if self.is_away else needs.resident_bytes


@dataclass(slots=True)
class DeviceUse:
    """One device during a run, and how much of it was used."""

    capacity_bytes: int
    holders: list[Running] = field(default_factory=list)
    wanted_milli: int = 0  # what the holders want of it together
    since_ns: int = 0
    busy_milli_ns: int = 0
    resident_bytes: int = 0
    held_byte_ns: int = 0
    last: dict[str, str] = field(default_factory=dict)  # by lane: who had its last turn

    def catch_up(self, at: int) -> None:
        """Bring the progress of everybody who computes here up to now."""
        span = at - self.since_ns
        if span <= 0:
            return
        self.since_ns = at
        held = self.resident_bytes
        for live in self.holders:
            ran = at - live.seen_ns
            if ran > 0:
                live.worked_ns += ran * MILLI // max(MILLI, self.wanted_milli)
                live.worked_ns = min(live.worked_ns, live.script.work_ns)
                live.seen_ns = at
            held += live.script.needs.ephemeral_bytes
        self.busy_milli_ns += span * min(MILLI, self.wanted_milli)
        self.held_byte_ns += span * held
