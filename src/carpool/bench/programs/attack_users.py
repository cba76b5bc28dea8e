"""Attacks of one user on another user of the same machine, and on the daemon that serves both.

It runs as the attacker and knows what anybody can know: where the daemon is, the victim's job, its pids. A line of
JSON comes for each attack, and one goes back: what was achieved, which should be nothing.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from carpool import __version__
from carpool.client import Client
from carpool.errors import CarpoolError
from carpool.wire import messages as m
from carpool.wire.framing import HEAD, body_length, decode, encode

ANSWER_SECONDS = 20.0
FLOOD_SECONDS = 6.0
DENIED = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS, errno.ENOTDIR, errno.ESRCH, errno.ENXIO, errno.EINVAL}
Facts = dict[str, Any]


@contextlib.contextmanager
def denied(got: list[str], what: str) -> Iterator[None]:
    """What succeeds inside is an achievement."""
    try:
        yield
    except OSError as error:
        if error.errno not in DENIED:
            raise
    else:
        got.append(what)


# --- reading ---------------------------------------------------------------------------------------------------


def read_files(facts: Facts) -> list[str]:
    """Everything below the daemon's directories that could tell of another's job."""
    got: list[str] = []
    for text in facts["roots"]:
        for directory, _, names in os.walk(text):
            for name in names:
                path = Path(directory, name)
                if path.name in facts["public"] or not path.is_file():
                    continue
                with denied(got, str(path)):
                    path.open("rb").close()
    for path in facts["secret_paths"]:
        with denied(got, path):
            Path(path).open("rb").close()
    return got


def read_processes(facts: Facts) -> list[str]:
    """What the kernel shows of the victim's processes to their owner."""
    got: list[str] = []
    for pid in facts["pids"]:
        for name in ("environ", "mem", "maps", "fd", "cwd"):
            path = f"/proc/{pid}/{name}"
            with denied(got, path):
                if name == "fd":
                    list(Path(path).iterdir())
                elif name == "cwd":
                    Path(path).readlink()
                else:
                    with open(path, "rb") as file:
                        file.read(1)
    return got


def read_answers(facts: Facts) -> list[str]:
    """The secret in anything that the daemon answers."""
    client, got = Client(), []
    for verb, arguments in (("ps", {"all": True}), ("job", {"job": facts["job"]}), ("history", {}), ("usage", {})):
        with contextlib.suppress(CarpoolError):
            answer = _ask(m.Call(verb=verb, arguments=arguments, version=__version__, protocol=m.PROTOCOL))
            if facts["secret"] in json.dumps(_fields(answer)):
                got.append(f"the secret in the answer to {verb}")
    with contextlib.suppress(CarpoolError, OSError):
        if facts["secret"] in client.log_path(facts["job"]).read_text():
            got.append("the victim's log")
    return got


# --- writing ---------------------------------------------------------------------------------------------------


def write_files(facts: Facts) -> list[str]:
    """Change, remove and replace what the daemon and the victim live by."""
    got: list[str] = []
    for path in [*facts["secret_paths"], facts["socket"], facts["knock"]]:
        with denied(got, f"{path} opened for writing"):
            os.close(os.open(path, os.O_WRONLY))
        with denied(got, f"{path} cut"):
            os.truncate(path, 0)
        with denied(got, f"{path} moved"):
            Path(path).rename(path + ".away")
        with denied(got, f"{path} removed"):
            Path(path).unlink()
    return [each for each in got if "opened" not in each or not each.startswith((facts["socket"], facts["knock"]))]


def make_files(facts: Facts) -> list[str]:
    """Put files where others would find them: names of jobs to come, bells, the daemon's own."""
    got: list[str] = []
    for directory in facts["directories"]:
        place = Path(directory)
        with denied(got, f"a file in {place}"):
            (place / "squatted").touch()
        with denied(got, f"a link in {place}"):
            (place / "squatted-link").symlink_to("/etc/passwd")
        with denied(got, f"a directory in {place}"):
            (place / "squatted-directory").mkdir()
    return got


# --- signals and bells -----------------------------------------------------------------------------------------


