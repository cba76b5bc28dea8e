"""The stream of changes: clients that asked for it are told when a job comes into another state.

An observer (observers.py): where nobody listens it costs one comparison a decision. A stream begins with the state
of every live job. It is bounded: so many at once, of one user too, and a reader that leaves UNREAD_MAX bytes unread
is cut off with a sentence. A daemon that is stopped tells its streams so before it closes them.

Turns that pass from job to job without the daemon (handovers.py) are known at the next decision, so they come late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from carpool import calls
from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.effects import Effect
from carpool.core.node.events import Event
from carpool.core.node.model import ENDED, JobState
from carpool.core.node.scheduler import Scheduler
from carpool.daemon.authority import Authority
from carpool.daemon.jobs import LiveJob
from carpool.errors import RefusedError
from carpool.wire import messages as m

STREAMS_MAX = 32  # at once
STREAMS_OF_ALL_MAX = 256  # … where all users of a machine are served, and of them …
STREAMS_OF_USER_MAX = 8  # … one has
UNREAD_MAX = 1 << 20
TURN_STATES = frozenset({JobState.RUNNING, JobState.WAITING, JobState.IDLE})  # come and go many times a second


class Listener(Protocol):
    """The sending half of a client's connection."""

    @property
    def uid(self) -> int: ...

    def send(self, message: m.Message) -> None: ...

    def unread_bytes(self) -> int: ...

    def close(self) -> None: ...


class ChangeStream:
    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Mapping[JobId, LiveJob],
        clock: Callable[[], Nanos],
        authority: Authority,
    ) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._clock = clock
        self._authority = authority
        self._listeners: dict[Listener, bool] = {}  # whether it wants turns too
        self._states: dict[JobId, JobState] = {}  # as the listeners were told
        self._is_dropped = False

    def add(self, peer: Listener, *, has_turns: bool) -> None:
        """Begin a stream; what the client hears first is how things stand."""
        if self._is_dropped:
            raise RefusedError("streams of changes failed in this daemon; daemon.log has the reason. Ask: carpool ps")
        if peer not in self._listeners:
            self._check_room(peer.uid)
        if not self._listeners:
            self._states = self._now()
        self._listeners[peer] = has_turns
        now = self._clock()
        found = [calls.Change(at_ns=now, job=job, state=state.value) for job, state in self._states.items()]
        peer.send(self._reply(peer, calls.Changes(changes=found)))

    def _check_room(self, uid: int) -> None:
        """RefusedError if there are too many already; on a machine nobody takes those of the others."""
        is_for_all = self._authority.is_for_all
        most, count = STREAMS_OF_ALL_MAX if is_for_all else STREAMS_MAX, len(self._listeners)
        if is_for_all and count < most and not self._authority.is_admin(uid):
            most, count = STREAMS_OF_USER_MAX, sum(each.uid == uid for each in self._listeners)
        if count >= most:
            raise RefusedError(f"{most} streams of changes are open already; close one, or ask with: carpool ps")

    def drop(self, peer: Listener) -> None:
        """The client is gone, or never was one."""
        self._listeners.pop(peer, None)

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        """Tell what changed with this decision."""
        if not self._listeners:
            return
        before, self._states = self._states, self._now()
        changed = [job for job, state in self._states.items() if before.get(job) is not state]
        changed += [job for job in before if job not in self._states]
        all_changes = [self._change(job, before.get(job), event, now=now) for job in changed]
        for peer, has_turns in list(self._listeners.items()):
            told = [change for change in all_changes if has_turns or not _is_turn(change)]
            if told:
                self._send(peer, told)

    def _now(self) -> dict[JobId, JobState]:
        found = {job: self._scheduler.state_of(job) for job in self._jobs}
        return {job: state for job, state in found.items() if state is not None and state not in ENDED}

    def _change(self, job: JobId, before: JobState | None, event: Event, *, now: Nanos) -> calls.Change:
        state = self._scheduler.state_of(job)
        assert state is not None  # the core forgets a job long after its end
        change = calls.Change(
            at_ns=now, job=job, state=state.value, before=before and before.value, event=type(event).__name__
        )
        if _is_turn(change):
            return change
        picture = self._scheduler.picture_job(job, now=now)
        return msgspec.structs.replace(change, reason=picture.reason if picture is not None else "")

    def _send(self, peer: Listener, changes: list[calls.Change]) -> None:
        if peer.unread_bytes() <= UNREAD_MAX:
            peer.send(self._reply(peer, calls.Changes(changes=changes)))
            return
        self.drop(peer)
        reason = f"the stream was ended: {UNREAD_MAX >> 10} KiB of it were not read; read faster, or ask for no turns"
        peer.send(m.Reply(answer={}, error=reason, code=1))
        peer.close()

    def _reply(self, peer: Listener, piece: calls.Changes) -> m.Reply:
        """A piece of the stream, as its listener may see it."""
        return m.Reply(answer=calls.as_dict(self._authority.shown(piece, peer.uid)), error="", code=0)

    def close(self, why: str = "the daemon was stopped") -> None:
        """Say why, and end every stream."""
        for peer in list(self._listeners):
            self.drop(peer)
            peer.send(self._reply(peer, calls.Changes(end=why)))
            peer.close()

    def dropped(self) -> None:
        """It failed once and is shown nothing any more (I3): whoever listens must not wait for ever."""
        self._is_dropped = True
        self.close("the stream failed; daemon.log has the reason")


def _is_turn(change: calls.Change) -> bool:
    return change.before in TURN_STATES and change.state in TURN_STATES
