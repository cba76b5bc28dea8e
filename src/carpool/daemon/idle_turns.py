"""Turns that nobody uses: found and taken while others wait (docs/design/0022-idle-turns.md). Decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import Event
from carpool.core.node.scheduler import Scheduler
from carpool.daemon import progress
from carpool.daemon.handovers import Handovers
from carpool.daemon.jobs import LiveJob
from carpool.units import SECOND


class IdleTurns:
    """The looks at holders; `tell` hands the core what they found."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Mapping[JobId, LiveJob],
        handovers: Handovers,
        tell: Callable[[Event], None],
    ) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._handovers = handovers
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def take(self, live: LiveJob) -> None:
        """Take the turn of a job that has it and nothing on the device: it is inside its program's own code, and
        would see a recall only when it computes again."""
        if live.turn.take_idle(now=time.monotonic_ns()):
            self._tell(live.returned(wants_more=live.turn.is_asking()))

    def take_beside(self, live: LiveJob) -> None:
        """Take such turns of all other jobs on its device. What others did not use is told before anybody is compared
        with them (A6)."""
        for other in list(self._jobs.values()):
            if other.file.device == live.file.device and other is not live:
                self.take(other)
                if other.turn.is_granted and other.turn.has_idled(now=time.monotonic_ns()):
                    seen = progress.look(other)
                    if seen is not None:
                        self._tell(seen)

    def take_all(self) -> None:
        """While others wait: turns that went idle are taken without a recall."""
        for live in self._wanted():
            self.take(live)

    def arm(self) -> None:
        """Look again in a while, if somebody has a turn for which others wait."""
        if self._timer is None:
            spans = [span for live in self._wanted() if (span := live.turn.look_again_ns()) is not None]
            if spans:
                self._timer = asyncio.get_running_loop().call_later(min(spans) / SECOND, self._look)

    def _look(self) -> None:
        self._timer = None
        for live in self._wanted():
            self.take(live)
            if live.turn.is_granted:
                live.turn.found_busy()
        self.arm()

    def _wanted(self) -> list[LiveJob]:
        """Who has a turn for which others wait."""
        found = map(self._jobs.get, map(self._handovers.who_has, self._scheduler.holders()))
        return [live for live in found if live is not None and self._scheduler.waiters(live.id)]
