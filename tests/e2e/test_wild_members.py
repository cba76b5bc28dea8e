"""What one program does to its page, or claims to be, costs its own job only: the daemon and the neighbours go on."""

from __future__ import annotations

import json
import os
import resource
import socket
from operator import sub
from pathlib import Path

import pytest

from carpool import __version__
from carpool.client import DaemonSocket
from carpool.wire import messages as m
from carpool.wire import page as pages
from tests.e2e.node import PYTHON, Node, Started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

LOOP = "import carpool, time\nwhile True:\n with carpool.turn(): time.sleep(0.005)"
SPOILT = "a program of it cut short or overwrote the page that it shares with the daemon; start it anew"


def run_loop(node: Node, name: str) -> Started:
    return node.run(PYTHON, "-c", LOOP, options=["--name", name])


def check_goes_on(node: Node, name: str) -> None:
    """The daemon lives, and this job takes its turns."""
    assert node.daemon is not None
    assert node.daemon.process.poll() is None, node.daemon.err
    node.wait_steps(name, node.job(name)["steps"] + 50, seconds=30)
    log = node.places.daemon_log.read_text()
    assert "core.broken" not in log and "Traceback" not in log, log


@pytest.mark.parametrize("size", [0, 4096, pages.PAGE_BYTES])
def test_a_job_that_cuts_its_page_short_loses_its_turns_and_nobody_else_anything(node: Node, size: int) -> None:
    """To nothing, in its middle, and to nothing and back to its size."""
    node.start(quantum="20ms")
    run_loop(node, "neighbour")
    run_loop(node, "spoiler")
    for name in ("neighbour", "spoiler"):
        node.wait_steps(name, 20)
    path = node.places.jobs / node.job("spoiler")["id"] / "page"
    if size == pages.PAGE_BYTES:
        os.truncate(path, 0)
    os.truncate(path, size)
    wait_until(lambda: node.state("spoiler") not in ("running", "waiting", "idle", "profiling"), "it is seen")
    check_goes_on(node, "neighbour")
    found = node.find("spoiler")
    assert found is not None and found["state"] in ("unmanaged", "failed"), found  # its own read may have killed it
    if found["state"] == "unmanaged":
        assert node.carpool("explain", "spoiler").lines[0].endswith(f"runs outside carpool's turns: {SPOILT}")
    assert "job.page_spoilt job=spoiler" in node.places.daemon_log.read_text()


def test_a_program_whose_page_was_cut_short_by_another_is_told_and_goes_on(node: Node) -> None:
    """It sleeps meanwhile, so that it does not read beyond the end before the daemon has seen it."""
    node.start(quantum="20ms")
    sleeps = (
        "import carpool, os, time\n"
        "with carpool.turn(): pass\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists({go!r}): time.sleep(0.05)\n"
        "for _ in range(20):\n"
        "    with carpool.turn(): time.sleep(0.005)\n"
        "print('done', flush=True)\n"
    ).format(go=str(node.files / "go"))
    spoilt = node.run(PYTHON, "-c", sleeps, options=["--name", "spoilt"])
    spoilt.wait_line("ready")
    os.truncate(node.places.jobs / node.job("spoilt")["id"] / "page", 0)
    run_loop(node, "neighbour")  # it asks for the turn that the other one holds
    node.wait_state("spoilt", "unmanaged", seconds=20)
    (node.files / "go").touch()
    ended = spoilt.wait(seconds=30)
    assert (ended.code, ended.lines) == (0, ["ready", "done"])
    assert f"runs unmanaged: {SPOILT}" in ended.err
    check_goes_on(node, "neighbour")


def claim(node: Node, *, job: str, pid: int, slot: int) -> m.Message:
    """What the daemon answers when this process says that it is another one."""
    wire = DaemonSocket(node.places)
    try:
        wire.send(m.Attach(job=job, pid=pid, slot=slot, holding=False, version=__version__, protocol=m.PROTOCOL))
        return wire.receive(seconds=20)
    finally:
        wire.close()


