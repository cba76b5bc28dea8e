"""Starts a daemon where there is none, and checks that a running one is what a command asks for.

What only a start needs is imported there: most commands find a daemon, and should not wait for the scheduler's code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from carpool.cli.values import parsed
from carpool.client import Client
from carpool.errors import CarpoolError, RefusedError, UnreachableError, UsageError
from carpool.wire.places import Places, make_private

if TYPE_CHECKING:
    from carpool.daemon.config import DaemonConfig

START_SECONDS = 20.0
RACE_SECONDS = 1.0  # the daemon of another start that holds the lock may not listen yet
DISK_MIN_BYTES = 4096


def start_daemon(places: Places, config: DaemonConfig) -> bool:
    """Start a daemon and wait until it answers; False if one was running already."""
    config.check()
    for directory in (places.run, places.state, places.jobs):
        make_private(directory)
    if Client(places=places).is_running():
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
        if Client(places=places).is_running():
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
    if not Client(places=places).is_running():
        from carpool.daemon.config import DaemonConfig

        # A socket without a daemon is one that died: its jobs may still run, and want the devices they were given.
        last = DaemonConfig.load(places.config) if places.socket.exists() else DaemonConfig()
        described = device if device is not None and parsed("--device", is_description, device) else last.device
        start_daemon(places, msgspec.structs.replace(last, policy=policy or last.policy, device=described))
        if device is None or device == described:
            return None
    status = Client(places=places).status()  # also says whether it speaks our version, before anything is entered
    if policy is not None and policy != status.policy:
        raise UsageError(
            f"the running daemon uses policy {status.policy}, not {policy}; leave --policy out, or"
            f" restart it: carpool daemon stop, then carpool daemon start --policy {policy}"
        )
    if device is None or device == status.device:
        return None
    names = [known.id for known in status.devices]
    if device not in names and parsed("--device", is_description, device):
        raise UsageError(
            f"the running daemon manages {status.device}, not {device}; leave --device out, name one of"
            f" {', '.join(names)}, or restart the daemon with --device {device}"
        )
    if device not in names:
        raise UsageError(f"--device: there is no device {device} here; there are {', '.join(names)}")
    return device


def is_description(device: str) -> bool:
    """Whether `--device` describes devices for a daemon (cpu:4GiB, cuda) rather than naming one (gpu0, cpu1)."""
    if re.fullmatch(r"(gpu|cpu)[0-9]+", device):
        return False
    from carpool.devices.kinds import find_devices

    find_devices(device)
    return True
