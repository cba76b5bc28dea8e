"""What no decent program sends: bytes that are no text, ids that are paths, runners that die before they speak."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from carpool import __version__
from carpool.calls import Spec
from carpool.client import DaemonSocket
from carpool.wire import messages as m
from tests.e2e.node import CARPOOL, PYTHON, Node, Started, kill, with_environment

pytestmark = pytest.mark.slow


def test_arguments_that_are_no_text_reach_the_program_unchanged(node: Node) -> None:
    ended = node.run("/bin/echo", os.fsdecode(b"caf\xe9\xff")).wait()
    assert (ended.code, ended.out, ended.err) == (0, b"caf\xe9\xff\n", "")
    with with_environment(node, {"ODD": os.fsdecode(b"\xff")}):
        node.submit("/bin/sh", "-c", 'printf %s "$ODD" | od -An -tx1', options=["--name", "odd"])
    node.wait_state("odd", "finished")
    assert node.carpool("logs", "odd").lines == [" ff"]


@pytest.mark.parametrize(
    ("argv", "added"),
    [
        ([""], {}),
        (["sh\0x"], {}),
        (["sh", "-c", "\0"], {}),
        (["/bin/true"], {"A=B": "c"}),
        (["/bin/true"], {"": "c"}),
        (["/bin/true"], {"A": "x\0y"}),
        (["/bin/true"], {"A": "\ud800"}),
    ],
)
def test_what_no_system_can_run_is_said_to_be_that(node: Node, argv: list[str], added: dict[str, str]) -> None:
    """Only the library lets such words through; its runner tells the truth about them."""
    node.start()
    spec = Spec(name="odd", cap_bytes=1 << 20)
    job = node.client.submit(argv, spec=spec, environment={**node.environment, **added}).job.id
    ended = node.client.wait(job, seconds=60)
    assert (ended.state, "exit code 127" in ended.reason) == ("failed", True), ended.reason
    log = node.client.log_path(job).read_text()
    assert log.startswith(f"carpool: cannot run {argv[0]}: ") and "Traceback" not in log, log


def test_a_runner_that_dies_before_it_spoke_ends_its_job(node: Node) -> None:
    node.start()
    job = node.submit("/bin/sh", "-c", "sleep 5", options=["--name", "orphan"])
    file = node.places.jobs / job["id"] / "job.json"
    kill(json.loads(file.read_text())["runner_pid"])
    ended = node.wait_state("orphan", "failed", "cancelled")
    assert "runner was killed" in ended["reason"]
    assert node.status()["devices"][0]["promised_bytes"] == 0


LIAR = """
import os, sys
from carpool import __version__
from carpool.client import DaemonSocket
from carpool.wire import messages as m
from carpool.wire.places import find_places
wire, own = DaemonSocket(find_places()), {"pid": os.getpid(), "version": __version__, "protocol": m.PROTOCOL}
wire.send(m.Enter(job="", spec={"name": "liar"}, argv=["liar"], cwd="/", child_pid=0, **own))
while not isinstance(wire.receive(seconds=60), m.Start):
    pass
wire.send(m.Started(pid=int(sys.argv[1])))
"""


@pytest.mark.parametrize("pid", [1, 1 << 62])
def test_a_process_that_a_runner_did_not_start_is_not_taken_for_its_program(node: Node, pid: int) -> None:
    """Nobody could end such a job: its process does not end, and is not signalled."""
    node.start()
    Started(node, [PYTHON, "-c", LIAR, str(pid)]).wait()
    node.wait_state("liar", "failed", seconds=30)
    assert node.status()["devices"][0]["promised_bytes"] == 0


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "..", "a/b", "", "x" * 65])
def test_an_id_that_is_a_path_is_refused(node: Node, name: str) -> None:
    node.start()
    wire = DaemonSocket(node.places)
    wire.send(
        m.Enter(
            job=name,
            spec={"name": "x"},
            argv=["true"],
            cwd="/",
            pid=os.getpid(),
            child_pid=0,
            version=__version__,
            protocol=m.PROTOCOL,
        )
    )
    answer = wire.receive()
    wire.close()
    assert isinstance(answer, m.Start) if not name else isinstance(answer, m.Refuse), answer


def test_a_program_keeps_its_exit_code_where_standard_errors_are_closed(node: Node) -> None:
    run = shlex.join([CARPOOL, "run", "--", "/bin/sh", "-c", "exit 5"])
    ended = Started(node, ["/bin/sh", "-c", f"{run} 2>&-"]).wait()
    assert ended.code == 5


FULL = [(("ps",), 1), (("daemon", "status"), 1), (("explain", "none"), 2)]


@pytest.mark.parametrize(("words", "code"), FULL)
def test_an_output_that_is_full_is_a_sentence(node: Node, words: tuple[str, ...], code: int) -> None:
    node.start()
    asked = shlex.join([CARPOOL, *words, "--json"])
    ended = Started(node, ["/bin/sh", "-c", f"{asked} > /dev/full"]).wait()
    assert ended.code == code
    assert "Traceback" not in ended.err and ended.err.startswith("carpool: "), ended.err


@pytest.mark.parametrize("make", ["mkfifo {}", "ln -s target {}", "mknod {} c 1 7"])
def test_a_checkpoint_replaces_nothing_that_is_not_a_file(node: Node, tmp_path: Path, make: str) -> None:
    node.start()
    target = tmp_path / "target.ckpt"
    done = subprocess.run(
        ["/bin/sh", "-c", make.format(target)], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot be made here: {done.stderr.strip()}")
    before = os.lstat(target).st_mode
    ended = node.carpool("checkpoint", "any", str(target), "--force")
    assert ended.code == 2 and "name a file of its own" in ended.err
    assert os.lstat(target).st_mode == before
