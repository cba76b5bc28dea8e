"""Records every golden log again: `make golden`, or `python -m tests.golden.record [LOG ...]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass

from tests.golden import logs


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


SOURCES = (
    Tests(log="core", paths=("tests/core",), events_max=200_000, look_every=10),
    Tests(log="properties", paths=("tests/properties",), events_max=250_000, look_every=25),
    Tests(log="chaos", paths=("tests/chaos",), events_max=80_000, look_every=50),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument(
        "logs", nargs="*", choices=[[], *(source.log for source in SOURCES)], help="all if none is given"
    )
    chosen = parser.parse_args().logs
    for source in SOURCES:
        if not chosen or source.log in chosen:
            source.record()
    print(f"golden logs: {', '.join(logs.names())}; now look at the differences with git, and name each in the note")
    return 0


if __name__ == "__main__":
    sys.exit(main())
