"""Starts a daemon where there is none, and checks that a running one is what a command asks for.

What only a start needs is imported there: most commands find a daemon, and should not wait for the scheduler's code.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from carpool.cli.values import parsed
from carpool.client import Client, DaemonSocket
from carpool.errors import CarpoolError, RefusedError, UnreachableError, UsageError
from carpool.wire.lock import BROUGHT_BACK, MACHINE, read_sign
from carpool.wire.places import Places, make_directory

if TYPE_CHECKING:
    from carpool.daemon.config import DaemonConfig

START_SECONDS = 20.0
RACE_SECONDS = 1.0  # the daemon of another start that holds the lock may not listen yet
DISK_MIN_BYTES = 4096
# Of a service account: to give users their files, to read what their programs write, to see and end their processes.
RIGHTS = ("chown", "dac_override", "fowner", "kill", "sys_ptrace")


def start_daemon(places: Places, config: DaemonConfig, *, is_brought_back: bool = False) -> bool:
    """Start a daemon and wait until it answers; False if one was running already."""
    config.check()
    if places.is_machine:
        return start_machine(places)
    for directory in (places.run, places.state, places.jobs):
        make_directory(places, directory)
    if Client(places=places).is_running():
        return False
    return _start(places, _words(config, is_brought_back=is_brought_back))


def start_machine(places: Places) -> bool:
    """The same for the machine's daemon, which is told what its settings say: only who serves it can start it."""
    if Client(places=places).is_running():
        return False
    owner = places.state.lstat().st_uid if places.state.exists() else os.geteuid()  # it outlives a boot; `run` not
    if os.geteuid() not in (0, owner):
        DaemonSocket(places).close()  # says why it cannot be reached, and who starts it
    for directory in (places.run, places.state):
        make_directory(places, directory, owner=owner)
    return _start(places, [MACHINE], owner=owner)


def replace_brought_back(places: Places, config: DaemonConfig) -> bool:
    """Start a daemon in the place of one whose settings nobody chose; False if the one that runs is no such."""
    sign = places.find_daemon()
    return sign is not None and sign.is_brought_back and _start(places, _words(config, is_brought_back=False))


def _words(config: DaemonConfig, *, is_brought_back: bool) -> list[str]:
    import msgspec

    return [msgspec.json.encode(config).decode(), *([BROUGHT_BACK] if is_brought_back else [])]


def _start(places: Places, words: list[str], *, owner: int | None = None) -> bool:
    process = _spawn(places, words, owner)
    began, ended = time.monotonic(), 0.0
    while time.monotonic() - began < START_SECONDS:
        code, sign = process.poll(), read_sign(places.lock, owner=owner)
        is_ours = sign is not None and sign.pid == process.pid
        if (is_ours or code is not None) and Client(places=places).is_running():
            return code is None
        if code is not None:
            ended = ended or time.monotonic()
            if code == UsageError.exit_code or time.monotonic() - ended > RACE_SECONDS:
                raise _not_started(places, code)
        time.sleep(0.01)
    raise UnreachableError(f"the daemon did not answer within {START_SECONDS:.0f} s; see {places.daemon_log}")


def _spawn(places: Places, words: list[str], owner: int | None) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_DAEMON}
    if places.base is not None:
        environment["CARPOOL_DIR"] = str(places.base)  # it may have been said as seen from this directory
    if places.root is not None:
        environment["CARPOOL_ROOT"] = str(places.root)
    with open(places.state / "daemon.err", "wb", opener=_private) as errors:
        return subprocess.Popen(
            _as_account(owner, [sys.executable, "-m", "carpool.daemon.main", *words]),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            cwd="/",
            env=environment,
        )


def _as_account(owner: int | None, words: list[str]) -> list[str]:
    """The command that runs these words as that account, with the rights a daemon of all users needs."""
    if owner in (None, os.geteuid()):
        return words
    if shutil.which("setpriv") is None:
        raise RefusedError("setpriv (util-linux) is missing, which starts the daemon as another account than root")
    rights = ",".join(f"+{right}" for right in RIGHTS)
    group = pwd.getpwuid(owner).pw_gid
    who = [f"--reuid={owner}", f"--regid={group}", "--init-groups"]
    kept = [f"--bounding-set=-all,{rights}", f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    return ["setpriv", *who, *kept, *words]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def bring_daemon_back(places: Places) -> None:
    """Start a daemon again as the last one was told; nothing happens where one runs, however busy it is, or where
    somebody else is bringing it back."""
    from carpool.daemon.config import DaemonConfig

    if places.find_daemon() is not None or places.is_machine:  # the system brings that one back
        return
    with open(places.run / "restart.lock", "wb", opener=_private) as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        start_daemon(places, DaemonConfig.load(places.config), is_brought_back=True)


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


_NOT_FOR_DAEMON = {"CARPOOL_DIE_AT", "CARPOOL_JOB", "CARPOOL_SOCKET", "CARPOOL_PAGE", "LD_PRELOAD"}


def ensure_daemon(places: Places, *, policy: str | None, device: str | None) -> str | None:
    """Start a daemon if none runs; returns the device of it that `--device` names, or None for any.

    A running daemon with another policy or other devices is not changed behind its users' backs.
    """
    if not places.is_machine and not Client(places=places).is_running():
        import msgspec

        from carpool.daemon.config import DaemonConfig

        # A socket without a daemon is one that died: its jobs may still run, and want the devices they were given.
        last = DaemonConfig.load(places.config) if places.socket.exists() else DaemonConfig()
        described = device if device is not None and parsed("--device", is_description, device) else last.device
        chosen = msgspec.structs.replace(last, policy=policy or last.policy, device=described)
        start_daemon(places, chosen, is_brought_back=places.socket.exists() and chosen == last)
        if device is None or device == described:
            return None
    if policy is None and device is None:
        Client(places=places).call("status")  # says whether it speaks our version, before anything is entered
        return None
    status = Client(places=places).status()
    if policy is not None and policy != status.policy:
        how = f"restart it: carpool daemon stop, then carpool daemon start --policy {policy}"
        if places.is_machine:
            how = f"ask an admin to write it into {places.settings}"
        raise UsageError(
            f"the running daemon uses policy {status.policy}, not {policy}; leave --policy out, or {how}"
        )
    if device is None or device == status.device:
        return None
    names = [known.id for known in status.devices]
    if device not in names and parsed("--device", is_description, device):
        how = "" if places.is_machine else f", or restart the daemon with --device {device}"
        raise UsageError(
            f"the running daemon manages {status.device}, not {device}; leave --device out, name one of"
            f" {', '.join(names)}{how}"
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
