"""What one user may ask of the machine's daemon, so that nobody can keep it from the others.

The daemon has one loop. Whoever sends it more than it can take in, or opens all the connections there are, would stop
the turns of everybody. So each user has so many connections and jobs, and so much of the loop's time. Root and the
daemon's own user have no such bounds: an admin has to get through. An own daemon serves one user and counts nothing.

Rules
  I50 A user has at most `connections` connections and `jobs` jobs, `queued` of them not started. One more is refused
      with the number and what to do; nothing that he has is touched.
  I51 What a user's connections cost the loop is counted. Beyond LOOP_PERCENT of a processor they wait, and are read
      one after the other as there is time for them again. Programs that take turns do not wait for what others of
      their user cost: somebody else may wait for their turns. One that sends too much itself waits like the rest.
  I52 A user who stays below that is never made to wait: the count of what he cost falls all the time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from carpool.core.node.model import JobState
from carpool.daemon.jobs import LiveJob
from carpool.daemon.people import ROOT, user_of
from carpool.daemon.reload import InForce
from carpool.daemon.settings_file import UserLimits
from carpool.errors import RefusedError
from carpool.units import MS, SECOND

LOOP_PERCENT = 25  # of one processor, for what one user sends
BURST_NS = 100 * MS  # of the loop's time, before anything is read later
SYSTEM = "the machine's daemon"


class Guest(Protocol):
    """A connection, as it is seen here."""

    @property
    def uid(self) -> int: ...

    @property
    def takes_turns(self) -> bool: ...

    def go_on(self) -> None:
        """Take in more of what was sent."""


class _Level:
    """What somebody has cost, less what was allowed since."""

    __slots__ = ("_at_ns", "_level_ns")

    def __init__(self, now_ns: int) -> None:
        self._level_ns, self._at_ns = 0, now_ns

    def at(self, now_ns: int) -> int:
        return max(0, self._level_ns - (now_ns - self._at_ns) * LOOP_PERCENT // 100)

    def add(self, cost_ns: int, now_ns: int) -> None:
        self._level_ns, self._at_ns = self.at(now_ns) + cost_ns, now_ns


class _Use:
    """What one user has, and has cost."""

    __slots__ = ("guests", "is_armed", "level", "waiting")

    def __init__(self, now_ns: int) -> None:
        self.level = _Level(now_ns)
        self.guests: dict[Guest, _Level] = {}
        self.waiting: deque[Guest] = deque()  # to be read, in their order
        self.is_armed = False  # they are looked after when there is time for them


class Allowances:
    def __init__(
        self,
        clock_ns: Callable[[], int],
        in_force: InForce,
        call_later: Callable[[float, Callable[[_Use], None], _Use], object],
    ) -> None:
        self._clock_ns = clock_ns
        self._in_force = in_force
        self._call_later = call_later
        self._uses: dict[int, _Use] = {}
        self._unbounded = {ROOT, os.geteuid()}

    @property
    def _limits(self) -> UserLimits:
        return self._in_force.settings.limits

    def come(self, guest: Guest) -> str:
        """Somebody connects; returns why he may not, or nothing (I50)."""
        if guest.uid in self._unbounded:
            return ""
        use = self._uses.get(guest.uid)
        if use is None:
            use = self._uses[guest.uid] = _Use(self._clock_ns())
        most = self._limits.connections
        if most and len(use.guests) >= most:
            name, has = user_of(guest.uid).name, len(use.guests)
            return (
                f"you ({name}) have {has} connections to {SYSTEM}, and may have {most};"
                " end some of your programs or commands, or ask an admin to raise [limits] connections"
            )
        use.guests[guest] = _Level(self._clock_ns())
        return ""

    def leave(self, guest: Guest) -> None:
        """Its connection is gone. What its user has cost is forgotten once nothing of it is left."""
        use = self._uses.get(guest.uid)
        if use is None:
            return
        use.guests.pop(guest, None)
        if not use.guests and not use.level.at(self._clock_ns()):
            del self._uses[guest.uid]

    def may_go_on(self, guest: Guest) -> bool:
        """Whether what this guest sent is taken in now; if not, it goes on when its turn comes (I51)."""
        use = self._uses.get(guest.uid)
        if use is None:
            return True
        own = use.guests.get(guest) if guest.takes_turns else None
        if (own or use.level).at(self._clock_ns()) <= BURST_NS and (own is not None or not use.waiting):
            return True
        use.waiting.append(guest)
        self._arm(use)
        return False

    def charge(self, guest: Guest, cost_ns: int) -> None:
        """The loop was busy with what this guest sent."""
        use = self._uses.get(guest.uid)
        if use is None:
            return
        now_ns = self._clock_ns()
        use.level.add(cost_ns, now_ns)
        if guest.takes_turns and guest in use.guests:
            use.guests[guest].add(cost_ns, now_ns)

    def _arm(self, use: _Use) -> None:
        if not use.is_armed:
            use.is_armed = True
            over_ns = max(0, use.level.at(self._clock_ns()) - BURST_NS)
            self._call_later(over_ns * 100 / LOOP_PERCENT / SECOND, self._go_on, use)

    def _go_on(self, use: _Use) -> None:
        """One of those who wait is read; the next one when there is time for it."""
        use.is_armed = False
        if use.level.at(self._clock_ns()) <= BURST_NS and use.waiting:
            use.waiting.popleft().go_on()
        if use.waiting:
            self._arm(use)

    def check_new_job(
        self, uid: int, jobs: Iterable[LiveJob], state_of: Callable[[LiveJob], JobState | None]
    ) -> None:
        """RefusedError if this user has as many jobs as he may have (I50)."""
        limits = self._limits
        if uid in self._unbounded or not (limits.jobs or limits.queued):
            return
        own = [live for live in jobs if live.file.uid == uid]
        name = user_of(uid).name
        if limits.jobs and len(own) >= limits.jobs:
            raise RefusedError(
                f"you ({name}) have {len(own)} jobs, and may have {limits.jobs}; wait until one has ended, or ask an"
                " admin to raise [limits] jobs"
            )
        if limits.queued and len(own) >= limits.queued:
            queued = sum(state_of(live) is JobState.QUEUED for live in own)
            if queued >= limits.queued:
                raise RefusedError(
                    f"{queued} of your ({name}) jobs wait to be started, and {limits.queued} may; submit again when"
                    " some have started, or ask an admin to raise [limits] queued"
                )
