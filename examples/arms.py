"""One part of the demo: the same programs, started at their arrival or when all before them have ended."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carpool.bench import node as nodes
from carpool.bench.timeline import Panel, Row
from carpool.errors import PeerError

EXAMPLES = Path(__file__).resolve().parent
LOOK_SECONDS = 0.4  # seldom enough that the live table costs the programs nothing they would notice
LIMIT_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program of the mix."""

    name: str
    steps: int
    arrives_s: float

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(EXAMPLES / f"train_{self.name}.py"), "--steps", str(self.steps)]


@dataclass(slots=True, eq=False)
class Run:
    """One program in one arm; seconds since the arm began."""

    job: Job
    output: Path
    process: subprocess.Popen[bytes] | None = None
    began_s: float | None = None
    ended_s: float | None = None
    state: str = "to come"
    steps: int = 0
    has_device: bool = False
    peak_bytes: int | None = None
    waited_for: str = ""  # why it waited when somebody looked last, in carpool's words

    @property
    def is_running(self) -> bool:
        return self.began_s is not None and self.ended_s is None

    def printed(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def weights(self) -> str:
        found = re.findall(r"^done .*weights=([0-9a-f]{40})$", self.printed(), re.MULTILINE)
        return found[-1] if found else ""


@dataclass(slots=True, eq=False)
class Arm:
    """The mix played once: every program started at its arrival, or when all before it have ended."""

    runs: list[Run]
    environment: dict[str, str]
    prefix: Callable[[Job], list[str]]
    look: Callable[[Arm], None]
    is_exclusive: bool
    began_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def now_s(self) -> float:
        return (time.monotonic_ns() - self.began_ns) / 1e9

    def panel(self, title: str, turns: Mapping[str, Sequence[tuple[float, float]]]) -> Panel:
        """What happened, for the picture."""

        def row(run: Run) -> Row:
            job, had = run.job, tuple(turns.get(run.job.name, ()))
            ended_s = run.ended_s if run.ended_s is not None else self.now_s
            return Row(
                name=job.name,
                steps=job.steps,
                arrived_s=job.arrives_s,
                ended_s=ended_s,
                turns=tuple((at, min(end, ended_s)) for at, end in had),
                peak_bytes=run.peak_bytes,
            )

        return Panel(title=title, rows=tuple(map(row, self.runs)))

    def play(self, show: Callable[[Arm], None]) -> None:
        self.began_ns = time.monotonic_ns()
        try:
            while any(run.ended_s is None for run in self.runs):
                self._start_due()
                self.look(self)
                show(self)
                self._wait_ends()
                if self.now_s > LIMIT_SECONDS:
                    raise PeerError(f"the programs had not ended after {LIMIT_SECONDS:.0f} s; is this machine busy?")
            show(self)
        finally:
            left = [run.process for run in self.runs if run.process is not None and run.is_running]
            for process in left:
                process.terminate()
            for process in left:
                nodes.stop(process)

    def _start_due(self) -> None:
        for run in self.runs:
            if self.is_exclusive and any(other.is_running for other in self.runs):
                return
            if run.began_s is None and run.job.arrives_s <= self.now_s:
                self._start(run)

    def _start(self, run: Run) -> None:
        run.began_s = self.now_s
        with run.output.open("wb") as output, run.output.with_suffix(".err").open("wb") as errors:
            run.process = subprocess.Popen(
                [*self.prefix(run.job), *run.job.argv],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C is for the demo, which then ends its programs itself
            )

    def _wait_ends(self) -> None:
        """Until a program ends, the next one arrives, or it is time to look again."""
        wait_s = LOOK_SECONDS
        for run in self.runs:
            if run.began_s is None and run.job.arrives_s > self.now_s:
                wait_s = min(wait_s, run.job.arrives_s - self.now_s)
        running = {os.pidfd_open(run.process.pid): run for run in self.runs if run.is_running and run.process}
        try:
            ended, _, _ = select.select(list(running), [], [], max(0.0, wait_s))
        finally:
            for fd in running:
                os.close(fd)
        for fd in ended:
            self._note_end(running[fd])

    def _note_end(self, run: Run) -> None:
        run.ended_s = self.now_s
        run.state, run.steps, run.has_device = f"took {run.ended_s - run.job.arrives_s:.1f} s", run.job.steps, False
        assert run.process is not None
        if run.process.wait():
            said = run.output.with_suffix(".err").read_text(errors="replace").strip() or run.printed().strip()
            last = "\n  ".join(said.splitlines()[-8:])
            raise PeerError(f"{run.job.name} ended with exit code {run.process.returncode}:\n  {last}")
