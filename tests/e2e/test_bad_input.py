"""What users and the world do wrong: one clear sentence on stderr, the right exit code, nothing lost."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.wire import framing
from carpool.wire import messages as m
from tests.e2e.node import CARPOOL, PYTHON, Ended, Node, Started, wait_until
from tests.impostor import impostor

pytestmark = pytest.mark.slow

NOBODY = 65534
TRUE = ["--", "/bin/true"]
is_root = os.geteuid() == 0


@pytest.fixture(scope="module")
def shared(module_node: Node) -> Iterator[Node]:
    module_node.start(device="cpu:1GiB")
    yield module_node


def assert_refused(done: Ended, code: int, *words: str) -> None:
    """One sentence on stderr that holds these words, nothing on stdout, this exit code."""
    assert (done.code, done.out) == (code, b""), done.err
    assert done.err.startswith("carpool: "), done.err
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "lottery"], ["unknown policy 'lottery'", "fair, fifo, las, pack, priority, srsf, srtf"]),
        (["--policy", "srtf"], ["the running daemon uses policy fair, not srtf"]),
        (["--device", "tpu"], ["unknown device 'tpu'"]),
        (["--device", "cpu:999TiB"], ["999TiB", "this machine has"]),
        (["--device", "cpu:2GiB"], ["the running daemon manages cpu:1GiB, not cpu:2GiB"]),
        (["--memory", "-1"], ["'-1' is not a size"]),
        (["--memory", "0"], ["a size is between 1 byte and 1024 TiB"]),
        (["--memory", "1e99GiB"], ["'1e99GiB' is not a size"]),
        (["--memory", f"{'9' * 400}GiB"], ["a size"]),
        (["--memory", "abc"], ["'abc' is not a size; write it like 512MiB or 4GiB"]),
        (["--memory", ""], ["'' is not a size"]),
        (["--steps", "-3"], ["--steps -3 must be at least 1"]),
        (["--steps", "0"], ["--steps 0 must be at least 1"]),
        (["--steps", str(10**30)], ["--steps"]),
        (["--weight", "0"], ["--weight 0.0 must be above 0"]),
        (["--weight", "-1"], ["--weight -1.0 must be above 0"]),
        (["--weight", "nan"], ["--weight nan must be above 0"]),
        (["--weight", "inf"], ["--weight inf must be above 0"]),
        (["--priority", str(10**30)], ["--priority"]),
        (["--name", "n" * 73], ["--name has 73 characters; 60 are the most"]),
        (["--name", "runs/3"], ["--name runs/3 has a slash", "call it runs-3"]),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else None,
)
def test_an_option_that_makes_no_sense_is_a_misuse(shared: Node, options: list[str], words: list[str]) -> None:
    assert_refused(shared.carpool("run", *options, *TRUE), 2, *words)
    assert shared.ps(ended=False)["jobs"] == []


@pytest.mark.parametrize("options", [["--steps", "many"], ["--weight", "x"], ["--priority", "1.5"], []])
def test_an_option_of_the_wrong_kind_is_a_misuse_with_usage(shared: Node, options: list[str]) -> None:
    done = shared.carpool("run", *options, *(TRUE if options else []))
    assert (done.code, done.out) == (2, b"")
    assert "Error: " in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("verb", ["run", "submit"])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["python", "no_such_script.py"], ["the script no_such_script.py does not exist"]),
        (["no-such-program-anywhere"], ["cannot find the program 'no-such-program-anywhere'"]),
        (["./plain_loop.py"], ["./plain_loop.py may not be executed", "chmod +x", "carpool run -- python ./plain"]),
        (["--no-such-option", "/bin/true"], ["cannot find the program '--no-such-option'"]),
    ],
    ids=lambda value: value[-1][:24],
)
def test_a_program_that_is_not_there_is_a_misuse(
    shared: Node, verb: str, program: list[str], words: list[str]
) -> None:
    assert_refused(shared.carpool(verb, "--", *program), 2, *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "lottery"], ["unknown policy 'lottery'"]),
        (["--device", "cpu:0"], ["a size is between 1 byte"]),
        (["--device", "cpu:-4GiB"], ["'-4GiB' is not a size"]),
        (["--device", "cpu:999x1MiB"], ["asks for '999' devices"]),
        (["--device", "cpu:0x1MiB"], ["asks for '0' devices"]),
        (["--device", "cpu:1MiB,cpu:1MiB"], ["is a list", "like cpu:2x1MiB"]),
        (["--device", "cuda:7"], ["GPU"]),
        (["--quantum", "soon"], ["'soon' is not a length of time"]),
        (["--quantum", "-5ms"], ["'-5ms' is not a length of time"]),
        (["--quantum", f"{'9' * 400}s"], ["length of time"]),
        (["--tenant-weights", "ana"], ["--tenant-weights: 'ana' is not a tenant and its number", "like ana=2,ben=1"]),
        (["--tenant-weights", "ana=0"], ["'ana=0' gives tenant ana 0; it must be above 0"]),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else None,
)
def test_a_daemon_is_not_started_with_nonsense(node: Node, options: list[str], words: list[str]) -> None:
    assert_refused(node.carpool("daemon", "start", *options), 2, *words)
    assert not node.places.socket.exists()


def test_a_daemon_is_not_started_with_an_unknown_log_level(node: Node) -> None:
    node.environment["CARPOOL_LOG"] = "loud"
    words = ["CARPOOL_LOG=LOUD is not a level", "DEBUG, INFO, WARNING, ERROR"]
    for command in (["daemon", "start"], ["run", *TRUE]):
        assert_refused(node.carpool(*command), 2, *words)
    assert not node.places.socket.exists()


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_job_that_can_never_fit_is_refused_at_once(shared: Node, verb: str) -> None:
    done = shared.carpool(verb, "--name", "huge", "--memory", "2GiB", *TRUE)
    sentence = "job huge can never fit: it asks for 2.00 GiB, cpu has 1.00 GiB; lower --memory or use a larger device"
    assert_refused(done, 1, sentence)
    refused = shared.job("huge")
    assert refused["state"] == "failed"
    assert sentence in refused["reason"]
    assert shared.status()["devices"][0]["free_bytes"] == 1 << 30


def test_a_cap_that_is_too_small_for_python_itself_is_refused(shared: Node) -> None:
    done = shared.carpool("run", "--memory", "1MiB", "--", PYTHON, "-c", "print(1)")
    assert_refused(done, 1, "--memory 1.00 MiB is too little for Python itself: give at least 4.00 MiB, and 64 MiB")


def test_a_device_that_is_not_here_is_a_misuse(shared: Node) -> None:
    assert_refused(shared.carpool("run", "--device", "cpu7", *TRUE), 2, "there is no device cpu7 here; there are cpu")


# --- the daemon -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["ps"], ["explain", "x"], ["cancel", "x"], ["logs", "x"], ["top"]])
def test_without_a_daemon_every_question_ends_with_3(node: Node, arguments: list[str]) -> None:
    assert_refused(node.carpool(*arguments), 3, "no daemon answers at", "carpool daemon start")


def test_a_second_daemon_is_not_started(shared: Node) -> None:
    same = shared.carpool("daemon", "start", "--device", "cpu:1GiB")
    assert (same.code, same.out) == (0, b"")
    assert "runs already" in same.err
    other = shared.carpool("daemon", "start", "--device", "cpu:2GiB")
    assert_refused(other, 2, "runs already in", "with device cpu:1GiB (not cpu:2GiB)")
    less = shared.carpool("daemon", "start", "--device", "cpu:1GiB", "--host-memory", "3GiB")
    assert_refused(less, 2, "with host memory unlimited (not 3.00 GiB)", "carpool daemon stop")
    direct = Started(shared, [*daemon_command()]).wait()
    assert direct.code == 1
    assert direct.err.startswith(f"carpool daemon: daemon {shared.status()['pid']} is already running (it holds ")
    assert shared.status()["jobs"] == 0


def daemon_command() -> list[str]:
    return [str(Path(CARPOOL).parent / "python"), "-m", "carpool.daemon.main"]


def talk(node: Node, data: bytes) -> bytes:
    """Send raw bytes to the daemon's socket; what comes back until it closes or answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(20)
        peer.connect(str(node.places.socket))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(data)
            return peer.recv(1 << 16)
    return b""


