"""Programs that run already become jobs: `carpool.join()` (X10 to X15)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.joins import join, stop
from tests.e2e.node import PROGRAMS, PYTHON, Node, Started, is_alive, kill, wait_until

pytestmark = pytest.mark.timeout(240)
TWO_AT_ONCE = "job = carpool.join(sys.argv[1]); print(job.id, flush=True); turns('stop')"

# Has most of a small device and takes no turn, so that nobody learns that it needs less.
HOLDS = """
carpool.join('first', memory='200MiB', park=False)
print('in', flush=True)
while not os.path.exists('stop'):
    time.sleep(0.01)
"""

# Trains before and after it joins; prints each loss, so that they can be compared with those of a run alone.
TRAINS = """
import sys
if "late" in sys.argv:
    import torch
if "alone" not in sys.argv:
    import carpool
    carpool.join("trains")
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(64, 32)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
"""


def stay_alone(node: Node, text: str) -> list[str]:
    done = Started(node, [PYTHON, "-c", text, "alone"], cwd=PROGRAMS).wait()
    assert done.code == 0, done.err
    return done.lines


def test_two_programs_that_join_take_turns(node: Node) -> None:
    node.start()
    programs = [join(node, TWO_AT_ONCE, name) for name in ("one", "two")]
    for name in ("one", "two"):
        node.wait_steps(name, 30)
    wait_until(lambda: min(node.turns("one"), node.turns("two")) >= 3, "both had several turns")
    stop(node)
    for name, program in zip(("one", "two"), programs, strict=True):
        assert program.wait().code == 0
        assert "exit code 0" in node.wait_state(name, "finished")["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["early", "late"])
def test_numbers_are_the_same_whether_torch_was_imported_before_it_joined_or_after(node: Node, when: str) -> None:
    expected = stay_alone(node, TRAINS)
    node.start()
    other = join(node, TWO_AT_ONCE, "other")
    node.wait_steps("other", 5)
    program = Started(node, [PYTHON, "-c", TRAINS, when], cwd=PROGRAMS)
    done = program.wait()
    assert (done.code, done.lines) == (0, expected), done.err
    job = node.wait_state("trains", "finished")
    assert job["steps"] == 60
    stop(node)
    assert other.wait().code == 0


def test_x11_a_process_that_joins_again_stays_in_its_job(node: Node) -> None:
    node.start()
    program = join(node, "print(carpool.join('a').id, carpool.join().id, carpool.join('b').id)")
    done = program.wait()
    ids = done.lines[0].split()
    assert len(set(ids)) == 1 and ids[0].startswith("a-")
    assert done.err.count("in job a-1 already") == 1
    assert node.find("b") is None


def test_a_notebook_joins_by_its_extension(node: Node) -> None:
    """What `%load_ext carpool` does."""
    text = "import carpool\ncarpool.load_ipython_extension(None)\nprint(os.environ.get('CARPOOL_JOB'))"
    done = join(node, text).wait()
    assert (done.code, done.lines) == (0, ["None"]) and "runs unmanaged" in done.err
    node.start()
    assert join(node, text).wait().lines == [job["id"] for job in node.ps()["jobs"]] != []


def test_x11_inside_a_job_join_returns_that_job(node: Node) -> None:
    node.start()
    done = node.run(PYTHON, "-c", "import carpool; print(carpool.join().id)", options=["--name", "outer"]).wait()
    assert done.lines == [node.job("outer")["id"]]
    assert len(node.ps()["jobs"]) == 1


def test_without_a_daemon_joining_is_an_error_or_the_program_goes_on(node: Node) -> None:
    done = join(node, "carpool.join('a')").wait()
    assert done.code == 1
    assert "no daemon answers at" in done.err and "carpool daemon start" in done.err
    done = join(node, "print(carpool.join('a', required=False))").wait()
    assert (done.code, done.lines) == (0, ["None"])
    assert done.err.count("\n") == 1 and "runs unmanaged" in done.err


def test_an_option_that_is_wrong_is_said_and_joins_nothing(node: Node) -> None:
    node.start()
    for call, said in (
        ("carpool.join(memory='much')", "'much' is not a size"),
        ("carpool.join(colour='red')", "has no option colour"),
        ("carpool.join('a/b')", "has a slash"),
        ("carpool.join(weight='heavy')", "which is no number"),
        ("carpool.join(device='gpu7')", "gpu7"),
    ):
        done = join(node, f"try:\n    {call}\nexcept CarpoolError as error:\n    print(error)").wait()
        assert said in done.out.decode(), (call, done)
    assert node.ps(ended=False)["jobs"] == []


def test_x11_a_forked_child_takes_turns_of_the_job_and_x12_the_job_ends_with_it(node: Node) -> None:
    node.start()
    text = """
