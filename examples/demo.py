"""What `make demo` runs: seven ordinary training programs share one device, with and without carpool.

The same programs arrive at the same times twice. First each has the device for itself, in order of arrival, under
plain `python`. Then all of them run under `carpool run`, and whoever is nearest its end has the device. At the end
there is a table, a picture of who had the device when, and a check that no program computed anything else than
before. The programs do not know about carpool.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
try:
    from rich import box
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from carpool.bench import node as nodes
    from carpool.bench import timeline
    from carpool.bench.timeline import Panel, Row
    from carpool.cli.reach import call
    from carpool.cli.tables import COLOURS, console
    from carpool.devices import cpu
    from carpool.errors import CarpoolError, PeerError
    from carpool.wire.places import find_places
except ModuleNotFoundError as missing:
    sys.exit(f"demo: this Python has no '{missing.name}'; run: make setup, then: make demo")

DEVICE, POLICY = "cpu:6GiB", "srtf"
LOOK_SECONDS = 0.4  # seldom enough that the live table costs the programs nothing they would notice
LINE_SECONDS = 5.0  # how often there is a line where there is no terminal
LIMIT_SECONDS = 900.0
BAR_WIDTH = 22
# Both parts are the same work; in the second only start-ups overlap. Beyond this the machine's speed has changed.
PACE_MIN, PACE_MAX = 0.8, 1.6
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program of the mix."""

    name: str
    steps: int
    arrives_s: float

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(EXAMPLES / f"train_{self.name}.py"), "--steps", str(self.steps)]


# Lengths have a heavy tail, as in every published trace of a shared cluster: one program needs about as much
# compute as all the others together, and it came first.
MIX = (
    Job(name="gpt", steps=220, arrives_s=0.0),
    Job(name="resnet", steps=45, arrives_s=0.5),
    Job(name="unet", steps=12, arrives_s=1.0),
    Job(name="lstm", steps=50, arrives_s=1.5),
    Job(name="gan", steps=30, arrives_s=2.0),
    Job(name="vae", steps=80, arrives_s=2.5),
    Job(name="mlp", steps=120, arrives_s=3.0),
)
QUICK = (
    Job(name="lstm", steps=12, arrives_s=0.0),
    Job(name="vae", steps=12, arrives_s=0.3),
    Job(name="mlp", steps=10, arrives_s=0.6),
)


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
            return Row(name=job.name, steps=job.steps, arrived_s=job.arrives_s, ended_s=ended_s, turns=had)

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


def look_at_output(arm: Arm) -> None:
    """Programs outside carpool: what they printed is all there is to see."""
    for run in arm.runs:
        if run.is_running:
            run.state, run.has_device = "running", True
            run.steps = max(map(int, re.findall(r"^step=(\d+)", run.printed(), re.MULTILINE)), default=0)
        elif run.ended_s is None and run.job.arrives_s <= arm.now_s:
            run.state = "in the queue"


def look_at_daemon(arm: Arm) -> None:
    """Programs under carpool: the daemon knows each one's state and steps, and who holds the device."""
    answer: dict[str, Any] = call(find_places(), "ps")
    seen = {job["name"]: job for job in answer["jobs"]}
    holders = {lane["holder"] for device in answer["devices"] for lane in device["lanes"]}
    for run in arm.runs:
        if run.is_running:
            unseen = {"id": "", "state": "ending" if run.steps else "starting", "steps": run.steps}
            job = seen.get(run.job.name, unseen)
            run.state, run.steps, run.has_device = job["state"], job["steps"], job["id"] in holders


@contextlib.contextmanager
def open_screen() -> Iterator[Callable[[Arm], None]]:
    """Gives what shows an arm: a live table in a terminal, a line now and then elsewhere."""
    if console().is_terminal:
        with Live(console=console(), auto_refresh=False) as live:
            yield lambda arm: live.update(live_table(arm), refresh=True)
        return
    said_s = -LINE_SECONDS

    def say(arm: Arm) -> None:
        nonlocal said_s
        ended = sum(run.ended_s is not None for run in arm.runs)
        if arm.now_s - said_s >= LINE_SECONDS or ended == len(arm.runs):
            said_s = arm.now_s
            print(f"{said_s:5.0f} s  {ended} of {len(arm.runs)} ended; {holder(arm)}", flush=True)

    yield say


