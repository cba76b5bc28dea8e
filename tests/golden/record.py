"""Records every golden log again: `make golden`, or `python -m tests.golden.record [LOG ...]`."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from dataclasses import dataclass

from tests.golden import logs
from tests.golden.choose import Choice
from tests.golden.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Tests:
    """A log of what tests tell schedulers."""

    log: str
    paths: tuple[str, ...]
    events_max: int
    look_every: int

    def record(self) -> None:
        """In a process of its own with one hash seed, as `make test` has: the same examples every time."""
        words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "tests.golden.plugin", "--golden-log", self.log]
        words += ["--golden-events", str(self.events_max), "--golden-look", str(self.look_every), *self.paths]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run([sys.executable, "-m", "pytest", *words], env=environment, check=True)


@dataclass(frozen=True, kw_only=True)
class Play:
    """A log of what a simulation tells schedulers, or of what daemons told theirs."""

    log: str
    play: str  # module and function, loaded when it is recorded
    look_every: int = 50

    def record(self) -> None:
        module, _, name = self.play.partition(":")
        recorder, choice = Recorder(look_every=self.look_every), Choice(events_max=EVERYTHING)
        with recorder.attached():
            getattr(importlib.import_module(module), name)(recorder)
        choice.add(recorder.take())
        sessions, failed = choice.best()
        if failed:
            raise SystemExit(f"{self.log}: what was recorded cannot be replayed\n{failed[0]}")
        path = logs.write(self.log, sessions)
        events = sum(session.events for session in sessions)
        print(f"{path.name}: {len(sessions)} sessions with {events:,} events, {path.stat().st_size:,} bytes")


EVERYTHING = 1 << 60
NEWER_TESTS = ("tests/core/cluster", "tests/core/node/test_configured.py", "tests/sim/test_both.py")
SOURCES: tuple[Tests | Play, ...] = (
    Tests(log="core", paths=("tests/core",), events_max=200_000, look_every=10),
    Tests(log="properties", paths=("tests/properties",), events_max=250_000, look_every=25),
    Tests(log="chaos", paths=("tests/chaos",), events_max=80_000, look_every=50),
    Tests(log="newer", paths=NEWER_TESTS, events_max=70_000, look_every=10),
    Play(log="day_node", play="tests.golden.day:play_node"),
    Play(log="day_cluster", play="tests.golden.day:play_cluster"),
    Play(log="real", play="tests.golden.real:play"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("logs", nargs="*", help="all if none is given")
    chosen = parser.parse_args().logs
    for source in SOURCES:
        if not chosen or source.log in chosen:
            source.record()
    print(f"golden logs: {', '.join(logs.names())}; now look at the differences with git, and name each in the note")
    return 0


if __name__ == "__main__":
    sys.exit(main())
