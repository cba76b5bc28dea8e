"""`carpool.Client`: the daemon that this user's commands use, from Python. docs/python.md shows it at work.

Each call is one connection to the daemon's socket: it asks, reads one answer (calls.py) and closes. What goes wrong
is an error of `carpool.errors` with a sentence: UnreachableError (a PeerError) where no daemon answers, or one of
another version; AnsweredError where it says no. No call starts a daemon: `carpool daemon start` and `carpool run` do.

Not here: turns (`carpool.turn()`, inside a job), and starting a daemon (cli/launch.py), which needs its code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from carpool import __version__
from carpool.errors import AnsweredError, PeerError, RefusedError, UnreachableError, UsageError
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.connecting import connect
from carpool.wire.lock import WAKE
from carpool.wire.places import Places, find_places
from carpool.wire.protocol import REPLY_MAX

ANSWER_SECONDS = 30.0
WAKE_SECONDS = 3.0  # a daemon that cannot be reached and is told so binds its socket again
LOOK_SECONDS = 0.05
ADOPT_PATIENCE_NS = 60 * 10**9  # how long a job that nobody is in yet waits for its first process
NAME_MAX = 60
PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}  # the interpreter's own choice, not for a program to inherit

Answer = TypeVar("Answer", bound="msgspec.Struct")
LONG_BYTES = 1 << 16  # an answer from here on is read by msgspec, which is quicker than its import by then


class Later:
    """A module that is imported when something of it is used: `carpool run` uses nothing of these (Z13)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import msgspec

    from carpool import calls
else:
    calls, msgspec = Later("carpool.calls"), Later("msgspec")