def holder(arm: Arm) -> str:
    names = [f"{run.job.name} (step {run.steps})" for run in arm.runs if run.has_device]
    return f"has the device: {', '.join(names) or 'nobody'}"


def live_table(arm: Arm) -> Group:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title, width in (
        ("", 1),
        ("program", 8),
        ("arrived", 7),
        ("state", 13),
        ("progress", BAR_WIDTH),
        ("steps", 8),
    ):
        table.add_column(title, width=width, no_wrap=True)
    for run in arm.runs:
        done = BAR_WIDTH * min(run.steps, run.job.steps) // run.job.steps
        table.add_row(
            "▶" if run.has_device else "",
            run.job.name,
            f"{run.job.arrives_s:.1f} s",
            Text(run.state, style=COLOURS.get(run.state, "")),
            "━" * done + "·" * (BAR_WIDTH - done),
            f"{run.steps}/{run.job.steps}",
            style="bold green" if run.has_device else "dim" if run.ended_s is not None else "",
        )
    return Group(Text(f"{arm.now_s:5.1f} s  {holder(arm)}"), table)


def play_exclusive(jobs: tuple[Job, ...], directory: Path) -> tuple[Arm, Panel]:
    arm = Arm(
        runs=[Run(job=job, output=directory / f"{job.name}.exclusive") for job in jobs],
        environment={**nodes.plain_environment(), **spin_setting()},
        prefix=lambda job: [],
        look=look_at_output,
        is_exclusive=True,
    )
    with open_screen() as show:
        arm.play(show)
    whole = {run.job.name: [(run.began_s or 0.0, run.ended_s or 0.0)] for run in arm.runs}
    return arm, arm.panel("One after the other", whole)


def play_shared(jobs: tuple[Job, ...], directory: Path) -> tuple[Arm, Panel]:
    with contextlib.ExitStack() as stack:
        with signals_held_back():
            node = stack.enter_context(nodes.open_node(policy=POLICY, device=DEVICE))
        os.environ["CARPOOL_DIR"] = str(node.directory)
        stack.callback(os.environ.pop, "CARPOOL_DIR")
        carpool = [sys.executable, "-m", "carpool.cli.main", "run"]
        arm = Arm(
            runs=[Run(job=job, output=directory / f"{job.name}.shared") for job in jobs],
            environment={**node.environment, **spin_setting()},
            prefix=lambda job: [*carpool, "--name", job.name, "--steps", str(job.steps), "--"],
            look=look_at_daemon,
            is_exclusive=False,
        )
        with open_screen() as show:
            arm.play(show)
        places = find_places()
        call(places, "ps", all=True)  # the daemon writes its journal before it answers this
        turns = timeline.read_turns(places.journal, since_ns=arm.began_ns)
        return arm, arm.panel(f"Shared with carpool, policy {POLICY}", turns)


