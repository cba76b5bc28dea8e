"""Programs in real containers take turns with those outside: other namespaces, other paths, another Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from carpool.wire.page import FLAG_BELL
from tests.e2e.boxes import BOXES, PACKAGES_INSIDE, PYTHON_INSIDE, Podman, box, words_for
from tests.e2e.joins import join, stop
from tests.e2e.node import Node, Started, kill, wait_until

pytestmark = pytest.mark.timeout(300)
ENGINES = list(BOXES)

# Plain turns in a container; it says who it is there and what it may write.
TURNS = """
import os, sys, time
import carpool
held = bytearray(64 << 20)
def may_write(path):
    try:
        open(os.path.join(path, "tried"), "w").close()
        os.unlink(os.path.join(path, "tried"))
        return True
    except OSError:
        return False
print(os.getpid(), os.environ["CARPOOL_JOB"], os.listdir("/run/carpool/jobs"), flush=True)
page = os.path.dirname(os.environ["CARPOOL_PAGE"])
others = ("/run/carpool", "/run/carpool/bells", "/opt/carpool/carpool", "/usr", "/job")
print(may_write(page) and not any(map(may_write, others)), flush=True)
end = time.monotonic() + 200
while not os.path.exists("/job/stop") and time.monotonic() < end:
    with carpool.turn():
        sum(range(20000))
    time.sleep(0.002)
"""
TRAINS = """
import os, sys
sys.path.append(sys.argv[1])
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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_in_a_container_takes_turns_with_one_outside(node: Node, engine: str) -> None:
    made = box(engine, node)
    node.start()
    outside = join(node, "carpool.join('outside'); turns('stop')")
    node.wait_steps("outside", 5)
    inside = made.start(words_for(made, "--name", "inside", "--memory", "1GiB"), PYTHON_INSIDE, "-c", TURNS)
    node.wait_steps("inside", 20)
    job = node.job("inside")
    inside.wait_lines(2)
    pid, job_inside, names = inside.lines[0].split(None, 2)
    assert (job_inside, names) == (job["id"], str([job["id"]]))  # and of the other job it sees nothing
    assert int(pid) not in job["pids"] and inside.lines[1] == "True"
    assert job["live_bytes"] >= 64 << 20 and job["limit_loss"] == ""
    assert re.fullmatch("[0-9a-f]{12}" if engine == "podman" else "ns[0-9]+", job["container"])
    table = node.carpool("ps").out.decode()
    assert "container" in table and job["container"] in table
    wait_until(lambda: min(node.turns("inside"), node.turns("outside")) >= 3, "both had several turns")
    page = node.page("inside")
    assert any(page.slot(number).has(FLAG_BELL) for number in page.pids())  # it is rung, without the daemon
    page.close()
    stop(node)
    assert inside.wait().code == 0, inside.err
    assert node.wait_state("inside", "finished")["container"] == job["container"]
    assert outside.wait().code == 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_python_in_a_shared_container_joins_when_it_imports_torch(node: Node, engine: str) -> None:
    made = box(engine, node)
    expected = Started(node, [PYTHON_INSIDE.replace("/opt/python", str(_base())), "-c", TRAINS, _packages()]).wait()
    node.start()
    added = words_for(made, "--shared", "--name", "trains")
    done = made.start(added, PYTHON_INSIDE, "-c", TRAINS, PACKAGES_INSIDE).wait()
    assert done.code == 0, done.err
    assert done.lines == expected.lines
    job = node.wait_state("trains", "finished")
    assert job["steps"] == 60 and job["container"]


@pytest.mark.slow
def test_the_job_of_a_container_is_suspended_and_resumed_to_the_same_numbers(node: Node) -> None:
    """Its memory goes to the directory that is mounted for it."""
    made = box("bwrap", node)
    text = TRAINS.replace("range(60)", "range(400)")
    expected = Started(node, [PYTHON_INSIDE.replace("/opt/python", str(_base())), "-c", text, _packages()]).wait()
    node.start()
    inside = made.start(words_for(made, "--name", "parks"), PYTHON_INSIDE, "-c", text, PACKAGES_INSIDE)
    node.wait_steps("parks", 20)
    assert node.carpool("suspend", "parks").code == 0
    job = node.wait_state("parks", "parked", "finished")
    assert job["state"] == "parked", job
    assert node.carpool("resume", "parks").code == 0
    done = inside.wait()
    assert (done.code, done.lines) == (0, expected.lines), done.err


@pytest.mark.parametrize("engine", ENGINES)
def test_x14_the_next_daemon_takes_the_job_of_a_container_back(node: Node, engine: str) -> None:
    made = box(engine, node)
    node.start()
    inside = made.start(words_for(made, "--name", "inside"), PYTHON_INSIDE, "-c", TURNS)
    node.wait_steps("inside", 10)
    before = node.job("inside")
    node.kill_daemon()
    node.start()
    wait_until(lambda: node.find("inside"), "it is back")
    node.wait_steps("inside", before["steps"] + 20)
    assert node.job("inside")["container"] == before["container"]
    stop(node)
    assert inside.wait().code == 0
    node.wait_state("inside", "finished")