def test_nobody_takes_the_seat_of_a_neighbours_process(node: Node) -> None:
    node.start(quantum="20ms")
    run_loop(node, "victim")
    run_loop(node, "other")
    for name in ("victim", "other"):
        node.wait_steps(name, 20)
    job, pid = node.job("victim")["id"], node.program_pid("victim")
    for claimed, slot in ((pid, 1), (pid, 0), (os.getpid(), 1), (os.getpid(), 0), (-5, 0), (1, 0), (2**70, 0)):
        answer = claim(node, job=job, pid=claimed, slot=slot)
        assert isinstance(answer, m.Refuse), (claimed, slot, answer)
        assert "process" in answer.reason and "bug" not in answer.reason, answer
    thief = f"from carpool.agent import boot; boot.words['CARPOOL_JOB'] = {job!r}\n{LOOP}"
    claims = node.run(PYTHON, "-c", thief, options=["--name", "thief"])
    wait_until(lambda: "is of job thief-" in claims.err, "it is refused")
    check_goes_on(node, "victim")
    check_goes_on(node, "other")
    assert node.job("victim")["pids"] == [pid]


COUNTS = (
    "import carpool, os, sys\n"
    "count = 0\n"
    "while True:\n"
    "    with carpool.turn(keep=False):\n"
    "        count += 1\n"
    "    os.pwrite(1, b'%d of %d\\n' % (count, os.getpid()), 0)\n"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pid namespaces")
def test_two_processes_with_one_number_in_two_namespaces_both_take_turns(node: Node, tmp_path: Path) -> None:
    node.start(quantum="20ms")
    run_loop(node, "neighbour")
    (tmp_path / "counts.py").write_text(COUNTS)
    files = [tmp_path / "first", tmp_path / "second"]
    enter = f"unshare --pid --fork --kill-child {PYTHON} {tmp_path / 'counts.py'}"
    shell = f"{enter} > {files[0]} & {enter} > {files[1]} & wait"
    node.run("/bin/sh", "-c", shell, options=["--name", "inner"])

    def counts() -> list[int]:
        texts = [file.read_text() if file.exists() else "" for file in files]
        assert all(not text or " of 1\n" in text for text in texts), texts
        return [int(text.split()[0]) if text else 0 for text in texts]

    def check_both_go_on() -> None:
        before = counts()
        wait_until(lambda: min(map(sub, counts(), before)) > 20, "both take turns", seconds=30)

    for _ in range(3):
        check_both_go_on()
        check_goes_on(node, "neighbour")
    node.kill_daemon()
    node.start(quantum="20ms")
    check_both_go_on()
    check_goes_on(node, "neighbour")
    assert len(set(node.job("inner")["pids"]) - {node.program_pid("inner")}) >= 2
    assert node.carpool("cancel", "inner").code == 0
    node.wait_state("inner", "cancelled")


OLD = (
    "import carpool, os, sys\n"
    "import carpool.wire.messages as m\n"
    "while True:\n"
    "    with carpool.turn(): sum(range(100_000))\n"
    "    if os.path.exists(sys.argv[1]): m.PROTOCOL = 1\n"
)
STARTED_BY = (
    f"it was started by carpool {__version__} (protocol 1), the daemon is {__version__} (protocol {m.PROTOCOL})"
)


def test_a_job_of_an_older_version_does_not_keep_the_device(node: Node) -> None:
    """It holds the turn from before the restart, computes on, and cannot speak with the new daemon."""
    node.start(quantum="20ms")
    old = node.run(PYTHON, "-c", OLD, str(node.files / "upgraded"), options=["--name", "old"])
    node.wait_steps("old", 20)
    (node.files / "upgraded").touch()
    node.wait_steps("old", node.job("old")["steps"] + 20)
    node.kill_daemon()
    node.start(quantum="20ms")
    run_loop(node, "new")
    node.wait_steps("new", 50, seconds=20)
    node.wait_state("old", "unmanaged", seconds=20)
    assert STARTED_BY in node.carpool("explain", "old").lines[0]
    assert "runs unmanaged: " in old.err
    check_goes_on(node, "new")


@pytest.mark.parametrize("differs", ["protocol", "layout"])
def test_what_another_version_started_is_taken_back_as_unmanaged(node: Node, differs: str) -> None:
    """Its file says so, or its page does: nobody waits until a process of it speaks."""
    node.start(quantum="20ms")
    run_loop(node, "old")
    node.wait_steps("old", 20)
    directory = node.places.jobs / node.job("old")["id"]
    node.kill_daemon()
    if differs == "protocol":
        text = json.loads((directory / "job.json").read_text())
        assert (text["version"], text["protocol"]) == (__version__, m.PROTOCOL)
        (directory / "job.json").write_text(json.dumps({**text, "protocol": 1}))
    else:
        page = pages.Page.open(directory / "page")
        page.words[pages.H_LAYOUT] = 99
        page.close()
    node.start(quantum="20ms")
    said = STARTED_BY if differs == "protocol" else "its page is of another version of carpool (layout 99"
    told = {said in event["reason"] for event in node.journal("JobDetached")}
    assert told == {True}  # perhaps twice: a runner may have brought a daemon back in between
    run_loop(node, "new")
    node.wait_steps("new", 20)
    check_goes_on(node, "new")


def test_versions_that_speak_the_same_protocol_work_together(node: Node) -> None:
    node.start()
    wire = DaemonSocket(node.places)
    wire.send(m.Call(verb="status", arguments={}, version="9.9.9", protocol=m.PROTOCOL))
    assert isinstance(wire.receive(seconds=20), m.Reply)
    wire.close()


CLOSES = """
import carpool, os, socket, sys, time

def steps(count):
    for _ in range(count):
        with carpool.turn(): time.sleep(0.002)

steps(30)
os.closerange(3, 64)
if sys.argv[1] == "files":
    own = [os.open(f"{sys.argv[2]}/{number}", os.O_RDWR | os.O_CREAT) for number in range(12)]
else:
    own = [end.detach() for _ in range(6) for end in socket.socketpair()]
assert own[0] == 3, own
facts = [os.fstat(fd) for fd in own]
for fd in own:
    os.write(fd, b"mine")
steps(60)
assert [os.fstat(fd).st_ino for fd in own] == [each.st_ino for each in facts], "a descriptor was taken"
for fd in own:
    if sys.argv[1] == "files":
        os.lseek(fd, 0, 0)
    assert os.read(fd, 100) == b"mine", fd
print("all mine", flush=True)
steps(30)
"""


@pytest.mark.parametrize("what", ["files", "sockets"])
def test_b7_what_a_program_opens_in_place_of_carpools_descriptors_is_its_own(
    node: Node, tmp_path: Path, what: str
) -> None:
    node.start(quantum="10ms")
    run_loop(node, "neighbour")
    node.wait_steps("neighbour", 20)
    started = node.run(PYTHON, "-c", CLOSES, what, str(tmp_path), options=["--name", "closes"])
    ended = started.wait(seconds=60)
    assert (ended.code, ended.lines, ended.err) == (0, ["all mine"], "")
    assert node.turns("closes") > 3
    check_goes_on(node, "neighbour")


def test_connections_that_say_nothing_keep_nobody_out(node: Node) -> None:
    node.start()
    assert node.daemon is not None
    limits = Path(f"/proc/{node.daemon.pid}/limits").read_text()
    [files] = [line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")]
    assert files[0] == files[1], "the daemon may have as many descriptors as the system lets it"
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(node.daemon.pid, resource.RLIMIT_NOFILE, (200, own[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(own[1], 4096), own[1]))
    idle = [socket.socket(socket.AF_UNIX) for _ in range(1200)]
    try:
        for each in idle:
            each.settimeout(20)
            each.connect(str(node.places.socket))
        assert node.status()["descriptor_trouble"] == ""
        done = node.carpool("run", "--", "/bin/sh", "-c", "ulimit -n", seconds=60)
        assert (done.code, done.lines, done.err) == (0, [str(min(own[1], 4096))], "")
        assert int(node.status()["jobs"]) == 0
    finally:
        for each in idle:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, own)
    node.submit("/bin/sh", "-c", "ulimit -n", options=["--name", "limited"])
    node.wait_state("limited", "finished")
    assert node.carpool("logs", "limited").lines == [str(own[0])], "programs have the limit that they had"


def test_the_daemon_warns_when_its_descriptors_run_out(node: Node) -> None:
    node.start()
    assert node.daemon is not None
    used = len(list(Path(f"/proc/{node.daemon.pid}/fd").iterdir()))
    resource.prlimit(node.daemon.pid, resource.RLIMIT_NOFILE, (used + 4, used + 4))
    status = node.carpool("daemon", "status")
    assert any("descriptors are in use" in line for line in status.lines if line.startswith("warning: ")), status
