"""A program that runs already becomes a job: `carpool.join()`, before or after it has imported torch.

It asks the daemon, waits until it is let in, takes up what a program of a job finds in its environment, and has the
hooks installed. What it starts from then on is part of the job. A Python that was started with CARPOOL_JOIN does this
by itself when it imports torch.

Where it is one already, nothing happens: the same source works under `carpool run` and alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carpool import __version__
from carpool.agent import boot
from carpool.agent.job_words import job_word
from carpool.agent.link import say, tell_detached
from carpool.errors import CarpoolError, RefusedError, UnreachableError, UsageError
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.connecting import connect
from carpool.wire.joining import ENV_JOIN, NAME_MAX, as_seen_here, merged, spec_of
from carpool.wire.places import find_places
from carpool.wire.protocol import ATTACH_SECONDS, ENV_DEVICE_KIND, ENV_JOB, ENV_PAGE, ENV_SOCKET

PACKAGE = Path(__file__).resolve().parents[1]
WAIT_SAID_SECONDS = 1.0  # a wait that is shorter is not worth a line
AGAIN_SECONDS = 0.2
DIED_SECONDS = 15.0  # so long the next daemon is waited for; runners of other jobs start one

_lock = threading.Lock()
_kept: list[socket.socket] = []  # to a daemon that does not see this process: the job ends when it is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedJob:
    """The job of which this process is a part."""

    id: str
    device_kind: str


def join(
    name: str | None = None, *, wait: float | None = None, required: bool = True, **options: object
) -> JoinedJob | None:
    """Make this process a job, and wait until it is let in; `wait` is how many seconds at most.

    The options are those of `carpool run`: tenant, weight, priority, memory, wait_memory, compute, steps, device,
    on_hog, on_orphans, park. What is not given is read from the environment, as the options of commands are. Inside
    a job that job is returned, and nothing changes. Without a daemon this is an UnreachableError; with
    `required=False` the program goes on without carpool, one line says so, and None is returned.
    """
    unknown = set(options) - KNOWN
    if unknown:
        raise UsageError(
            f"carpool.join() has no option {sorted(unknown)[0]}; it has name, {', '.join(sorted(KNOWN))}"
        )
    with _lock:
        inside = _own_job()
        if inside is not None:
            if name is not None and not inside.id.startswith(name):
                say(f"this program is in job {inside.id} already, and stays in it; '{name}' is not joined")
            return inside
        try:
            return _join(spec_of({**options, "name": name}, name=_own_name()), wait)
        except CarpoolError as error:
            if required or isinstance(error, UsageError):
                raise
            say(f"this program runs unmanaged: {error}")
            return None


KNOWN = {
    *("tenant", "weight", "priority", "memory", "wait_memory", "compute", "steps", "device"),
    *("on_hog", "on_orphans", "park"),
}


def _own_job() -> JoinedJob | None:
    job = job_word(ENV_JOB)
    return JoinedJob(id=job, device_kind=job_word(ENV_DEVICE_KIND)) if job else None


def _own_name() -> str:
    """What a job is called unless somebody says otherwise: the script, else the program."""
    script = Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else sys.executable or "python")
    name = script.parent.name if script.name == "__main__.py" else script.stem
    return (name or "python")[:NAME_MAX]


def _join(spec: dict[str, object], wait: float | None) -> JoinedJob:
    path = os.environ.get(ENV_SOCKET) or str(find_places().socket)
    arguments: dict[str, object] = {
        "spec": spec,
        "argv": [sys.executable or "python", *sys.orig_argv[1:]],
        "cwd": _own_directory(),
        "pid": os.getpid(),
    }
    answer, peer = _wait_let_in(path, arguments, None if wait is None else time.monotonic() + wait)
    added = answer.get("environment")
    parts = as_seen_here(added if isinstance(added, dict) else {}, path, PACKAGE)
    page = Path(parts["set"].get(ENV_PAGE, ""))
    if not os.access(page, os.R_OK | os.W_OK):
        peer.close()
        why = "it cannot be seen or written here; mount the daemon's directory (carpool container-args)"
        tell_detached(str(answer["job"]), path, why)
        raise RefusedError(f"the page of job {answer['job']} is {page}, and {why}")
    if answer.get("keeps"):
        _kept.append(peer)
    else:
        peer.close()
    _take_up(parts)
    job = _own_job()
    assert job is not None  # its words are in the environment now
    return job


def _own_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "/"


def _wait_let_in(
    path: str, arguments: dict[str, object], deadline: float | None
) -> tuple[Mapping[str, object], socket.socket]:
    """Ask to join until some daemon lets this process in; a daemon that dies meanwhile is followed by the next."""
    asked = 0.0  # when a daemon was last reached
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(peer, path)
            asked = time.monotonic()
            return _asked(peer, arguments, deadline), peer
        except (OSError, UnreachableError) as error:
            peer.close()
            is_stopped = not Path(path).exists()  # one that was stopped took its socket with it
            if not asked or is_stopped or time.monotonic() - asked > DIED_SECONDS:
                said = error.strerror if isinstance(error, OSError) else str(error)
                raise UnreachableError(
                    f"no daemon answers at {path} ({said or error}); start one: carpool daemon start"
                ) from error
            time.sleep(AGAIN_SECONDS)
        except BaseException:  # a Ctrl-C must not leave a job in the queue
            peer.close()
            raise


def _connect(peer: socket.socket, path: str) -> None:
    try:
        connect(peer, path, seconds=ATTACH_SECONDS)
    except TimeoutError as error:
        raise UnreachableError(f"it is busy: {error}") from error


def _asked(peer: socket.socket, arguments: dict[str, object], deadline: float | None) -> dict[str, object]:
    """Ask, and wait for the last answer. A wait of some length is said once."""
    began, is_said = time.monotonic(), False
    answer: dict[str, object] = {}
    call = m.Call(verb="join", arguments=arguments, version=__version__, protocol=m.PROTOCOL)
    peer.sendall(framing.encode(call), socket.MSG_NOSIGNAL)
    while not answer.get("page"):
        waited = time.monotonic() - began
        if answer and not is_said and waited >= WAIT_SAID_SECONDS:
            is_said = True
            say(f"{answer.get('job')} {answer.get('reason')}")
        try:
            answer = _answer(peer, None if is_said else WAIT_SAID_SECONDS, deadline)
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise RefusedError(f"it was not let in within {waited:.1f} s; nothing was joined") from None
    return answer


def _answer(peer: socket.socket, seconds: float | None, deadline: float | None) -> dict[str, object]:
    left = None if deadline is None else max(0.001, deadline - time.monotonic())
    peer.settimeout(min(filter(None, (seconds, left)), default=None))
    head = _read(peer, framing.HEAD.size)
    peer.settimeout(ATTACH_SECONDS)
    length = framing.body_length(head)
    message = framing.decode(head, _read(peer, length) if length else b"")
    if isinstance(message, m.Refuse):
        raise RefusedError(message.reason)
    if not isinstance(message, m.Reply):
        raise RefusedError(f"the daemon answered a join with {type(message).__name__}")
    if message.error:
        raise (UsageError if message.code == UsageError.exit_code else RefusedError)(message.error)
    return message.answer


def _read(peer: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = peer.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the daemon closed the connection")
        parts += part
    return parts


def _take_up(parts: Mapping[str, Mapping[str, str]]) -> None:
    """Be what a program of the job is from its start: its words, its meter, its hooks."""
    for name, value in merged(os.environ, parts).items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    boot.note_words()
    with contextlib.suppress(AttributeError, OSError):  # the meter was not preloaded
        ctypes.CDLL(None).carpool_join()
    boot.remember(_go_alone)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        boot.install_hooks(torch)
    elif not any(isinstance(finder, boot.TorchWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, boot.TorchWatcher())


def _go_alone(why: str) -> None:
    job = job_word(ENV_JOB)
    say(f"job {job} runs unmanaged: {why}")
    tell_detached(job, job_word(ENV_SOCKET), why)


def join_at_import() -> None:
    """A Python that was started with CARPOOL_JOIN is about to import torch. Its own trouble is not the program's."""
    try:
        join(required=False)
    except Exception as error:  # noqa: BLE001 - an option that is wrong, for one
        say(f"this program runs unmanaged: {error}")
    os.environ.pop(ENV_JOIN, None)  # what it starts is of the same job, or is left alone as it is