def _said(error: OSError) -> str:
    return error.strerror or (f"no answer in {ANSWER_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error))


def _connected(places: Places) -> socket.socket:
    """A connection to a process of the place's owner; nothing is sent before that is known (I21)."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        owner = places.check_socket()
        connect(peer, str(places.socket), seconds=ANSWER_SECONDS)
        peer.settimeout(ANSWER_SECONDS)
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != owner:
            whose = f"of the machine's daemon ({owner})" if places.is_machine else f"of yours ({owner})"
            raise PeerError(f"a process of user {uid} answers at {places.socket}, not one {whose}")
    except BaseException:
        peer.close()
        raise
    return peer


def _woken(places: Places, error: OSError) -> socket.socket:
    """The connection to a daemon that runs and could not be reached: somebody removed its socket, or it starts."""
    deadline = time.monotonic() + WAKE_SECONDS
    while (daemon := places.find_daemon()) is not None:
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"daemon {daemon.pid} runs and does not answer at {places.socket} ({_said(error)}); it is reached in"
                f" {daemon.run}, if that is the same directory here; to end it: kill {daemon.pid}"
            ) from error
        daemon.send(WAKE)
        time.sleep(LOOK_SECONDS)
        with contextlib.suppress(OSError):
            return _connected(places)
    who, start = ("no daemon", "start one: carpool daemon start")
    if places.is_machine:
        who, start = ("the machine's daemon does not run: nobody", "an admin starts it: sudo carpool daemon start")
    raise UnreachableError(f"{who} answers at {places.socket} ({_said(error)}); {start}") from error


def from_json(body: bytes) -> object:
    """What to_json made, or another writer; ValueError for what is no JSON."""
    if len(body) >= LONG_BYTES:
        with contextlib.suppress(ValueError):
            return msgspec.json.decode(body)
    return json.loads(body)


class DaemonSocket:
    """A blocking connection to the daemon."""

    def __init__(self, places: Places) -> None:
        try:
            self._socket = _connected(places)
        except OSError as error:
            self._socket = _woken(places, error)

    def send(self, message: m.Message) -> None:
        try:
            # A runner passes SIGPIPE on to its program: a daemon that died must not send it one.
            self._socket.sendall(framing.encode(message), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise UnreachableError(
                self._refusal() or f"the daemon does not take what is sent: {_said(error)}"
            ) from error

    def _refusal(self) -> str:
        """Why the daemon hung up before it was asked anything, if it said so."""
        try:
            said = self.receive()
        except (OSError, UnreachableError, PeerError):
            return ""
        return said.reason if isinstance(said, m.Refuse) else ""

    def receive(self, *, seconds: float | None = ANSWER_SECONDS) -> m.Message:
        """The next message; None waits for ever."""
        self._socket.settimeout(seconds)
        head = self._read(framing.HEAD.size)
        length = framing.body_length(head, reply_max=REPLY_MAX)
        return framing.decode(head, self._read(length) if length else b"", loads=from_json)

    def wait_readable(self, seconds: float | None) -> bool:
        """Whether something comes within this time; nothing is read."""
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError as error:
            raise UnreachableError(f"the daemon does not answer: {error}") from error
        return True

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                chunk = self._socket.recv(count - len(parts))
            except OSError as error:
                raise UnreachableError(f"the daemon does not answer: {error}") from error
            if not chunk:
                raise UnreachableError("the daemon closed the connection")
            parts += chunk
        return bytes(parts)

    def close(self) -> None:
        self._socket.close()


class Changes:
    """What happens to jobs, one `calls.Change` at a time, until it is closed, time is up or the daemon is stopped.

    The states in which the jobs are come first, so nothing is missed between a look and the stream. A daemon that
    dies is an UnreachableError, a reader that does not keep up an AnsweredError. A daemon that is stopped ends it.
    """

    def __init__(self, places: Places, *, turns: bool, seconds: float | None) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._changes: list[calls.Change] = []
        self._socket: DaemonSocket | None = DaemonSocket(places)
        try:
            self._socket.send(_call("changes", {"turns": turns}))
            self._take(self._socket)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> calls.Change:
        try:
            while not self._changes:
                if self._socket is None or not self._socket.wait_readable(self._left()):
                    raise StopIteration
                self._take(self._socket)
        except BaseException:
            self.close()
            raise
        return self._changes.pop(0)

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())

    def _take(self, wire: DaemonSocket) -> None:
        piece = _converted("changes", _answer_of("changes", wire.receive()), calls.Changes)
        self._changes += piece.changes
        if piece.end:
            self.close()

    def close(self) -> None:
        """End the stream; the daemon forgets it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Changes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """The daemon that commands use (I20), or the one whose files are in `directory` (as `CARPOOL_DIR`)."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, places: Places | None = None) -> None:
        if places is None:
            places = find_places(directory)
        self.places = places

    # --- questions: they change nothing ---------------------------------------------------------------------

    def is_running(self) -> bool:
        """Whether a daemon answers."""
        try:
            DaemonSocket(self.places).close()
        except UnreachableError:
            return False
        return True

    def ps(self, *, ended: bool = False) -> calls.Node:
        """Every live job and every device at this moment; with `ended` also the newest 20 jobs that are over."""
        return self._ask("ps", calls.Node, all=ended)

    def jobs(self, *, ended: bool = False) -> list[calls.Job]:
        return self.ps(ended=ended).jobs

    def job(self, job: str) -> calls.Job:
        """One job, live or over, by its id, by its name while only one has it, or by the number of its id."""
        return self.describe(job).job

    def describe(self, job: str) -> calls.JobAnswer:
        """The same with where its log is and which policy decides."""
        return self._ask("job", calls.JobAnswer, job=job)

    def explain(self, job: str) -> str:
        """What a job does or waits for, in one sentence with the numbers."""
        return self.job(job).reason

    def log_path(self, job: str) -> Path:
        """Where the output of a submitted job is; the file is there from its start on."""
        if not (log := self.describe(job).log):
            raise RefusedError(f"job {job} is another user's: only its owner and admins may read its log")
        return Path(log)

    def status(self) -> calls.Status:
        """The daemon, its settings and its devices."""
        return self._ask("status", calls.Status)

    def usage(self, asked: calls.UsageAsked | None = None) -> calls.Usage:
        """Who had which device for how long, in some time; of all that is kept unless it says otherwise."""
        return self._ask("usage", calls.Usage, **_said_of(asked or calls.UsageAsked()))

    def history(self, asked: calls.HistoryAsked | None = None) -> calls.History:
        """Jobs that are over, newest first: the newest 50 unless it says otherwise."""
        return self._ask("history", calls.History, **_said_of(asked or calls.HistoryAsked()))

    def changes(self, *, turns: bool = False, seconds: float | None = None) -> Changes:
        """What happens to jobs from now on; with `turns` also that a turn came or went, many times a second."""
        return Changes(self.places, turns=turns, seconds=seconds)

    def wait(self, job: str, *, seconds: float | None = None) -> calls.Job:
        """Wait until a job is over; RefusedError if it is not within `seconds`."""
        with self.changes(seconds=seconds) as changes:
            found = self.job(job)
            if found.is_over:
                return found
            for change in changes:
                if change.job == found.id and change.is_over:
                    return self.job(found.id)
        found = self.job(found.id)
        if found.is_over:
            return found
        if seconds is None:
            raise UnreachableError(f"the daemon was stopped before job {found.id} was over")
        raise RefusedError(f"job {found.id} is not over after {seconds:g} s: {found.reason}")

    # --- orders ---------------------------------------------------------------------------------------------

    def submit(
        self,
        argv: Sequence[str],
        *,
        spec: calls.Spec | None = None,
        cwd: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> calls.Submitted:
        """Run a program as a job in the background, in this directory and environment unless told otherwise. It has
        this process's umask, limits, priority, processors and ignored or blocked signals."""
        if not argv or isinstance(argv, str):  # a text is a sequence of its letters
            what = f"{argv!r} is one text" if argv else "there is no program to submit"
            raise UsageError(f"{what}; give the command line as a list, like ['python', 'train.py']")
        where = str(Path(cwd if cwd is not None else Path.cwd()).absolute())
        spec = spec if spec is not None else calls.Spec(name=name_of(argv))
        if not spec.fingerprint:
            spec = msgspec.structs.replace(spec, fingerprint=fingerprint(argv, cwd=where))
        return self._ask(
            "submit",
            calls.Submitted,
            spec=msgspec.to_builtins(spec),
            argv=list(argv),
            cwd=where,
            environment=dict(os.environ if environment is None else environment),
            inherited=msgspec.to_builtins(inherited()),
        )

    def adopt(
        self,
        spec: Mapping[str, object],
        *,
        argv: Sequence[str] = ("adopted",),
        cwd: str = "/",
        pid: int = 0,
        patience_ns: int = ADOPT_PATIENCE_NS,
        on_wait: Callable[[calls.Joined], object] = lambda joined: None,
    ) -> calls.Joined:
        """A job for a program that somebody else starts, or whose first process is `pid` already; returns when it is
        let in. `on_wait` is told once if it has to wait. The answer has what the program needs in its environment."""
        asked: dict[str, object] = {"spec": dict(spec), "argv": list(argv), "cwd": cwd, "pid": pid}
        wire, is_said = DaemonSocket(self.places), False
        try:
            wire.send(_call("join", {**asked, "patience_ns": patience_ns}))
            while True:
                joined = _converted("join", _answer_of("join", wire.receive(seconds=None)), calls.Joined)
                if joined.page:
                    return joined
                if not is_said:
                    on_wait(joined)
                is_said = True
        finally:
            wire.close()

    def cancel(self, job: str, *, reason: str = "by carpool.Client") -> str:
        """End a job, queued or running; returns its id. The reason is shown with its end."""
        return self._ask("cancel", calls.Cancelled, job=job, reason=reason).job

    def suspend(self, job: str) -> calls.Job:
        """Let a job leave its device at its next boundary, until it is resumed; returns it as it is now."""
        return self._ask("suspend", calls.JobAnswer, job=job).job

    def resume(self, job: str) -> calls.Job:
        """Let a suspended job come back when there is room."""
        return self._ask("resume", calls.JobAnswer, job=job).job

    def resize(
        self,
        job: str,
        *,
        cap_bytes: int | None = None,
        weight_milli: int | None = None,
        share_milli: tuple[int, int] | None = None,
        may_end: bool = False,
    ) -> calls.Job:
        """Give a job more or less; what is not named stays. With `may_end` one that needs more is ended."""
        asked = {"cap_bytes": cap_bytes, "weight_milli": weight_milli, "share_milli": share_milli}
        said = {name: value for name, value in asked.items() if value is not None}
        return self._ask("resize", calls.JobAnswer, job=job, may_end=may_end, **said).job

    def migrate(self, job: str, device: str) -> calls.Job:
        """Let a job go on on another device of this node, from its next boundary on."""
        return self._ask("migrate", calls.JobAnswer, job=job, device=device).job

    def checkpoint(self, job: str, file: str | os.PathLike[str], *, stop: bool = False) -> calls.CheckpointOrder:
        """Tell a job to write itself to a file; its answer appears in the order's directory."""
        path = str(Path(file).absolute())
        return self._ask("checkpoint", calls.CheckpointOrder, job=job, file=path, stop=stop)

    def flush(self) -> None:
        """Have everything that happened until now in the journal's file."""
        self._ask("flush", calls.Nothing)

    def tenants(self) -> list[dict[str, object]]:
        """What tenants may have, and have now."""
        return self._ask("tenants", calls.Tenants).tenants

    def set_tenant(self, tenant: str, settings: Mapping[str, object] | None, *, save: bool = False) -> None:
        """Change what a tenant may have, by its keys in carpool.toml; None: nothing is said of it. For admins."""
        self._ask("tenant", calls.Tenants, tenant=tenant, settings=settings and dict(settings), save=save)

    def reload(self) -> calls.Reloaded:
        """Have the machine's daemon read its settings again; for admins."""
        return self._ask("reload", calls.Reloaded)

    def stop(self, *, force: bool = False) -> int:
        """Stop the daemon; returns the pid of what ends now. Refused while jobs run, unless forced."""
        return self._ask("stop", calls.Stopped, force=force).pid

    # --- below ----------------------------------------------------------------------------------------------

    def call(self, verb: str, **arguments: object) -> dict[str, object]:
        """Ask one thing and take the answer as it travels; the methods above are easier to use."""
        wire = DaemonSocket(self.places)
        try:
            wire.send(_call(verb, arguments))
            return _answer_of(verb, wire.receive())
        finally:
            wire.close()

    def _ask(self, verb: str, kind: type[Answer], **arguments: object) -> Answer:
        return _converted(verb, self.call(verb, **arguments), kind)


def _said_of(asked: calls.UsageAsked | calls.HistoryAsked) -> dict[str, object]:
    return {name: value for name, value in msgspec.to_builtins(asked).items() if value is not None}


def _call(verb: str, arguments: dict[str, object]) -> m.Call:
    return m.Call(verb=verb, arguments=arguments, version=__version__, protocol=m.PROTOCOL)


def _answer_of(verb: str, reply: m.Message) -> dict[str, object]:
    if isinstance(reply, m.Refuse):
        raise UnreachableError(reply.reason)
    if not isinstance(reply, m.Reply):
        raise PeerError(f"the daemon answered {verb} with {type(reply).__name__}")
    if reply.error:
        raise AnsweredError(reply.error, exit_code=reply.code)
    return reply.answer


def _converted(verb: str, answer: dict[str, object], kind: type[Answer]) -> Answer:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise PeerError(f"the daemon's answer to {verb} cannot be read: {error}") from error


def inherited() -> calls.Inherited:
    """What a program would have from this process if it started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    return calls.Inherited(
        umask=int(status["Umask"], 8),  # os.umask would change it for a moment, for all threads
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        scheduler=os.sched_getscheduler(0),
        cpus=sorted(os.sched_getaffinity(0)),
        limits={name: resource.getrlimit(getattr(resource, name)) for name in names},
        ignored_signals=sorted(set(ignored) - PYTHON_IGNORES),
        blocked_signals=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    )


# --- the names of programs --------------------------------------------------------------------------------------


def script_of(argv: Sequence[str]) -> Path | None:
    """The Python script in a command line, if there is one."""
    if not Path(argv[0]).name.startswith(("python", "torchrun", "accelerate")):
        return None
    for word in argv[1:]:
        if word.endswith(".py"):
            return Path(word)
        if word in ("-m", "-c"):
            return None
    return None


def name_of(argv: Sequence[str]) -> str:
    """What a job is called unless somebody says otherwise: its script, else its program."""
    script = script_of(argv)
    return (script.stem if script is not None else Path(argv[0]).name)[:NAME_MAX]


def fingerprint(argv: Sequence[str], *, cwd: str) -> str:
    """Names a program by its words and its script's text: the same again will need the same memory and time."""
    script = script_of(argv)
    digest = hashlib.sha1(json.dumps([list(argv), cwd]).encode(), usedforsecurity=False)
    if script is not None:
        try:
            digest.update((Path(cwd) / script).read_bytes())
        except OSError as error:
            raise UsageError(f"the script {script} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