def send_signals(facts: Facts) -> list[str]:
    got: list[str] = []
    for pid in [*facts["pids"], facts["daemon"]]:
        for number in (0, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
            with denied(got, f"signal {number} to {pid}"):
                os.kill(pid, number)
    return got


def ring(facts: Facts) -> list[str]:
    """Ring every bell with every likely word. Nothing may come of it: the caller looks whether turns overlap."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for name in [*map(str, facts["pids"]), *_list(facts["bells"])]:
                for word in (0, 1, 2**32 - 1, 2**63, 2**64 - 1):
                    with contextlib.suppress(OSError):
                        bell.sendto(word.to_bytes(8, "little"), f"{facts['bells']}/{name}")
            for _ in range(20):
                with contextlib.suppress(OSError):
                    bell.sendto(b"", facts["knock"])
    return []


# --- saying to be somebody else ------------------------------------------------------------------------------------


def attach(facts: Facts) -> list[str]:
    """A seat in the victim's job."""
    got: list[str] = []
    for pid in (os.getpid(), *facts["pids"]):
        answer = _ask(
            m.Attach(job=facts["job"], pid=pid, slot=0, holding=True, version=__version__, protocol=m.PROTOCOL)
        )
        if isinstance(answer, m.Attached):
            got.append(f"a seat in {facts['job']} as process {pid}")
    return got


def be_runner(facts: Facts) -> list[str]:
    """Say to be the runner of the victim's job, and that it has ended."""
    got: list[str] = []
    for pid in (os.getpid(), *facts["pids"]):
        enter = m.Enter(
            job=facts["job"],
            spec={},
            argv=["true"],
            cwd="/",
            pid=pid,
            child_pid=pid,
            version=__version__,
            protocol=m.PROTOCOL,
        )
        with _connect() as peer:
            peer.sendall(encode(enter) + encode(m.Exited(code=0, signal=0)))
            answer = _receive(peer)
        if answer is not None and not isinstance(answer, m.Refuse):
            got.append(f"the place of its runner: {type(answer).__name__}")
    return got


def claim_process(facts: Facts) -> list[str]:
    """A job of one's own whose program is the victim's process: to cancel the one would end the other."""
    enter = m.Enter(
        job="",
        spec={"name": "claim"},
        argv=["true"],
        cwd="/",
        pid=facts["pids"][0],
        child_pid=0,
        version=__version__,
        protocol=m.PROTOCOL,
    )
    with _connect() as peer:
        peer.sendall(encode(enter))
        answer = _receive(peer)
        while isinstance(answer, m.Wait):
            answer = _receive(peer)
        if not isinstance(answer, m.Start):
            return []
        for pid in facts["pids"]:
            with contextlib.suppress(OSError):
                peer.sendall(encode(m.Started(pid=pid)))
        with contextlib.suppress(CarpoolError):
            Client().cancel(answer.job)
        time.sleep(1)
    return []


def order(facts: Facts) -> list[str]:
    """Every order there is, about the victim's job and about the daemon."""
    got: list[str] = []
    job = {"job": facts["job"]}
    orders: list[tuple[str, dict[str, object]]] = [
        ("suspend", job),
        ("resume", job),
        ("resize", {**job, "cap_bytes": 1 << 20}),
        ("migrate", {**job, "device": "cpu"}),
        ("checkpoint", {**job, "file": "/tmp/taken", "stop": True}),
        ("cancel", job),
        ("reload", {}),
        ("tenant-set", {"tenant": "all", "weight": 1000}),
        ("stop", {"force": True}),
        ("flush", {}),
    ]
    for verb, arguments in orders:
        answer = _ask(m.Call(verb=verb, arguments=arguments, version=__version__, protocol=m.PROTOCOL))
        if isinstance(answer, m.Reply) and not answer.code:
            got.append(verb)
    return got


def take_tenant(facts: Facts) -> list[str]:
    """The share of the victim's tenant."""
    done = subprocess.run(
        [sys.executable, "-m", "carpool.cli.main", "run", "--tenant", facts["tenant"], "--", "true"],
        capture_output=True,
        timeout=4 * ANSWER_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return [f"a job of tenant {facts['tenant']}"] if done.returncode == 0 else []


# --- exhausting: the caller looks how the others fare meanwhile --------------------------------------------------


def connect_often(_: Facts) -> list[str]:
    """As many connections as there can be, all silent."""
    peers = []
    with contextlib.suppress(OSError):
        for _number in range(10_000):
            peer = socket.socket(socket.AF_UNIX)
            peer.setblocking(False)
            peers.append(peer)
            with contextlib.suppress(BlockingIOError):
                peer.connect(os.fsencode(Client().places.socket))
    time.sleep(FLOOD_SECONDS)
    return []


def ask_often(_: Facts) -> list[str]:
    """The dearest question, from many threads."""
    until = time.monotonic() + FLOOD_SECONDS

    def ask() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(CarpoolError, OSError):
                Client().ps(ended=True)

    _at_once([ask] * 8)
    return []


def talk_nonsense(_: Facts) -> list[str]:
    """Frames of every kind with random words, lengths that are too large, and bytes that are no frames."""
    until = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), _connect() as peer:
            for _number in range(200):
                peer.sendall(os.urandom(4096))
        for kind in range(64):
            with contextlib.suppress(OSError), _connect() as peer:
                peer.sendall(HEAD.pack(kind, 0, 2**31, 2**64 - 1, 0, 2**63, 1))
    return []


def never_read(_: Facts) -> list[str]:
    """Questions whose answers are never taken."""
    call = encode(m.Call(verb="ps", arguments={"all": True}, version=__version__, protocol=m.PROTOCOL))
    peers = [_connect() for _ in range(50)]
    until = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < until:
        for peer in peers:
            peer.setblocking(False)
            with contextlib.suppress(OSError):
                peer.send(call * 100)
        time.sleep(0.01)
    return []


def flood_turns(_: Facts) -> list[str]:
    """Asks and returns without end, by a connection that has no job."""
    piece = (encode(m.Ask()) + encode(m.Return(steps=2**63, wants_more=True, passed=2**63))) * 200
    until = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), _connect() as peer:
            while time.monotonic() < until:
                peer.sendall(piece)
    return []