def test_a_peer_of_another_version_is_refused_with_a_sentence(shared: Node) -> None:
    asked = m.Call(verb="ps", arguments={}, version="9.9.9", protocol=99)
    (answer,) = framing.Decoder().feed(talk(shared, framing.encode(asked)))
    assert isinstance(answer, m.Refuse)
    assert "this is 9.9.9 (protocol 99); restart it: carpool daemon stop" in answer.reason
    enter = m.Enter(job="", spec={"name": "x"}, argv=["x"], cwd="/", pid=1, child_pid=0, version="9.9.9", protocol=99)
    (answer,) = framing.Decoder().feed(talk(shared, framing.encode(enter)))
    assert isinstance(answer, m.Refuse)
    assert shared.ps(ended=False)["jobs"] == []


@pytest.mark.parametrize("arguments", [["ps"], ["run", *TRUE], ["submit", *TRUE], ["daemon", "status"]])
def test_a_daemon_of_another_version_is_named_and_nothing_is_run(node: Node, arguments: list[str]) -> None:
    reason = f"the daemon is carpool 7.0.0 (protocol 7), this is 0.1.0 (protocol {m.PROTOCOL}); restart it"
    with impostor(node.places, lambda: framing.encode(m.Refuse(reason=reason))):
        assert_refused(node.carpool(*arguments), 3, reason)


