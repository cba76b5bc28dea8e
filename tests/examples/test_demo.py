"""The demo in its smallest form, and every example program for two steps."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from carpool.bench import timeline
from carpool.bench.timeline import Panel, Row
from carpool.core.kernel.ids import JobId, LaneId
from carpool.core.node.effects import Effect, GrantLease, RevokeLease
from carpool.core.node.events import Event, JobExited, JobSubmitted, LeaseAsked, LeaseReturned, ProgressSeen, Tick
from carpool.core.node.model import JobSpec
from carpool.errors import PeerError
from carpool.journal.writer import Journal
from tests.e2e.alone import Alone
from tests.eager import without_compiler

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*_*.py"))
PATIENCE_SECONDS = 600  # the machine may be busy with something else

pytestmark = pytest.mark.timeout(PATIENCE_SECONDS)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary directory with a short name: a socket's path may have no more than 107 characters."""
    directory = Path(tempfile.mkdtemp(prefix="cpd-"))
    yield directory
    shutil.rmtree(directory)


# The demo of the shortest of its programs alone: both parts are reached, and little is computed.
SHORTEST = "import sys, demo; demo.QUICK = demo.QUICK[-1:]; sys.exit(demo.main())"
# What the programs of one arm print is falsified when they have ended.
FALSIFIED = """
import demo
real_play = demo.Arm.play

def play(arm, show):
    real_play(arm, show)
    for run in arm.runs:
        if run.output.suffix == ".{arm}" and run.output.parent.name != "again":
            run.output.write_text(run.printed().replace("loss=", "loss=1"))

demo.Arm.play = play
"""


def start_demo(scratch: Path, out: Path, *, code: str = "") -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    program = ["-c", code] if code else [str(EXAMPLES / "demo.py")]
    return subprocess.Popen(
        [sys.executable, *program, "--quick", "--out", str(out)],
        env=without_compiler({**environment, "TMPDIR": str(scratch), "COLUMNS": "80"}),
        cwd=EXAMPLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_in(directory: Path) -> list[str]:
    """What a demo with this temporary directory left: files (but torch's own cache) and processes."""
    found = [path.name for path in directory.iterdir() if not path.name.startswith("torchinductor_")]
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(directory) in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_text())
        except OSError:
            continue
    return found


def colours_of(picture: Path) -> int:
    from matplotlib import image

    pixels: Any = image.imread(picture)
    assert pixels.shape[1] >= 800
    return len({tuple(pixel) for pixel in pixels[::3, ::3].reshape(-1, pixels.shape[2]).tolist()})


