"""What `make demo` runs: seven ordinary training programs share one device, with and without carpool.

The same programs arrive at the same times twice. First each has the device for itself, in order of arrival, under
plain `python`, as people run them without carpool. Then all of them run under `carpool run --warm`, and whoever is
nearest its end has the device. Nothing is there beforehand: the first of them makes the warm parent, and its import
of torch counts. At the end there is a table with the memory of each, a picture of who had the device when, one
sentence of `carpool explain`, and a check that no program computed anything else than before. The programs do not
know about carpool. Their peaks do not fit on the device together.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
try:
    from arms import Arm, Job, Run
    from rich import box
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from carpool.bench import node as nodes
    from carpool.bench import timeline
    from carpool.bench.timeline import Panel
    from carpool.cli.rows import COLOURS
    from carpool.cli.tables import console
    from carpool.client import Client
    from carpool.devices import cpu
    from carpool.errors import CarpoolError, PeerError
except ModuleNotFoundError as missing:
    sys.exit(f"demo: this Python has no '{missing.name}'; run: make setup, then: make demo")

DEVICE, POLICY = "cpu:512MiB", "srtf"
MIB = 1 << 20
DEVICE_BYTES = 512 * MIB
LINE_SECONDS = 5.0  # how often there is a line where there is no terminal
BAR_WIDTH = 22
# Both parts are the same work; the second has one import of torch in place of seven, which are a third of the first.
# Beyond this the machine's speed has changed.
PACE_MIN, PACE_MAX = 0.8, 2.2
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    node = Client().ps()
    seen = {job.name: job for job in node.jobs}
    holders = {lane.holder for device in node.devices for lane in device.lanes}
    for run in arm.runs:
        if run.is_running:
            job = seen.get(run.job.name)
            if job is None:
                run.state, run.has_device = "ending" if run.steps else "starting", False
            else:
                run.state, run.steps, run.has_device = job.state, job.steps, job.id in holders
                if job.state in ("queued", "waiting", "parked") and job.steps:
                    run.waited_for = f"{job.id} {job.state}: {job.reason}"


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
    return arm, arm.panel("One after the other, plain python", whole)


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
            prefix=lambda job: [*carpool, "--warm", "--name", job.name, "--steps", str(job.steps), "--"],
            look=look_at_daemon,
            is_exclusive=False,
        )
        with open_screen() as show:
            arm.play(show)
        client = Client()
        client.flush()  # what happened is in the journal
        note_memory(arm, client)
        turns = timeline.read_turns(client.places.journal, since_ns=arm.began_ns)
        return arm, arm.panel(f"Shared with carpool, policy {POLICY}, warm starts", turns)


def note_memory(arm: Arm, client: Client) -> None:
    """What each program was measured to need: what it keeps, and what it has beside that during a step."""
    needs = {job.name: job.needs for job in client.jobs(ended=True)}
    for run in arm.runs:
        found = needs.get(run.job.name)
        if found is not None:
            run.peak_bytes = found.persistent_bytes + found.overhead_bytes + found.ephemeral_bytes


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


def tell_changes(exclusive: Arm, shared: Arm, directory: Path) -> dict[str, list[str]]:
    """Who printed other losses or weights when shared, and who does not print the same twice even alone.

    Each suspect runs alone once more, since torch is not always repeatable: docs/design/0015-first-calls.md.
    """
    alone = {run.job.name: run.printed() for run in exclusive.runs if run.weights()}
    suspects = [run.job for run in shared.runs if run.printed() != alone.get(run.job.name)]
    names = [job.name for job in suspects]
    if not suspects:
        return {"changed": [], "unsteady": []}
    print(f"\n{', '.join(names)} printed other numbers than alone; once more alone, to see why")
    directory.mkdir()
    try:
        again, _ = play_exclusive(tuple(suspects), directory)
    except PeerError as error:
        print(f"demo: {error}", file=sys.stderr)
        return {"changed": names, "unsteady": []}
    changed = [run.job.name for run in again.runs if run.printed() == alone.get(run.job.name, run.printed())]
    return {"changed": changed, "unsteady": [name for name in names if name not in changed]}


def result_json(exclusive: Arm, shared: Arm, before: Panel, after: Panel) -> dict[str, Any]:
    """All figures of both parts."""
    return {
        "device": f"CPU device, {cpu.title()}",
        "policy": POLICY,
        "load_average": os.getloadavg(),
        "exclusive": {**asdict(before), "weights": [run.weights() for run in exclusive.runs]},
        "shared": {**asdict(after), "weights": [run.weights() for run in shared.runs]},
        "ratios": [one.taken_s / other.taken_s for one, other in zip(before.rows, after.rows, strict=True)],
        "average_s": {"exclusive": before.average_s, "shared": after.average_s},
        "makespan_s": {"exclusive": before.makespan_s, "shared": after.makespan_s},
        "device_bytes": DEVICE_BYTES,
        "peaks_bytes": sum(run.peak_bytes or 0 for run in shared.runs),
        "explained": next((run.waited_for for run in shared.runs if run.waited_for), ""),
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
    peaks = result["peaks_bytes"] / MIB
    if result["peaks_bytes"] > result["device_bytes"]:
        print(f"Their peaks are {peaks:.0f} MiB together, on a device of {result['device_bytes'] / MIB:.0f} MiB.")
    if result["explained"]:
        said = textwrap.fill(result["explained"], 80, initial_indent="    ", subsequent_indent="    ")
        print(f"What `carpool explain` said of one that waited:\n{said}")
    if result["changed"]:
        print(f"BUG: {', '.join(result['changed'])} printed other losses or weights when shared; please report this.")
    elif result["unsteady"]:
        print(f"Alone, {', '.join(result['unsteady'])} did not print the same numbers twice: torch's first vector")
        print("operation is not always repeatable on a CPU. Under carpool it is, see")
        print("docs/design/0015-first-calls.md. All others printed the same, bit for bit.")
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
        print("\n2 of 2: the same again, each under `carpool run --warm`; shortest remaining time first")
        shared, after = play_shared(jobs, Path(directory))
        result = result_json(exclusive, shared, before, after)
        result |= tell_changes(exclusive, shared, Path(directory) / "again")
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    title = f"Who had the device: {len(jobs)} training programs, one CPU device of {DEVICE_BYTES // MIB} MiB"
    said = "Block: has the device. Line: waits or starts up. Figures: arrival to end, peak of memory"
    footnote = f"{said} (together {result['peaks_bytes'] / MIB:.0f} MiB). {result['device']}."
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