@pytest.mark.parametrize("arguments", [["ps"], ["run", *TRUE], ["daemon", "stop"]])
def test_garbage_instead_of_a_daemon_is_one_sentence_too(node: Node, arguments: list[str]) -> None:
    with impostor(node.places, lambda: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"):
        assert_refused(node.carpool(*arguments), 1, "not a carpool message")


def test_garbage_on_the_socket_hurts_only_who_sent_it(shared: Node) -> None:
    assert talk(shared, b"GET / HTTP/1.0\r\n\r\n" + b"\0" * 64) == b""
    assert talk(shared, os.urandom(4096)) == b""
    huge = framing.HEAD.pack(15, 0, framing.BODY_MAX + 1, 0, 0, 0, 0)
    assert talk(shared, huge) == b""
    not_json = framing.HEAD.pack(15, 0, 4, 0, 0, 0, 0) + b"{{{{"
    assert talk(shared, not_json) == b""
    uninvited = framing.encode(m.Ask())
    assert talk(shared, uninvited) == b""
    wrong_way = framing.encode(m.Stop())
    assert talk(shared, wrong_way) == b""
    odd = m.Attach(job="nobody", pid=-5, slot=10**18, holding=True, version="0.1.0", protocol=m.PROTOCOL)
    (answer,) = framing.Decoder().feed(talk(shared, framing.encode(odd)))
    assert isinstance(answer, m.Refuse)
    assert shared.carpool("ps").code == 0
    assert shared.run("/bin/true").wait().code == 0


def test_a_job_spec_that_makes_no_sense_is_refused_by_the_daemon_as_well(shared: Node) -> None:
    for spec in ({}, {"name": 5}, {"name": "x", "cap_bytes": -1}, {"name": "x", "weight_milli": 0}):
        body: dict[str, object] = dict(spec)
        enter = m.Enter(
            job="", spec=body, argv=["x"], cwd="/", pid=1, child_pid=0, version="0.1.0", protocol=m.PROTOCOL
        )
        (answer,) = framing.Decoder().feed(talk(shared, framing.encode(enter)))
        assert isinstance(answer, m.Refuse), spec
    assert shared.ps(ended=False)["jobs"] == []
    assert list(shared.places.jobs.iterdir()) == []


# --- files ------------------------------------------------------------------------------------------------


def test_a_stale_socket_is_replaced(node: Node) -> None:
    node.places.run.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(node.places.socket))
    assert_refused(node.carpool("ps"), 3, "Connection refused")
    assert node.run("/bin/true").wait().code == 0
    assert stat.S_IMODE(node.places.socket.stat().st_mode) & 0o077 == 0
    assert node.carpool("daemon", "stop").code == 0


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_may_enter_is_not_used(node: Node, mode: int) -> None:
    node.places.run.mkdir()
    node.places.run.chmod(mode)
    done = node.carpool("run", *TRUE)
    assert_refused(done, 1, f"is open to other users (mode {mode:o}); run: chmod 700 {node.places.run}")
    assert not node.places.socket.exists()