@pytest.mark.slow
def test_demo_shows_a_table_a_picture_and_that_no_number_changed(scratch: Path, tmp_path: Path) -> None:
    demo = start_demo(scratch, tmp_path)
    output, errors = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, output + errors
    result = json.loads((tmp_path / "result.json").read_text())
    steady = [name not in result["unsteady"] for name in ("lstm", "vae", "mlp")]  # nearly always all
    verdict = "The numbers did not change" if all(steady) else "Alone, "
    table = output[output.index("program ") : output.index(verdict)].splitlines()
    for name in ("lstm", "vae", "mlp", "average", "all ended after"):
        assert any(re.match(rf" {name} .*\d s +\d+\.\d s +\d+\.\d\d x", line) for line in table), output
    assert all(len(line) <= 80 for line in table)
    assert "CPU device" in output
    assert ("times as soon" in output) != ("cannot be compared" in output)
    assert output.endswith("    carpool run -- python your_script.py\n")
    assert ". .venv/bin/activate" in output, "its Python has torch"
    assert not errors
    assert left_in(scratch) == []

    assert result["changed"] == []
    weights = zip(result["exclusive"]["weights"], result["shared"]["weights"], strict=True)
    assert [alone == shared for alone, shared in weights] == steady
    assert all(re.fullmatch("[0-9a-f]{40}", weights) for weights in result["shared"]["weights"])
    assert result["ratio_of_averages"] > 0
    for row in result["shared"]["rows"]:
        assert row["turns"], f"{row['name']} had no turn"
        assert all(row["arrived_s"] <= start <= end <= row["ended_s"] for start, end in row["turns"])
    assert colours_of(tmp_path / "timeline.png") > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "exit_code", "says"),
    [
        ("exclusive", 0, "Alone, mlp did not print the same numbers twice"),
        ("shared", 1, "BUG: mlp printed other losses or weights when shared"),
    ],
)
def test_a_program_that_printed_other_numbers_is_asked_again_alone_before_sharing_is_blamed(
    arm: str, exit_code: int, says: str, scratch: Path, tmp_path: Path
) -> None:
    demo = start_demo(scratch, tmp_path, code=FALSIFIED.replace("{arm}", arm) + SHORTEST)
    output, errors = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == exit_code, output + errors
    assert "mlp printed other numbers than alone; once more alone, to see why" in output
    assert says in output
    assert left_in(scratch) == []


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["1 of 2", "2 of 2"])
def test_ctrl_c_leaves_no_process_and_no_file(arm: str, scratch: Path, tmp_path: Path) -> None:
    demo = start_demo(scratch, tmp_path, code=SHORTEST)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith(arm):
            break
    demo.stdout.readline()  # its first line: the first program was started
    time.sleep(1.0)
    demo.send_signal(signal.SIGINT)
    output, errors = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 130, output + errors
    assert errors.strip() == "demo: stopped; its programs and its daemon have ended"
    assert left_in(scratch) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs_by_itself(program: str, alone: Alone) -> None:
    output = alone.output(str(EXAMPLES / program), "--steps", "2").decode()
    assert re.search(r"^done steps=2 loss=\S+ weights=[0-9a-f]{40}$", output, re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_does_not_know_carpool(program: str) -> None:
    assert "carpool" not in (EXAMPLES / program).read_text()
    assert program in (EXAMPLES / "README.md").read_text()


def test_turns_are_read_from_the_last_run_of_a_journal(tmp_path: Path) -> None:
    gpt, second = JobId("gpt-1"), 1_000_000_000
    turn = GrantLease(job=gpt, lane=LaneId("lane-1"), lane_bytes=1, is_shared=False)
    back = LeaseReturned(job=gpt, wants_more=True, steps=1)
    seen = ProgressSeen(job=gpt, steps=1, cpu_ns=0, live_bytes=0)
    lives: tuple[tuple[str, list[tuple[int, Event, list[Effect]]]], ...] = (
        ("old", []),
        (
            "gpt",
            [
                (11, LeaseAsked(job=gpt), [turn]),
                (12, seen, []),
                (13, back, []),
                (14, Tick(), [turn]),
                (15, Tick(), [RevokeLease(job=gpt, reason="it rests")]),
                (16, back, []),
                (17, Tick(), [turn]),
                (19, JobExited(job=gpt, code=0), []),
            ],
        ),
    )
    for name, calls in lives:
        written = Journal(tmp_path / "journal.db", version="test", config="{}")
        written.note(10 * second, JobSubmitted(job=gpt, spec=JobSpec(name=name)), [])
        for at, event, effects in calls:
            written.note(at * second, event, effects)
        written.close()
    turns = timeline.read_turns(tmp_path / "journal.db", since_ns=10 * second)
    assert turns == {"gpt": [(1.0, 3.0), (4.0, 5.0), (7.0, 9.0)]}


def test_a_journal_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        timeline.read_turns(tmp_path / "journal.db", since_ns=0)


def test_table_compares_averages_and_ends() -> None:
    first = Row(name="gpt", steps=9, arrived_s=0.0, ended_s=20.0, turns=((0.0, 20.0),))
    before = Panel(title="a", rows=(first, Row(name="vae", steps=9, arrived_s=1.0, ended_s=29.0, turns=())))
    after = Panel(
        title="b", rows=(first, Row(name="vae", steps=9, arrived_s=1.0, ended_s=5.0, turns=(), peak_bytes=7 << 20))
    )
    text = io.StringIO()
    Console(file=text, width=80).print(timeline.make_table(before, after))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "program steps memory arrived the other shared speed-up" in lines
    assert "vae 9 7 MiB 1.0 s 28.0 s 4.0 s 7.00 x" in lines
    assert "average 24.0 s 12.0 s 2.00 x" in lines
    assert "all ended after 7 MiB 29.0 s 20.0 s 1.45 x" in lines