def test_x12_the_job_of_a_container_ends_with_it_when_it_is_killed(node: Node) -> None:
    made = box("bwrap", node)
    node.start()
    inside = made.start(words_for(made, "--name", "inside"), PYTHON_INSIDE, "-c", TURNS)
    node.wait_steps("inside", 5)
    kill(inside.pid)
    node.wait_state("inside", "failed", "finished")
    assert node.ps(ended=False)["devices"][0]["promised_bytes"] == 0


JOINS = """
import os, time
import carpool
carpool.join()
end = time.monotonic() + 200
while not os.path.exists("/job/stop") and time.monotonic() < end:
    with carpool.turn():
        sum(range(20000))
    time.sleep(0.002)
"""

# In a container, with the daemon's socket: whatever reaches beyond the container is refused.
ASKS = """
import json, socket, struct, sys
for verb in ("submit", "checkpoint", "stop", "ps"):
    arguments = {"spec": {"name": "x"}, "argv": ["true"], "cwd": "/", "environment": {}}
    arguments |= {"job": "inside", "file": "/x"}
    body = json.dumps({"verb": verb, "arguments": arguments, "version": "x", "protocol": int(sys.argv[1])}).encode()
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("/run/carpool/daemon.sock")
    peer.sendall(struct.pack("<HHI4Q", 15, 0, len(body), 0, 0, 0, 0) + body)
    head = b""
    while len(head) < 40:
        head += peer.recv(40 - len(head))
    length, answer = struct.unpack("<HHI4Q", head)[2], b""
    while len(answer) < length:
        answer += peer.recv(65536)
    print(verb, json.loads(answer)["error"] or "answered", flush=True)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_x17_a_call_from_inside_a_container_reaches_nothing_outside(node: Node, engine: str) -> None:
    from carpool.wire.protocol import PROTOCOL

    made = box(engine, node)
    node.start()
    added = words_for(made, "--name", "inside")
    done = made.start(added, PYTHON_INSIDE, "-c", ASKS, str(PROTOCOL)).wait()
    assert done.code == 0, done.err
    said = dict(line.split(" ", 1) for line in done.lines)
    for verb in ("submit", "checkpoint", "stop"):
        assert "inside a container" in said[verb] and f"{verb} would reach beyond it" in said[verb]
    assert said["ps"] == "answered"
    assert node.carpool("submit", "--name", "out", "--", "true").code == 0
    node.wait_state("out", "finished")


def test_a_cdi_file_gives_carpool_to_podman_as_a_device(node: Node, tmp_path: Path) -> None:
    """podman reads /etc/cdi; it has one of its own here, in a mount namespace of the test's."""
    made = box("podman", node)
    assert isinstance(made, Podman)
    node.start()
    etc, work = tmp_path / "etc", tmp_path / "work"
    (etc / "cdi").mkdir(parents=True)
    work.mkdir()
    done = node.carpool("cdi", str(etc / "cdi" / "carpool.json"), "--name", "cdi")
    assert done.code == 0 and "--device carpool.dev/share=all" in done.err
    found = json.loads((etc / "cdi" / "carpool.json").read_text())
    assert found["kind"] == "carpool.dev/share"
    own = f"mount -t overlay overlay -o lowerdir=/etc,upperdir={etc},workdir={work} /etc"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "sh", "-c", own]).returncode:
        pytest.skip("no overlay can be mounted here: a CDI file with podman is NOT tested")
    words = made.words(["--device", "carpool.dev/share=all"], PYTHON_INSIDE, "-c", JOINS)
    started = Started(node, ["unshare", "-m", "sh", "-c", own + ' && exec "$@"', "sh", *words])
    node.wait_steps("cdi", 10)
    assert re.fullmatch("[0-9a-f]{12}", node.job("cdi")["container"])
    stop(node)
    assert started.wait().code == 0, started.err
    node.wait_state("cdi", "finished")


def test_what_is_printed_can_be_typed(node: Node) -> None:
    assert node.carpool("container-args").code == 3
    node.start()
    for form in ("--docker", "--podman", "--bwrap"):
        done = node.carpool("container-args", form, "--shared", "--memory", "2GiB")
        assert done.code == 0 and "CARPOOL_MEMORY" in done.out.decode() and len(done.lines) == 1
    done = node.carpool("container-args", "--cdi", "--shared")
    assert json.loads(done.out)["devices"][0]["name"] == "all"
    done = node.carpool("container-args", "--shared", "--memory", "much")
    assert done.code == 2 and "'much' is not a size" in done.err
    assert node.ps()["jobs"] == []


def _base() -> Path:
    import sys

    return Path(sys.executable).resolve().parents[1]


def _packages() -> str:
    import sys

    return next(path for path in sys.path if (Path(path) / "torch").is_dir())