@pytest.mark.skipif(not is_root, reason="only root can give a directory to another user")
@pytest.mark.parametrize("which", ["run", "state"])
def test_a_directory_of_another_user_is_not_used(node: Node, which: str) -> None:
    directory = node.directory / which
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    done = node.carpool("run", *TRUE)
    assert_refused(done, 1, f"{directory} belongs to user {NOBODY}, not to you (0); remove it or set CARPOOL_DIR")


@pytest.mark.skipif(not is_root, reason="only root can give a socket to another user")
def test_a_socket_of_another_user_is_not_spoken_to(node: Node) -> None:
    with impostor(node.places, bytes):
        os.chown(node.places.socket, NOBODY, NOBODY)
        for arguments in (["ps"], ["run", *TRUE]):
            assert_refused(node.carpool(*arguments), 1, f"{node.places.socket} belongs to user {NOBODY}, not to you")


STRANGER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgid(65534); os.setuid(65534)
listener.listen()
print("ready", flush=True)
listener.settimeout(60)
peer, _ = listener.accept()
peer.settimeout(60)
print(len(peer.recv(100)), flush=True)
"""


@pytest.mark.skipif(not is_root, reason="only root can become another user")
def test_nothing_is_sent_to_a_process_of_another_user_whoever_owns_the_socket(node: Node) -> None:
    node.places.run.mkdir(mode=0o700)
    stranger = Started(node, [str(Path(CARPOOL).parent / "python"), "-c", STRANGER, str(node.places.socket)])
    stranger.wait_line("ready")
    done = node.carpool("ps")
    assert_refused(done, 1, f"a process of user {NOBODY} answers at {node.places.socket}, not one of yours (0)")
    assert stranger.wait().lines == ["ready", "0"]


@pytest.mark.skipif(not is_root, reason="only root can become another user")
def test_the_daemon_does_not_answer_another_user(shared: Node) -> None:
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "fd = os.open(sys.argv[1], os.O_PATH)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    s.connect(f'/proc/self/fd/{fd}')\n"
        "except OSError as error:\n"
        "    print(type(error).__name__); sys.exit()\n"
        "s.settimeout(10)\n"
        "try:\n"
        "    s.sendall(bytes.fromhex(sys.argv[2])); print(len(s.recv(100)))\n"
        "except (BrokenPipeError, ConnectionResetError):\n"
        "    print(0)\n"
    )
    asked = framing.encode(m.Call(verb="ps", arguments={}, version="0.1.0", protocol=m.PROTOCOL)).hex()
    shared.places.socket.chmod(0o777)  # let it pass the file's own protection: the daemon looks at who it is
    try:
        arguments = [str(Path(CARPOOL).parent / "python"), "-c", code, str(shared.places.socket), asked]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    finally:
        shared.places.socket.chmod(0o700)
    assert done.stdout == "0\n", done.stderr


def test_pages_and_job_files_are_for_their_owner_only(shared: Node) -> None:
    started = shared.run("/bin/sh", "-c", "echo ready; exec sleep 30", options=["--name", "private"])
    started.wait_line("ready")
    directory = shared.places.jobs / shared.job("private")["id"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}
    started.process.terminate()
    started.wait()
    assert modes == {directory.name: 0o700, "page": 0o600, "job.json": 0o600, "started.json": 0o600}
    assert stat.S_IMODE(shared.places.socket.stat().st_mode) & 0o077 == 0


def test_a_directory_name_that_is_too_long_for_a_socket_is_a_misuse(node: Node) -> None:
    node.environment["CARPOOL_DIR"] = "/tmp/" + "x" * 100
    assert_refused(node.carpool("run", *TRUE), 2, "longer than the 107 characters", "set CARPOOL_DIR")


def test_a_directory_that_cannot_be_made_is_one_sentence(node: Node) -> None:
    node.environment["CARPOOL_DIR"] = "/proc/nowhere"
    assert_refused(node.carpool("run", *TRUE), 1, "cannot make /proc/nowhere", "set CARPOOL_DIR to another place")


# --- a full disk ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(node: Node) -> Iterator[Node]:
    """A node whose directory is a disk of one MiB; its own files stay elsewhere."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "carpool-test", str(node.directory)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"a full disk is NOT TESTED here: a small one cannot be mounted ({done.stderr.strip()})")
    outside = Path(f"{node.directory}-files")
    outside.mkdir()
    node.files = outside
    yield node
    for started in node.started:
        started.end()
    node.started.clear()
    wait_until(lambda: _unmount(node), "the small disk is unmounted", seconds=20)
    for path in outside.iterdir():
        path.unlink()
    outside.rmdir()