carpool.join("forks")
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    turns("stop")
    os._exit(0)
turns("first")
sys.exit(3)
"""
    program = join(node, text)
    program.wait_line("child")
    child = int(program.lines[-1].split()[1])
    wait_until(lambda: child in node.job("forks")["pids"], "the child takes turns")
    stop(node, "first")
    assert program.process.wait(60) == 3
    found = wait_until(lambda: (job := node.job("forks"))["orphans"] and job, "the first process has ended")
    assert found["orphans"] == [child]
    steps = found["steps"]
    node.wait_steps("forks", steps + 5)
    stop(node)
    ended = node.wait_state("forks", "failed")
    assert "exit code 3" in ended["reason"]


def test_x12_a_child_that_was_forked_and_takes_no_turns_keeps_the_job(node: Node) -> None:
    node.start()
    text = """
carpool.join("forks")
with carpool.turn():
    pass
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    while not os.path.exists("stop"):
        time.sleep(0.01)
    os._exit(0)
"""
    program = join(node, text)
    assert program.process.wait(60) == 0
    child = int(program.lines[-1].split()[1])
    found = wait_until(lambda: (job := node.job("forks"))["orphans"] and job, "the first process has ended")
    assert found["orphans"] == [child]
    stop(node)
    node.wait_state("forks", "finished")


def test_x11_after_exec_it_is_the_same_job_with_the_meter(node: Node) -> None:
    node.start()
    text = """
job = carpool.join("execs")
again = "import carpool, time, os\\nheld = bytearray(64 << 20)\\nwith carpool.turn(): pass\\n"
again += "print(carpool.join().id, os.getpid(), flush=True)\\nwhile not os.path.exists('stop'): time.sleep(0.01)"
print(job.id, os.getpid(), flush=True)
os.execv(sys.executable, [sys.executable, "-c", again])
"""
    program = join(node, text)
    program.wait_lines(2)
    assert program.lines[0] == program.lines[1]
    wait_until(lambda: node.job("execs")["live_bytes"] >= 64 << 20, "its bytes are counted")
    stop(node)
    node.wait_state("execs", "finished")


def test_the_exit_code_is_what_the_kernel_says(node: Node) -> None:
    node.start()
    assert join(node, "carpool.join('seven'); sys.exit(7)").wait().code == 7
    assert "exit code 7" in node.wait_state("seven", "failed")["reason"]
    program = join(node, "carpool.join('killed'); print('in', flush=True); turns('never')")
    program.wait_line("in")
    kill(program.pid)
    program.process.wait(60)
    assert "signal 9" in node.wait_state("killed", "failed")["reason"]


def test_cancel_ends_a_joined_job_with_all_its_processes(node: Node) -> None:
    node.start()
    program = join(node, "carpool.join('c')\nif os.fork() == 0: pass\nprint(os.getpid(), flush=True)\nturns('never')")
    program.wait_lines(2)
    pids = [int(line) for line in program.lines]
    wait_until(lambda: set(pids) <= set(node.job("c")["pids"]), "both take turns")
    assert node.carpool("cancel", "c").code == 0
    node.wait_state("c", "cancelled")
    assert program.process.wait(60) == -signal.SIGTERM
    wait_until(lambda: not any(map(is_alive, pids)), "both have ended")


def test_x14_the_next_daemon_takes_a_joined_job_back(node: Node) -> None:
    node.start()
    program = join(node, "print(carpool.join('stays').id, flush=True); turns('stop')")
    program.wait_line("stays-1")
    node.wait_steps("stays", 5)
    before = node.job("stays")
    node.kill_daemon()
    node.start()
    wait_until(lambda: node.find("stays"), "it is back")
    node.wait_steps("stays", before["steps"] + 20)
    assert node.job("stays")["id"] == before["id"]
    stop(node)
    assert program.wait().code == 0
    assert "exit code 0" in node.wait_state("stays", "finished")["reason"]


def test_x14_a_fork_whose_parent_ended_is_found_by_the_next_daemon(node: Node) -> None:
    node.start()
    text = """
carpool.join("forks")
with carpool.turn():
    pass
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    turns("stop")
    os._exit(0)
while not os.path.exists("first"):
    time.sleep(0.01)
