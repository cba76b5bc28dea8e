"""What one user may ask of the machine's daemon, so that nobody can keep it from the others.

The daemon has one loop. Whoever sends it more than it can take in, or opens all the connections there are, would stop
the turns of everybody. So each user has so many connections and jobs, and so much of the loop's time. Root and the
daemon's own user have no such bounds: an admin has to get through. An own daemon serves one user and counts nothing.

Rules
  I50 A user has at most `connections` connections and `jobs` jobs, `queued` of them not started. One more is refused
      with the number and what to do; nothing that he has is touched.
  I51 What a user's connections cost the loop is counted. Beyond LOOP_PERCENT of a processor they are read later, all
      but those of programs that take turns: others wait for turns to come back, and such a program has done nothing
      wrong. One that sends too much itself is read later like the rest.
  I52 A user who stays below that is never made to wait: the count of what he cost falls all the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Protocol

from carpool.core.node.model import JobState
from carpool.daemon.jobs import LiveJob
from carpool.daemon.people import ROOT, user_of
from carpool.daemon.reload import InForce
from carpool.daemon.settings_file import UserLimits
from carpool.errors import RefusedError
from carpool.units import MS

LOOP_PERCENT = 25  # of one processor, for what one user sends
BURST_NS = 100 * MS  # of the loop's time, before anything is read later
REST_NS_MAX = 250 * MS  # at a time: then it is looked at again
SYSTEM = "the machine's daemon"


class Guest(Protocol):
    """A connection, as it is seen here."""

    @property
    def uid(self) -> int: ...

    @property
    def takes_turns(self) -> bool: ...

    def rest(self, rest_ns: int) -> None: ...


class _Use:
    """What one user has and has cost."""

    __slots__ = ("at_ns", "guests", "level_ns", "until_ns")

    def __init__(self, now_ns: int) -> None:
        self.guests: dict[Guest, None] = {}
        self.level_ns = 0  # of the loop's time, less what was allowed since
        self.at_ns = now_ns
        self.until_ns = 0  # nothing of his is read before this


class Allowances:
    def __init__(self, clock_ns: Callable[[], int], in_force: InForce) -> None:
        self._clock_ns = clock_ns
        self._in_force = in_force
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
        use.guests[guest] = None
        left_ns = use.until_ns - self._clock_ns()
        if left_ns > 0:
            guest.rest(left_ns)
        return ""

    def leave(self, guest: Guest) -> None:
        """Its connection is gone. What its user has cost is forgotten once nothing of it is left."""
        use = self._uses.get(guest.uid)
        if use is None:
            return
        use.guests.pop(guest, None)
        if not use.guests and self._level_of(use) == 0:
            del self._uses[guest.uid]

    def charge(self, guest: Guest, cost_ns: int) -> None:
        """The loop was busy with what this guest sent; he and his may have to wait for it (I51)."""
        use = self._uses.get(guest.uid)
        if use is None:
            return
        use.level_ns = self._level_of(use) + cost_ns
        use.at_ns = self._clock_ns()
        if use.level_ns <= BURST_NS:
            return
        rest_ns = min(REST_NS_MAX, (use.level_ns - BURST_NS) * 100 // LOOP_PERCENT)
        use.until_ns = use.at_ns + rest_ns
        for other in [each for each in use.guests if each is guest or not each.takes_turns]:
            other.rest(rest_ns)

    def _level_of(self, use: _Use) -> int:
        return max(0, use.level_ns - (self._clock_ns() - use.at_ns) * LOOP_PERCENT // 100)

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