def _unmount(node: Node) -> bool:
    for pid in node.processes():
        os.kill(pid, 9)
    return subprocess.run(["umount", str(node.directory)], capture_output=True).returncode == 0


def fill(node: Node, leave: int) -> None:
    """Use the disk up but for so many bytes."""
    filler = node.directory / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"x" * 4096)
    if leave:
        os.truncate(filler, filler.stat().st_size - leave)


@pytest.mark.skipif(not is_root, reason="only root can mount a small disk; a full disk is NOT TESTED here")
def test_a_full_disk_stops_new_jobs_with_a_sentence_and_harms_no_running_one(small_disk: Node) -> None:
    node = small_disk
    node.start()
    program = ["/bin/sh", "-c", "echo ready; read line; echo $line"]
    runs = node.run(*program, options=["--memory", "64MiB"], stdin=subprocess.PIPE)
    runs.wait_line("ready")
    fill(node, leave=0)
    for verb in ("run", "submit"):
        done = node.carpool(verb, "--name", "late", "--memory", "1MiB", *TRUE)
        assert_refused(done, 1, "No space left on device", str(node.places.jobs), "free some space")
    fill(node, leave=8192)  # room for the job's directory and file, not for its page
    assert_refused(node.carpool("run", "--name", "pageless", "--memory", "1MiB", *TRUE), 1, "No space left")
    wait_until(lambda: "cannot be written" in node.status()["journal_trouble"], "the trouble is shown", seconds=30)
    assert node.carpool("daemon", "status").out.decode().count("warning: the journal") == 1
    assert [job["state"] for job in node.ps(ended=False)["jobs"]] == ["starting"]

    (node.directory / "filler").unlink()
    assert node.run("/bin/true", options=["--name", "after", "--memory", "1MiB"]).wait().code == 0
    assert runs.process.stdin is not None
    runs.process.stdin.write(b"still here\n")
    runs.process.stdin.close()
    ended = runs.wait()
    assert (ended.code, ended.lines) == (0, ["ready", "still here"])
    wait_until(lambda: not list(node.places.jobs.iterdir()), "nothing is left of them")


@pytest.mark.skipif(not is_root, reason="only root can mount a small disk; a full disk is NOT TESTED here")
@pytest.mark.parametrize("leave", [0, 4096, 8192])  # nothing; room for a directory; and for a file
def test_a_daemon_is_not_started_on_a_full_disk(small_disk: Node, leave: int) -> None:
    fill(small_disk, leave=leave)
    assert_refused(small_disk.carpool("run", *TRUE), 1, "No space left on device")
