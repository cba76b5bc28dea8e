"""The command line's end of the connection, and starting a daemon when there is none.

What only a start needs is imported there: most commands find a daemon, and should not wait for the scheduler's code.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from carpool import __version__
from carpool.cli.values import parsed
from carpool.errors import AnsweredError, CarpoolError, PeerError, RefusedError, UnreachableError, UsageError
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import Places, check_private, make_private

if TYPE_CHECKING:
    from carpool.daemon.config import DaemonConfig

ANSWER_SECONDS = 30.0
START_SECONDS = 20.0
RACE_SECONDS = 1.0  # the daemon of another start that holds the lock may not listen yet
DISK_MIN_BYTES = 4096


class Wire:
    """A blocking connection to the daemon."""

    def __init__(self, places: Places) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            check_private(places.socket)
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.connect(str(places.socket))
        except OSError as error:
            self._socket.close()
            raise UnreachableError(
                f"no daemon answers at {places.socket} ({error.strerror}); start one: carpool daemon start"
            ) from error

    def send(self, message: m.Message) -> None:
        try:
            # A runner passes SIGPIPE on to its program: a daemon that died must not send it one.
            self._socket.sendall(framing.encode(message), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise UnreachableError(f"the daemon closed the connection: {error.strerror}") from error

    def receive(self, *, for_ever: bool = False) -> m.Message:
        self._socket.settimeout(None if for_ever else ANSWER_SECONDS)
        head = self._read(framing.HEAD.size)
        length = framing.body_length(head)
        return framing.decode(head, self._read(length) if length else b"")

    def _read(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            try:
                chunk = self._socket.recv(count - len(parts))
            except OSError as error:
                raise UnreachableError(f"the daemon does not answer: {error}") from error
            if not chunk:
                raise UnreachableError("the daemon closed the connection")
            parts += chunk
        return parts

    def close(self) -> None:
        self._socket.close()


def call(places: Places, verb: str, **arguments: object) -> dict[str, object]:
    """Ask the daemon one thing."""
    wire = Wire(places)
    try:
        wire.send(m.Call(verb=verb, arguments=arguments, version=__version__, protocol=m.PROTOCOL))
        reply = wire.receive()
    finally:
        wire.close()
    if isinstance(reply, m.Refuse):
        raise UnreachableError(reply.reason)
    if not isinstance(reply, m.Reply):
        raise PeerError(f"the daemon answered {verb} with {type(reply).__name__}")
    if reply.error:
        raise AnsweredError(reply.error, exit_code=reply.code)
    return reply.answer


def is_running(places: Places) -> bool:
    try:
        Wire(places).close()
    except UnreachableError:
        return False
    return True


def start_daemon(places: Places, config: DaemonConfig) -> bool:
    """Start a daemon and wait until it answers; False if one was running already."""
    config.check()
    for directory in (places.run, places.state, places.jobs):
        make_private(directory)
    if is_running(places):
        return False
    with open(places.state / "daemon.err", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "carpool.daemon.main", msgspec.json.encode(config).decode()],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            cwd="/",
            env={key: value for key, value in os.environ.items() if key not in _NOT_FOR_DAEMON},
        )
    began, ended = time.monotonic(), 0.0
    while time.monotonic() - began < START_SECONDS:
        code = process.poll()
        if is_running(places):
            return code is None
        if code is not None:
            ended = ended or time.monotonic()
            if code == UsageError.exit_code or time.monotonic() - ended > RACE_SECONDS:
                raise _not_started(places, code)
        time.sleep(0.01)
    raise UnreachableError(f"the daemon did not answer within {START_SECONDS:.0f} s; see {places.daemon_log}")


def restart_daemon(places: Places) -> None:
    """Start a daemon again as the last one was told; nothing happens where one runs."""
    from carpool.daemon.config import DaemonConfig

    start_daemon(places, DaemonConfig.load(places.config))


def _not_started(places: Places, code: int) -> CarpoolError:
    """Why a daemon ended instead of answering: by its own exit code misuse (2), or a failure (1) like a full disk."""
    said = (places.state / "daemon.err").read_text(errors="replace").strip()
    if not said and shutil.disk_usage(places.state).free < DISK_MIN_BYTES:
        said = f"No space left on device: {places.state}"  # not even for its own last words
    words = said.rpartition("\n")[2].removeprefix("carpool daemon: ")  # of a traceback what matters is its end
    if code == UsageError.exit_code:
        return UsageError(words)
    where = f" (see {places.state / 'daemon.err'})" if "\n" in said else ""
    return RefusedError(f"no daemon could be started: {words or f'it ended with exit code {code}'}{where}")


_NOT_FOR_DAEMON = {"CARPOOL_JOB", "CARPOOL_SOCKET", "CARPOOL_PAGE", "LD_PRELOAD"}


def ensure_daemon(places: Places, *, policy: str | None, device: str | None) -> str | None:
    """Start a daemon if none runs; returns the device of it that `--device` names, or None for any.

    A running daemon with another policy or other devices is not changed behind its users' backs.
    """
    if not is_running(places):
        from carpool.daemon.config import DaemonConfig

        # A socket without a daemon is one that died: its jobs may still run, and want the devices they were given.
        last = DaemonConfig.load(places.config) if places.socket.exists() else DaemonConfig()
        described = device if device is not None and parsed("--device", is_description, device) else last.device
        start_daemon(places, msgspec.structs.replace(last, policy=policy or last.policy, device=described))
        if device is None or device == described:
            return None
    status = call(places, "status")  # also says whether it speaks our version, before anything is entered
    if policy is not None and policy != status["policy"]:
        raise UsageError(
            f"the running daemon uses policy {status['policy']}, not {policy}; leave --policy out, or"
            f" restart it: carpool daemon stop, then carpool daemon start --policy {policy}"
        )
    devices = msgspec.convert(status["devices"], list[dict[str, object]])
    if device is None or device == status["device"]:
        return None
    names = [str(known["id"]) for known in devices]
    if device not in names and parsed("--device", is_description, device):
        raise UsageError(
            f"the running daemon manages {status['device']}, not {device}; leave --device out, name one of"
            f" {', '.join(names)}, or restart the daemon with --device {device}"
        )
    if device not in names:
        raise UsageError(f"--device: there is no device {device} here; there are {', '.join(names)}")
    return device


def is_description(device: str) -> bool:
    """Whether `--device` describes devices for a daemon (cpu:4GiB, cuda) rather than naming one (gpu0, cpu1)."""
    if re.fullmatch(r"(gpu|cpu)[0-9]+", device):
        return False
    from carpool.devices.base import find_devices

    find_devices(device)
    return True
