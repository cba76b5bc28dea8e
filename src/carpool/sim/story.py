"""What became of one job of a simulation, in the scheduler's own sentences: `carpool sim --explain JOB`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from carpool.core.cluster import effects as of_cluster
from carpool.core.kernel.refusals import ExplainWait, RefuseJob
from carpool.core.node import effects as of_node
from carpool.units import format_count

NUMBERS = re.compile(r"(?<=[ (])\d[\d.,]* \w+")  # not those in names
LINES_MAX = 40  # of one job under one policy; a job that takes turns may wait for thousands


@dataclass(slots=True, kw_only=True)
class Story:
    """The sentences of one job, each with its time. Turns are not told; what the job waits for is, once for each
    reason until it is somewhere else."""

    job: str
    ask: Callable[[int], str] | None = None  # why it waits now: where turns are taken, nobody says so unasked
    lines: list[tuple[int, str]] = field(default_factory=list)
    left_out: int = 0  # sentences after the last line
    _told: set[str] = field(default_factory=set)  # what it waited for since it was somewhere else, without numbers

    def watch(self, at: int, event: object, effects: Sequence[of_node.Effect | of_cluster.Effect]) -> None:
        """Look at one call of a scheduler."""
        for effect in effects:
            said = sentence_of(effect) if getattr(effect, "job", None) == self.job else ""
            if said:
                self._add(at, said)
        is_grant = any(isinstance(effect, of_node.GrantLease) for effect in effects)
        if self.ask is not None and (is_grant or getattr(event, "job", None) == self.job):
            reason = self.ask(at)
            if reason:
                self._add(at, waiting(reason))

    def end(self, at: int | None) -> None:
        """It ended, if it did; the last line is always there."""
        if at is not None:
            self.lines.append((at, "it ended"))

    def _add(self, at: int, said: str) -> None:
        kind = NUMBERS.sub("", said)
        if said.startswith("it waits"):
            if kind in self._told:
                return
            self._told.add(kind)
        else:
            self._told.clear()
        if len(self.lines) < LINES_MAX:
            self.lines.append((at, said))
        else:
            self.left_out += 1


def waiting(reason: str) -> str:
    return f"it {reason}" if reason.startswith("waits") else f"it waits: {reason}"


def sentence_of(effect: of_node.Effect | of_cluster.Effect) -> str:
    """What an order means for its job; empty if there is nothing to tell."""
    match effect:
        case of_node.StartJob():
            return f"it starts on {effect.device}"
        case of_cluster.PlaceJob():
            where = ", ".join(f"{place.node} ({format_count(len(place.cards), 'card')})" for place in effect.places)
            return f"it runs on {where}{', lent by others' if effect.is_loan else ''}"
        case of_cluster.JoinJob():
            return f"it runs beside {effect.host}, on the same cards"
        case of_cluster.SuspendJob() | of_cluster.LeaveJob() | of_node.ParkJob():
            return f"it leaves: {effect.reason}"
        case of_cluster.RevokeJob():
            return "its cards are taken at once"
        case of_node.UnparkJob():
            return "it comes back"
        case of_node.MoveJob():
            return f"it moves to {effect.device}"
        case ExplainWait():
            return waiting(effect.reason)
        case RefuseJob():
            return f"it is refused: {effect.reason}"
        case _:
            return ""
