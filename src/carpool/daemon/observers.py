"""Who is shown everything the core was told and answered: the journal first, the stream of changes, the last events.

Rules
  I1  Every call of the core is shown to every observer once, after its effects were performed, in the order of the
      calls; also one that broke a rule, with the effects it had until then.
  I2  An observer changes nothing: it tells the core no fact and performs no effect.
  I3  An observer that raises is dropped and named in the log, once. The daemon and the other observers go on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import Effect
from carpool.core.node.events import Event
from carpool.daemon.stream import ChangeStream

log = logging.getLogger("carpool")
EVENTS_KEPT = 500  # of all jobs; a job of interest has some of them
EVENTS_SHOWN = 12


class Observer(Protocol):
    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        """One call of the core: when, what it was told, what it ordered."""


class Observers:
    """Those that are shown every call of the core."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)
        self.dropped: dict[str, str] = {}  # by the name of its class: what it raised

    def add(self, observer: Observer) -> None:
        """Show it every call from now on."""
        self._observers.append(observer)

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        for observer in self._observers:
            try:
                observer.note(now, event, effects)
            except Exception as error:  # whatever it is: an observer must not end the daemon (I3)
                log.exception("observer.dropped observer=%s", type(observer).__name__)
                self._observers = [each for each in self._observers if each is not observer]
                self.dropped[type(observer).__name__] = f"{type(error).__name__}: {error}"
                if isinstance(observer, ChangeStream):
                    observer.dropped()


class LastEvents:
    """What was told of late, for the report of a bug: an InternalError carries the last events of its job."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Event, list[Effect]]] = deque(maxlen=EVENTS_KEPT)

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        self._kept.append((now, event, effects))

    def lines_of(self, event: Event) -> tuple[str, ...]:
        """The newest calls about the job of this event, oldest first; of a fact about no job, about any."""
        job: JobId | None = getattr(event, "job", None)
        found = [
            f"{now} {each} -> {', '.join(map(str, effects)) or 'nothing'}"
            for now, each, effects in self._kept
            if job is None or job in (getattr(fact, "job", None) for fact in (each, *effects))
        ]
        return tuple(found[-EVENTS_SHOWN:])
