"""Written to a file, continued in a new process: both halves together are the undisturbed run, or it is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import PROGRAMS, PYTHON, Ended, Node, Started, kill, wait_until, with_environment
from tests.e2e.scripts import write
from tests.eager import with_compiler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HELD = ["--steps", "120", "--width", "200", "--pause", "0.02"]
REPLAYED = ["replayed.py", "--epochs", "8", "--pause", "0.02"]
WHOLE = ["held.py", "groups", *HELD]  # with the compiler, which an optimizer loads after the recording has begun
CONTINUED = [
    ["held.py", "sgd", *HELD],
    ["held.py", "half", *HELD],
    WHOLE,  # the last of its batch to begin, and to be stopped
    ["held.py", "accumulation", *HELD],
    ["held.py", "gan", *HELD],
    REPLAYED,
    [*REPLAYED, "--workers", "2"],
]
# Programs, and after how many lines they are written: two of them keep a forward pass nearly always.
REINFORCEMENT = {
    "policy_gradient": (["--rounds", "16"], 60),
    "q_learning": (["--rounds", "30"], 12),
    "proximal": (["--rounds", "40"], 6),
}


@pytest.fixture
def elsewhere() -> Iterator[Node]:
    """Another node, as far from the first as one machine allows."""
    made = Node()
    yield made
    made.close()


def torch_of(node: Node, program: list[str]) -> AbstractContextManager[None]:
    return with_environment(node, with_compiler(node.environment) if program is WHOLE else {})


def order(node: Node, name: str, file: Path, *, stop: bool = False) -> dict[str, Any]:
    """As the command does it, but without the start of a Python, in which a short job would end."""
    told = node.client.call("checkpoint", job=name, file=str(file), stop=stop)
    path = Path(str(told["directory"])) / "checkpoint.answer"

    def look() -> dict[str, Any] | None:
        if not path.exists():
            return None
        answer: dict[str, Any] = json.loads(path.read_bytes())
        return answer if answer["number"] == told["number"] else None

    return wait_until(look, f"{name} is written or refused")


def record(node: Node, name: str, *program: str) -> Started:
    return node.run(*program, options=["--name", name, "--checkpointable"])


def as_they_come(jobs: dict[str, Started], *, lines: int) -> Iterator[str]:
    """Those that have written so many lines, first come, first named: few start at once, and short ones soon end."""
    waiting = dict(jobs)

    def look() -> str | None:
        return next((name for name, job in waiting.items() if len(job.lines) >= lines), None)

    while waiting:
        came = wait_until(look, f"{lines} lines of one of {len(waiting)}")
        del waiting[came]
        yield came


def go_on(node: Node, file: Path, *program: str, how: str = "") -> Started:
    return node.run(*program, options=["--from", str(file), *([how] if how else [])])


def go_on_in(node: Node, tmp_path: Path, script: str, place: Path) -> Started:
    return node.run(script, options=["--name", "again", "--from", str(tmp_path / "file")], cwd=place)


def refused(ended: Ended, reason: str) -> None:
    assert (ended.code, ended.out) == (1, b""), ended
    assert reason in ended.err, ended.err


@pytest.mark.parametrize(
    "batch", [CONTINUED[:3], CONTINUED[3:]], ids=["plain, half, adam", "accumulation, gan, loader, workers"]
)
def test_both_halves_are_the_undisturbed_run(
    node: Node, elsewhere: Node, alone: Alone, tmp_path: Path, batch: list[list[str]]
) -> None:
    """Stopped in the middle; continued under another daemon, from a copy of the script in another directory."""
    node.start(quantum="20ms")
    elsewhere.start(quantum="20ms")
    shutil.copytree(PROGRAMS, tmp_path / "copy")
    programs = {str(number): program for number, program in enumerate(batch)}
    jobs, halves, others = dict[str, Started](), dict[str, bytes](), dict[str, Started]()
    for name, program in programs.items():
        with torch_of(node, program):
            jobs[name] = record(node, name, *program)
    for name in as_they_come(jobs, lines=30):
        job = jobs[name]
        answer = order(node, name, tmp_path / name, stop=True)
        assert answer["reason"] == ""
        lines = len(job.lines)
        time.sleep(0.1)
        assert len(job.lines) == lines, "it makes no further step"
        node.client.call("cancel", job=name)
        halves[name] = job.wait(seconds=300).out
    for name, program in programs.items():
        with torch_of(elsewhere, program):
            options = ["--from", str(tmp_path / name)]
            others[name] = elsewhere.run(*program, options=options, cwd=tmp_path / "copy")
    for name, program in programs.items():
        ended = others[name].wait(seconds=300)
        assert ended.code == 0, ended.err
        assert "last step verified" in ended.err
        assert halves[name] and ended.out
        assert halves[name] + ended.out == alone.output(*program)


@pytest.mark.parametrize("name", REINFORCEMENT)
def test_loops_of_reinforcement_learning_go_on_and_can_be_written_again(
    node: Node, alone: Alone, tmp_path: Path, name: str
) -> None:
    """The steps in their environments follow what is read; a forward pass that waits for its backward pass, or never
    has one, is kept."""
    node.start(quantum="20ms")
    rounds, lines = REINFORCEMENT[name]
    program = ["reinforcement.py", name, *rounds]
    paused = [*program, "--pause", "0.03"]
    first = record(node, "first", *paused)
    first.wait_lines(lines)
    assert order(node, "first", tmp_path / "one", stop=True)["reason"] == ""
    node.client.call("cancel", job="first")
    second = node.run(*paused, options=["--name", "second", "--from", str(tmp_path / "one")])
    second.wait_lines(2)
    assert order(node, "second", tmp_path / "two")["reason"] == ""
    third = go_on(node, tmp_path / "two", *paused)
    whole, half = alone.output(*program), first.wait().out
    for job in (second, third):
        ended = job.wait()
        assert (ended.code, "last step verified" in ended.err) == (0, True), ended.err
        assert ended.out and whole.endswith(ended.out)
    assert half and half + second.out == whole


def test_a_job_goes_on_after_its_checkpoint_and_its_continuation_can_be_written_again(
    node: Node, tmp_path: Path
) -> None:
    """With random numbers that no seed was given for."""
    node.start()
    program = [*REPLAYED, "--unseeded"]
    first = record(node, "first", *program)
    first.wait_lines(20)
    done = node.carpool("checkpoint", "--json", "first", str(tmp_path / "one"))
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["route"], facts["bytes"]) == ("replay", (tmp_path / "one").stat().st_size)
    second = node.run(*program, options=["--name", "second", "--from", str(tmp_path / "one")])
    second.wait_lines(10)
    assert order(node, "second", tmp_path / "two")["reason"] == ""
    third = go_on(node, tmp_path / "two", *program, how="--recompute")
    whole = first.wait(seconds=300).out
    for job in (second, third):
        ended = job.wait(seconds=300)
        assert (ended.code, bool(ended.out)) == (0, True), ended.err
        assert whole.endswith(ended.out)
    assert len(second.out) > len(third.out)


def test_a_job_is_written_after_it_was_parked_and_parked_as_well_after_it_was_written(
    node: Node, tmp_path: Path
) -> None:
    node.start()
    program = ["held.py", "groups", "--steps", "100000", "--width", "200", "--pause", "0.02"]
    job = record(node, "a", *program)
    job.wait_lines(5)
    before = park_and_bring_back(node, "a")
    assert order(node, "a", tmp_path / "file")["reason"] == ""
    assert park_and_bring_back(node, "a") >= 0.9 * before
    other = go_on(node, tmp_path / "file", *program)
    other.wait_lines(3)
    lines = other.lines[:3]
    first = job.lines.index(lines[0])
    job.wait_lines(first + 3)
    assert job.lines[first : first + 3] == lines


def park_and_bring_back(node: Node, name: str) -> int:
    """How many bytes left the device."""
    node.client.call("suspend", job=name)
    node.wait_state(name, "parked")
    moved = int(node.job(name)["parked_bytes"])
    node.client.call("resume", job=name)
    node.wait_state(name, "running")
    return moved


def test_another_program_other_words_and_a_damaged_file_are_refused(node: Node, tmp_path: Path) -> None:
    node.start()
    program = ["held.py", "sgd", "--steps", "100000", "--width", "64", "--pause", "0.02"]
    script = tmp_path / "held.py"
    shutil.copy(PROGRAMS / "held.py", script)
    job = node.run(*program, options=["--name", "a", "--checkpointable"], cwd=tmp_path)
    job.wait_lines(5)
    file = tmp_path / "file"
    assert order(node, "a", file)["reason"] == ""
    done = go_on(node, file, *program, "--pause", "0.1").wait()
    assert (done.code, "is of another program: python held.py sgd --steps 100000" in done.err) == (2, True), done.err
    cut = tmp_path / "cut"
    cut.write_bytes(file.read_bytes()[:-100])
    refused(go_on(node, cut, *program).wait(), "is damaged")
    refused(go_on(node, script, *program).wait(), "is no checkpoint of carpool")
    missing = go_on(node, tmp_path / "none", *program).wait()
    assert (missing.code, "--from: there is no file " in missing.err) == (2, True), missing.err
    script.write_text(script.read_text().replace("lr=0.01", "lr=0.02"))
    refused(
        node.run(*program, options=["--from", str(file)], cwd=tmp_path).wait(),
        f"held.py was changed since {file} was written",
    )
    plain = node.run(*program, options=["--name", "plain"])
    plain.wait_lines(5)
    done = node.carpool("checkpoint", "plain", str(file), "--force")
    assert (done.code, "start it with: carpool run --checkpointable" in done.err) == (1, True), done.err
    answer = order(node, "a", tmp_path / "no" / "where")
    assert "No such file or directory" in answer["reason"]
    job.wait_lines(len(job.lines) + 5)


def test_x3_what_could_not_be_replayed_is_refused_when_it_should_be_written(node: Node, tmp_path: Path) -> None:
    node.start(quantum="20ms")
    table = tmp_path / "table"
    table.write_bytes(bytes(100))
    jobs = {
        "it changed": record(node, "changes", write(tmp_path, "changes", CHANGES), str(table)),
        "its thread watcher": record(node, "threads", write(tmp_path, "threads", THREADS)),
    }
    jobs["it changed"].wait_lines(3)
    said = f"it changed {table}, which was there before it"
    assert jobs["it changed"].err.count(f"can no longer be written to a file: {said}") == 1, "said when it arose"
    assert said in node.carpool("explain", "changes").out.decode()
    done = node.carpool("checkpoint", "changes", str(tmp_path / "changes"))
    assert (done.code, said in done.err) == (1, True), done.err
    jobs.pop("it changed").wait_lines(4)
    for (reason, job), name in zip(jobs.items(), ("threads",), strict=True):
        job.wait_lines(3)
        answer = order(node, name, tmp_path / name)
        assert answer["reason"].startswith(reason), answer
        assert not (tmp_path / name).exists()
        job.wait_lines(len(job.lines) + 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "no half file is left"


def files_in(directory: Path) -> dict[str, bytes]:
    """Names and contents; a name's numbers are those of a time or of a process."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {re.sub(r"\d{6,}", "#", str(path.relative_to(directory))): path.read_bytes() for path in found}


