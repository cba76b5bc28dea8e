"""Records what schedulers are told and answer, by wrapping their methods while a test or a simulation runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from carpool.errors import CarpoolError
from tests.golden import under_test
from tests.golden.logs import Session
from tests.golden.under_test import RAISED, ClusterScheduler, NodeScheduler, Plain, fact_as_plain

_KEPT = "_golden"  # the attribute of a scheduler that has its tape


class Tape:
    """What one scheduler was told and answered; also what a replay writes, so that both can be compared."""

    def __init__(self, said: dict[str, Plain], look_every: int) -> None:
        self.session = Session(said=said)
        self.now = 0
        self._look_every = look_every
        self._wakeup: int | None = None
        self._reasons: dict[str, str] = {}
        self._looked = 0

    def note(self, scheduler: under_test.Scheduler, now: int, event: list[Plain], effects: list[Plain]) -> None:
        wakeup = scheduler.next_wakeup()
        record: list[Plain] = [now - self.now, event, effects]
        if wakeup != self._wakeup:
            record.append(wakeup - now if wakeup is not None else None)
        self._wakeup, self.now = wakeup, now
        self.session.lines.append(msgspec.json.encode(record))
        self.session.events += 1
        if self.session.events % self._look_every == 0:
            self.look(scheduler)

    def look(self, scheduler: under_test.Scheduler) -> None:
        if self._looked == self.session.events:
            return
        self._looked = self.session.events
        checksum, reasons = under_test.look(scheduler, self.now)
        changed = {job: said for job, said in reasons.items() if self._reasons.get(job) != said}
        changed |= {job: "" for job in self._reasons if job not in reasons}
        self._reasons = reasons
        self.session.lines.append(msgspec.json.encode({"sum": checksum, "reasons": changed}))

    def note_feature(self, event: list[Plain], state: str, effects: list[Plain]) -> None:
        said = self.session.said
        first = (said["scheduler"], said["policy"], event[0], state)
        self.session.features |= {first, (said["scheduler"], *sorted(said["settings"])), (said.get("rule", ""),)}
        self.session.features |= {(said["scheduler"], event[0], state, "gives", effect[0]) for effect in effects}
        self.session.features.add((said["scheduler"], "gives", *[effect[0] for effect in effects]))


class Recorder:
    def __init__(self, *, look_every: int = 50) -> None:
        self.look_every = look_every
        self.where = ""  # what runs: named in each session
        self.skipped = 0  # schedulers that cannot be described in words
        self._live: list[tuple[Tape, under_test.Scheduler]] = []

    def take(self) -> list[Session]:
        """The sessions recorded since the last call."""
        taken, self._live = self._live, []
        for tape, scheduler in taken:
            tape.look(scheduler)
            delattr(scheduler, _KEPT)
        return [tape.session for tape, _ in taken if tape.session.events]

    def begin(self, scheduler: under_test.Scheduler, said: dict[str, Plain] | None) -> None:
        if said is None:
            self.skipped += 1
            return
        tape = Tape({**said, "where": self.where}, self.look_every)
        setattr(scheduler, _KEPT, tape)
        self._live.append((tape, scheduler))

    @contextmanager
    def attached(self) -> Iterator[Recorder]:
        """While this is open, every scheduler that is made is recorded."""
        undo = [
            self._wrap(NodeScheduler, "__init__", self._made_node),
            self._wrap(ClusterScheduler, "__init__", self._made_cluster),
            self._wrap(NodeScheduler, "handle", _handled),
            self._wrap(ClusterScheduler, "handle", _handled),
        ]
        try:
            yield self
        finally:
            for step in undo:
                step()

    def _wrap(self, kind: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
        inner = getattr(kind, name)

        @functools.wraps(inner)
        def wrapped(scheduler: Any, *args: Any, **named: Any) -> Any:
            return around(inner, scheduler, *args, **named)

        setattr(kind, name, wrapped)
        return lambda: setattr(kind, name, inner)

    def _made_node(self, inner: Any, scheduler: Any, policy: Any, settings: Any = None) -> None:
        inner(scheduler, policy, settings)
        self.begin(scheduler, under_test.describe_node(policy, settings))

    def _made_cluster(self, inner: Any, scheduler: Any, books: Any, order: Any, settings: Any = None) -> None:
        said = under_test.describe_cluster(books, order, settings)
        inner(scheduler, books, order, settings)
        self.begin(scheduler, said)


def _handled(inner: Any, scheduler: Any, event: Any, *, now: int) -> Any:
    tape: Tape | None = getattr(scheduler, _KEPT, None)
    if tape is None:
        return inner(scheduler, event, now=now)
    state, said = under_test.state_before(scheduler, event), fact_as_plain(event)
    try:
        effects = inner(scheduler, event, now=now)
    except CarpoolError as error:
        answer: list[Plain] = [[RAISED, type(error).__name__, str(error)]]
        if now >= tape.now:
            tape.note_feature(said, state, answer)
            tape.note(scheduler, now, said, answer)
        raise
    answer = [fact_as_plain(effect) for effect in effects]
    tape.note_feature(said, state, answer)
    tape.note(scheduler, now, said, answer)
    return effects
