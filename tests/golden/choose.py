"""Which of the recorded sessions are kept: all that show something new, then the longest, up to a limit."""

from __future__ import annotations

from collections.abc import Iterable

from tests.golden import logs
from tests.golden.logs import Session
from tests.golden.replay import Replay, check


class Choice:
    def __init__(self, *, events_max: int) -> None:
        self._events_max = events_max
        self._seen: set[int] = set()
        self._found: list[Session] = []
        self.doubles = 0
        self.events_seen = 0

    def add(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            told = {key: value for key, value in session.said.items() if key != "where"}
            known = hash((repr(told), *session.lines))
            self.events_seen += session.events
            if known in self._seen:
                self.doubles += 1
                continue
            self._seen.add(known)
            self._found.append(session)

    def best(self) -> tuple[list[Session], list[str]]:
        """The sessions to keep, in the order of their recording, and why others cannot be replayed."""
        wanted, shown, events, failed = [], set[tuple[str, ...]](), 0, []
        numbered = sorted(enumerate(self._found), key=lambda each: (-each[1].events, each[0]))
        is_new = {}
        for number, session in numbered:
            is_new[number] = not session.features <= shown
            shown |= session.features
        for number, session in sorted(numbered, key=lambda each: not is_new[each[0]]):
            if events + session.events > self._events_max and not is_new[number]:
                continue
            difference = check(session, logs.known_fields(), Replay(log="recorded"))
            if difference:
                failed.append(difference)
                continue
            wanted.append((number, session))
            events += session.events
        return [session for _, session in sorted(wanted, key=lambda each: each[0])], failed