def test_x4_x5_files_that_a_program_writes_are_those_of_an_undisturbed_run(node: Node, tmp_path: Path) -> None:
    """Those it opened, appended to, moved and removed; weights; names with a time, and by what is there already."""
    script = write(tmp_path, "trainer", TRAINER)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for place in (whole, halves):
        place.mkdir()
        (place / "all.log").write_text("of yesterday\n")
        (place / "args.json").write_text("of yesterday")
    (whole / "go").touch()
    undisturbed = subprocess.run(
        [PYTHON, script], cwd=whole, env=node.environment, capture_output=True, timeout=200, check=True
    )
    node.start()
    options = ["--name", "a", "--checkpointable"]
    job = node.run(script, options=options, cwd=halves)
    job.wait_lines(30)
    assert order(node, "a", tmp_path / "file")["reason"] == ""
    still = node.run(script, options=["--from", str(tmp_path / "file")], cwd=halves).wait()
    refused(still, "the recorded job still runs, and writes to the same files; cancel it first")
    (halves / "go").touch()
    assert order(node, "a", tmp_path / "file", stop=True)["reason"] == ""
    node.client.call("cancel", job="a")
    first = job.wait()
    before = files_in(halves)
    assert "can no longer be written" not in first.err

    (halves / "data").write_text("other")
    refused(go_on_in(node, tmp_path, script, halves).wait(), "cannot go on from")
    (halves / "data").unlink()
    assert files_in(halves) == before, "a refused replay leaves every file as it was"

    killed = go_on_in(node, tmp_path, script, halves)
    wait_until(lambda: list(tmp_path.glob("file.*.aside/made")), "its files are set aside")
    kill(node.program_pid("again"))
    assert killed.wait().code == 137

    second = go_on_in(node, tmp_path, script, halves).wait()
    assert second.code == 0, second.err
    assert first.out + second.out == undisturbed.stdout
    assert files_in(halves) == files_in(whole)
    assert not list(tmp_path.glob("*.aside"))


