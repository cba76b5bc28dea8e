"""Real runs: the demo and the smallest forms of some benchmarks, read back from the journals of their daemons."""

from __future__ import annotations

import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from carpool.bench import node as nodes
from carpool.cli.main import main as carpool
from carpool.journal import reader
from carpool.sim.journal import policy_of
from tests.golden.recorder import Recorder
from tests.golden.under_test import NodeScheduler

EXAMPLES = Path(__file__).parents[2] / "examples"
BENCHES = ("jct", "park", "throughput", "handover")


def play(recorder: Recorder) -> None:
    """Run all of it; the recorder takes the sessions."""
    with tempfile.TemporaryDirectory(prefix="golden-") as directory:
        kept = Path(directory)
        for bench in BENCHES:
            with _journals_kept(kept, bench):
                _run(carpool, "carpool", "bench", bench, "--quick")
        with _journals_kept(kept, "demo"):
            _run(lambda: runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__"), "demo")
        for path in sorted(kept.glob("*.db")):
            recorder.where = path.stem
            _tell_again(path)


def _run(program: Callable[[], object], *words: str) -> None:
    """A program of ours in this process, with these words of a command line."""
    before = sys.argv
    sys.argv = list(words)
    sys.path.insert(0, str(EXAMPLES))
    try:
        code = program()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
        sys.path.remove(str(EXAMPLES))
    if isinstance(code, int) and code:
        raise SystemExit(f"{' '.join(words)} ended with exit code {code}")


@contextmanager
def _journals_kept(directory: Path, name: str) -> Iterator[None]:
    """Every daemon that is started by a benchmark leaves its journal here when it ends."""
    close = nodes.Node.close

    def close_and_keep(self: nodes.Node) -> None:
        close(self)
        number = len(list(directory.glob(f"{name}-*.db")))
        for path in (self.directory / "state").glob("journal.db*"):
            shutil.copy(path, directory / f"{name}-{number}{path.name.removeprefix('journal')}")

    nodes.Node.close = close_and_keep  # type: ignore[method-assign]
    try:
        yield
    finally:
        nodes.Node.close = close  # type: ignore[method-assign]


def _tell_again(path: Path) -> None:
    """Tell a new scheduler what the daemon told its own, once for every life of it; both answer the same."""
    for life in reader.lives(path):
        recording = reader.read(path, run=life.run)
        scheduler = NodeScheduler(policy_of(recording))
        for call in recording.calls:
            made = scheduler.handle(call.event, now=call.at_ns)
            assert made == call.effects, f"{path} row {call.row}: {made} is not what the daemon ordered"