"""
    program = join(node, text)
    program.wait_line("child")
    node.kill_daemon()
    stop(node, "first")
    assert program.process.wait(60) == 0
    node.start()
    child = int(program.lines[-1].split()[1])
    found = wait_until(lambda: (job := node.find("forks")) and job["orphans"] and job, "its child is found")
    assert found["orphans"] == [child]
    stop(node)
    node.wait_state("forks", "finished")


def test_a_program_waits_until_there_is_room_and_x15_one_that_goes_away_does_not_join(node: Node) -> None:
    node.start(device="cpu:256MiB")
    first = join(node, HOLDS)
    first.wait_line("in")
    late = join(node, "try:\n    carpool.join('late', memory='200MiB', wait=2)\nexcept CarpoolError as e: print(e)")
    assert "it was not let in within " in late.wait().out.decode()
    wait_until(lambda: node.state("late") == "cancelled", "it left the queue")
    second = join(node, "carpool.join('second', memory='200MiB'); print('in', flush=True)")
    node.wait_state("second", "queued")
    wait_until(lambda: "second-3" in second.err, "it is said why it waits")
    third = join(node, "carpool.join('third', memory='200MiB')")
    node.wait_state("third", "queued")
    kill(third.pid)
    node.wait_state("third", "cancelled")
    stop(node)
    first.wait()
    assert second.wait().lines == ["in"]


def test_a_daemon_that_dies_while_a_program_waits_is_followed_by_the_next(node: Node) -> None:
    node.start(device="cpu:256MiB")
    first = join(node, HOLDS)
    first.wait_line("in")
    second = join(node, "carpool.join('second', memory='200MiB'); print('in', flush=True)")
    node.wait_state("second", "queued")
    node.kill_daemon()
    node.start(device="cpu:256MiB")
    node.wait_state("second", "queued")
    stop(node)
    first.wait()
    assert second.wait().lines == ["in"]


@pytest.mark.slow
def test_a_joined_job_can_be_suspended_and_resumed(node: Node) -> None:
    node.start()
    program = Started(node, [PYTHON, "-c", TRAINS.replace("range(60)", "range(100000)"), "late"], cwd=PROGRAMS)
    node.wait_steps("trains", 20)
    assert node.carpool("suspend", "trains").code == 0
    node.wait_state("trains", "parked")
    steps = node.job("trains")["steps"]
    assert node.carpool("resume", "trains").code == 0
    node.wait_steps("trains", steps + 20)
    assert node.carpool("cancel", "trains").code == 0
    program.process.wait(60)
    node.wait_state("trains", "cancelled")


@pytest.mark.slow
def test_a_python_that_is_told_to_joins_when_it_imports_torch(node: Node) -> None:
    """CARPOOL_JOIN, which a container or a kernel specification sets; helpers without torch are no jobs."""
    node.start()
    node.environment |= {"CARPOOL_JOIN": "1", "CARPOOL_NAME": "auto", "PYTHONPATH": _inject()}
    assert Started(node, [PYTHON, "-c", "print(1)"], cwd=PROGRAMS).wait().code == 0
    assert node.ps()["jobs"] == []
    alone = "import sys; sys.argv += ['alone']\n" + TRAINS
    done = Started(node, [PYTHON, "-c", alone], cwd=PROGRAMS).wait()
    assert done.code == 0, done.err
    job = node.wait_state("auto", "finished")
    assert job["steps"] == 60


def test_joining_costs_a_program_nothing_to_offer() -> None:
    """`import carpool` loads nothing, with join too."""
    import subprocess

    code = "import sys, carpool; print([name for name in sys.modules if name.startswith('carpool.')])"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def _inject() -> str:
    import carpool

    return str(Path(carpool.__file__).parent / "agent" / "inject")


def test_what_joined_is_shown_as_json_with_its_processes(node: Node) -> None:
    node.start()
    program = join(node, "carpool.join('shown'); print('in', flush=True); turns('stop')")
    program.wait_line("in")
    node.wait_steps("shown", 3)
    done = node.carpool("ps", "--json")
    found = json.loads(done.out)["jobs"][0]
    assert found["pids"] == [program.pid] and found["argv"][1] == "-c"
    stop(node)
    program.wait()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="root makes the daemon a namespace")
def test_x12_a_process_that_the_daemon_does_not_see_is_in_its_job_as_long_as_its_connection(node: Node) -> None:
    """The daemon is in a container itself, and the program is not: only the connection tells that it lives."""
    for directory in (node.places.run, node.places.state, node.places.jobs):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = json.dumps({"policy": "fair", "device": "cpu:4GiB"})
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    Started(node, [*apart, PYTHON, "-m", "carpool.daemon.main", config])
    wait_until(node.client.is_running, "a daemon that answers")
    seen = join(node, "carpool.join('unseen'); print('in', flush=True); turns('stop')")
    node.wait_steps("unseen", 20)
    assert node.job("unseen")["pids"] == []
    lost = join(node, "carpool.join('lost'); print('in', flush=True); turns('never')")
    node.wait_steps("lost", 5)
    kill(lost.pid)
    node.wait_state("lost", "finished", "failed")
    assert node.state("unseen") in ("running", "waiting", "profiling", "idle")
    stop(node)
    assert seen.wait().code == 0
    node.wait_state("unseen", "finished")
    assert node.ps(ended=False)["devices"][0]["promised_bytes"] == 0