def test_a_job_of_several_processes_is_refused_at_once_with_that_reason(node: Node, tmp_path: Path) -> None:
    """A launcher imports torch and never makes a step: nobody has to wait for one."""
    node.start()
    job = record(node, "several", write(tmp_path, "several", SEVERAL))
    job.wait_lines(1)
    done = node.carpool("checkpoint", "several", str(tmp_path / "file"))
    assert (done.code, "only a job of one process can be written" in done.err) == (1, True), done.err
    assert "only a job of one process can be written" in node.carpool("explain", "several").out.decode()
    node.client.call("cancel", job="several")


def test_x2_a_replay_that_does_something_else_is_ended_without_a_word_of_the_program(
    node: Node, tmp_path: Path
) -> None:
    """The script decides by the clock: nothing that carpool could replay."""
    node.start()
    script = write(tmp_path, "moody", MOODY)
    job = record(node, "moody", script)
    job.wait_lines(10)
    assert order(node, "moody", tmp_path / "file", stop=True)["reason"] == ""
    for how in ("", "--recompute"):
        ended = go_on(node, tmp_path / "file", script, how=how).wait()
        refused(ended, "cannot go on from")
        assert "after the replay and was" in ended.err or "where the recorded run did something else" in ended.err


@pytest.mark.parametrize("name", ["closure", "window"])
def test_steps_that_cannot_be_skipped_are_computed_again(node: Node, alone: Alone, tmp_path: Path, name: str) -> None:
    node.start()
    text, reason = UNSKIPPABLE[name]
    script = write(tmp_path, name, text)
    job = record(node, name, script)
    job.wait_lines(5)
    assert order(node, name, tmp_path / "file")["reason"] == ""
    refused(go_on(node, tmp_path / "file", script).wait(), f"{reason}); use --recompute")
    ended = go_on(node, tmp_path / "file", script, how="--recompute").wait()
    assert ended.code == 0, ended.err
    whole = alone.output(script)
    assert job.wait().out == whole
    assert ended.out and whole.endswith(ended.out)