def spin_setting() -> dict[str, str]:
    """Both arms wait at OpenMP barriers alike, else the arm outside carpool suffers more from a busy machine."""
    is_chosen = any(name.startswith(("OMP_WAIT", "GOMP_")) for name in os.environ)
    return {} if is_chosen else cpu.environment()


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """While a daemon starts there is a moment in which it exists but cannot be told to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def changed_runs(exclusive: Arm, shared: Arm) -> list[Run]:
    """Those of the shared arm that did not print the same losses and the same weights as alone."""
    alone = {run.job.name: run for run in exclusive.runs}
    pairs = [(alone[run.job.name], run) for run in shared.runs if run.job.name in alone]
    return [b for a, b in pairs if not a.weights() or a.printed() != b.printed()]


def ask_again(exclusive: Arm, shared: Arm, directory: Path) -> tuple[list[str], list[str]]:
    """Who computed something else when shared, and who does so even alone, by another run alone of each suspect.

    Torch is not always repeatable on a CPU: docs/design/0015-first-calls.md.
    """
    suspects = [run.job for run in changed_runs(exclusive, shared)]
    if not suspects:
        return [], []
    print(
        f"\n{', '.join(job.name for job in suspects)} printed other numbers than alone; once more alone, to see why"
    )
    directory.mkdir()
    again, _ = play_exclusive(tuple(suspects), directory)
    changed = [run.job.name for run in changed_runs(again, shared)]
    return changed, [job.name for job in suspects if job.name not in changed]


def result_json(exclusive: Arm, shared: Arm, before: Panel, after: Panel) -> dict[str, Any]:
    """All figures."""
    return {
        "device": f"CPU device, {cpu.title()}",
        "policy": POLICY,
        "load_average": os.getloadavg(),
        "exclusive": {**asdict(before), "weights": [run.weights() for run in exclusive.runs]},
        "shared": {**asdict(after), "weights": [run.weights() for run in shared.runs]},
        "ratios": [one.taken_s / other.taken_s for one, other in zip(before.rows, after.rows, strict=True)],
        "average_s": {"exclusive": before.average_s, "shared": after.average_s},
        "makespan_s": {"exclusive": before.makespan_s, "shared": after.makespan_s},
        "ratio_of_averages": before.average_s / after.average_s,
    }


def report(table: Table, result: dict[str, Any]) -> None:
    print(f"\nFrom arrival to end; {result['device']}:")
    console().print(table)
    spans = result["makespan_s"]
    pace = spans["exclusive"] / spans["shared"]
    if PACE_MIN <= pace <= PACE_MAX:
        print(f"On average a program ended {result['ratio_of_averages']:.1f} times as soon (CPU device).")
    else:
        alone, shared = f"{spans['exclusive']:.0f} s", f"{spans['shared']:.0f} s"
        print(f"One after the other the work took {alone}, shared {shared}: this machine's")
        print("speed changed meanwhile, so the two columns cannot be compared. Run it again")
        print("when nothing else runs.")
    if result["changed"]:
        print(f"BUG: {', '.join(result['changed'])} printed other losses or weights when shared; please report this.")
    elif result["unsteady"]:
        print("Shared, every program printed what it prints alone, bit for bit. Alone, a second")
        print(f"run was needed for that: {', '.join(result['unsteady'])}. Torch's first vector operation is")
        print("not always repeatable on a CPU; under carpool it is:")
        print("docs/design/0015-first-calls.md")
    else:
        print("The numbers did not change: alone and shared, every program printed the same")
        print("losses and ended with the same weights (SHA1), bit for bit.")
    busy, cores = result["load_average"][1], os.cpu_count() or 1
    if busy > 2 * cores:
        print(f"This machine is busy (load average {busy:.1f} on {cores} cores), so all took longer.")


def run_demo(jobs: tuple[Job, ...], out: Path) -> int:
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    print(f"{len(jobs)} training programs, one CPU device ({cpu.title()}).")
    with tempfile.TemporaryDirectory(prefix="carpool-demo-", ignore_cleanup_errors=True) as directory:
        print("\n1 of 2: one after the other, each alone on the device, first come first served")
        exclusive, before = play_exclusive(jobs, Path(directory))
        print("\n2 of 2: the same again, each under `carpool run`; shortest remaining time first")
        shared, after = play_shared(jobs, Path(directory))
        result = result_json(exclusive, shared, before, after)
        result["changed"], result["unsteady"] = ask_again(exclusive, shared, Path(directory) / "again")
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    title = f"Who had the device: {len(jobs)} training programs, one CPU device"
    footnote = f"Block: has the device. Line: waits or starts up. Figure: arrival to end. {result['device']}."
    timeline.draw([before, after], out / "timeline.png", title=title, footnote=footnote)
    report(timeline.make_table(before, after), result)
    print(f"Who had the device when: {os.path.relpath(out / 'timeline.png')}")
    print(f"That took {time.monotonic() - began:.0f} s. Next, share your own programs:")
    print("    . .venv/bin/activate    # or, below, in place of python: the Python that has your torch")
    print("    carpool run -- python your_script.py")
    return 1 if result["changed"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Training programs share one device, with and without carpool.")
    parser.add_argument("--quick", action="store_true", help="three programs of a few steps: too short for a gain")
    parser.add_argument("--out", type=Path, default=EXAMPLES.parent / "demo-out", help="where picture and figures go")
    args = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("demo: PyTorch is not installed in this Python; run: make setup, then: make demo")
    for number in ENDING:
        signal.signal(number, interrupt)
    try:
        return run_demo(QUICK if args.quick else MIX, args.out.resolve())
    except KeyboardInterrupt:
        print("\ndemo: stopped; its programs and its daemon have ended", file=sys.stderr)
        return 130
    except (CarpoolError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def interrupt(*_: object) -> None:
    """The first Ctrl-C ends the demo; the next ones must not disturb its cleaning up."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