def queue_jobs(_: Facts) -> list[str]:
    """Thousands of jobs that want to be started."""
    started = []
    enter = m.Enter(
        job="",
        spec={"name": "many", "cap_bytes": 1 << 40},
        argv=["true"],
        cwd="/",
        pid=os.getpid(),
        child_pid=0,
        version=__version__,
        protocol=m.PROTOCOL,
    )
    for _number in range(1500):
        with contextlib.suppress(OSError):
            peer = _connect()
            peer.sendall(encode(enter))
            started.append(peer)
    time.sleep(FLOOD_SECONDS)
    return []


ATTACKS: dict[str, Callable[[Facts], list[str]]] = {
    each.__name__: each
    for each in (
        read_files,
        read_processes,
        read_answers,
        write_files,
        make_files,
        send_signals,
        ring,
        attach,
        be_runner,
        claim_process,
        order,
        take_tenant,
        connect_often,
        ask_often,
        talk_nonsense,
        never_read,
        flood_turns,
        queue_jobs,
    )
}


def _connect() -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(ANSWER_SECONDS)
    peer.connect(os.fsencode(Client().places.socket))
    return peer


def _ask(message: m.Message) -> m.Message | None:
    with _connect() as peer:
        peer.sendall(encode(message))
        return _receive(peer)


def _receive(peer: socket.socket) -> m.Message | None:
    """The next message; None if the daemon hangs up, which is an answer too."""
    with contextlib.suppress(OSError):
        head = peer.recv(HEAD.size, socket.MSG_WAITALL)
        if len(head) == HEAD.size:
            length = body_length(head)
            return decode(head, peer.recv(length, socket.MSG_WAITALL) if length else b"")
    return None


def _fields(message: m.Message | None) -> dict[str, Any]:
    return {} if message is None else {name: getattr(message, name) for name in type(message).__slots__}


def _list(directory: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [path.name for path in Path(directory).iterdir()]
    return []


def _at_once(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    for line in sys.stdin:
        facts = json.loads(line)
        try:
            answer: dict[str, object] = {"got": ATTACKS[facts["attack"]](facts)}
        except (OSError, CarpoolError, subprocess.TimeoutExpired) as error:  # the caller says that it was not tried
            answer = {"trouble": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