LOOP = """
import sys, threading, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(50, 50)
optimizer = torch.optim.Adam(model.parameters())
{before}
for step in range({steps}):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 50)).square().mean()
    loss.backward()
    optimizer.step()
    {inside}
    time.sleep(0.01)
    print(step, loss.item(), flush=True)
"""
SEVERAL = """
import subprocess, sys, torch
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", flush=True)
child.wait()
"""
CHANGES = LOOP.format(steps=10**6, before="table = open(sys.argv[1], 'r+b')", inside="table.write(b'x')")
TRAINER = """
import json, logging, os, tempfile, time, torch
from pathlib import Path
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
number = len(list(Path().glob("out/version_*")))
run = Path("out") / f"version_{number}"
run.mkdir(parents=True)
(run / "probe").write_text("")
(run / "probe").unlink()
Path("args.json").write_text(json.dumps({"data": Path("data").exists()}))
events = open(run / f"events.{time.time_ns()}.{os.getpid():06}", "w")
logging.basicConfig(filename="all.log", format="%(message)s", level=logging.INFO)
is_other = Path("data").exists()
model = nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(120):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 50)).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), file=events)
    logging.info("step %d: %r", step, loss.item())
    if step % 10 == 9:
        torch.save(model.state_dict(), run / "draft.pt")
        os.replace(run / "draft.pt", run / f"{step}.pt")
        if step > 30:
            (run / f"{step - 30}.pt").unlink()
        torch.save(model.state_dict(), run / "last.pt")
        last = torch.load(run / "last.pt")
        (run / "state.json").write_text(json.dumps([step, loss.item(), sorted(last)]))
    while step == 60 and not Path("go").exists():
        time.sleep(0.01)
    time.sleep(0.02)
    print(step, loss.item(), flush=True)
"""
THREADS = LOOP.format(
    steps=10**6,
    before="threading.Thread(target=lambda: time.sleep(600), name='watcher', daemon=True).start()",
    inside="",
)
MOODY = LOOP.format(steps=10**6, before="moods = 0", inside="moods += time.time_ns() % 1_000_003")
CLOSURE = """
import time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model, data = nn.Linear(20, 1), torch.randn(64, 20)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
    loss.backward()
    return loss
for step in range(120):
    print(step, optimizer.step(closure).item(), flush=True)
    time.sleep(0.02)
"""
WINDOW = """
import time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(20, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights, mean = model.weight.detach().numpy(), 0.0
for step in range(120):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 20)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    mean = 0.9 * mean + 0.1 * float(abs(weights).mean())
    print(step, loss.item(), mean, flush=True)
    time.sleep(0.02)
"""
UNSKIPPABLE = {
    "closure": (CLOSURE, "its optimizer's step takes a closure"),
    "window": (WINDOW, "it keeps an array of numpy's that shows its weights"),
}
