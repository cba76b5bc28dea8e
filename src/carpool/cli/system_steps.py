"""How the machine's daemon is installed and removed: a list of steps, each with its sentence; done or only said.

Rules
  I24 Installing again does only what is missing, and writes nothing over settings that are there. Removing leaves
      settings, journal and logs, unless somebody asks for that.
  I25 carpool is installed for all only where all can read it: programs of every user load it. Who
      installs what somebody else than root can write is told which path that is.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import carpool
from carpool.cli.launch import RIGHTS, start_machine
from carpool.client import Client
from carpool.daemon.processes import birth_of, is_alive
from carpool.daemon.settings_text import settings_text
from carpool.errors import CarpoolError, RefusedError, UnreachableError, UsageError
from carpool.wire.lock import MACHINE
from carpool.wire.places import Places, make_directory

UNIT = "carpool.service"
BOOTED = Path("/run/systemd/system")  # is there where systemd runs the machine
STOP_SECONDS = 20.0
COMMAND_SECONDS = 60.0
NOLOGIN = "/usr/sbin/nologin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do, and the sentence that says it."""

    says: str
    do: Callable[[], object]


def unit_of(places: Places) -> Path:
    assert places.root is not None
    return places.root / "etc" / "systemd" / "system" / UNIT


def unit_text(places: Places, *, user: str) -> str:
    """The unit of systemd. Jobs outlive the daemon: it alone is ended, and a job that is killed does not end it."""
    lines = [
        f"# Made by carpool system install, which writes it anew; changes belong in {UNIT}.d/",
        "[Unit]",
        "Description=carpool: many deep-learning programs share the devices of this machine",
        "StartLimitIntervalSec=60",
        "StartLimitBurst=10",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={sys.executable} -m carpool.daemon.main {MACHINE}",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "KillMode=process",
        "OOMPolicy=continue",
        "TasksMax=infinity",
        "Restart=on-failure",
        "RestartSec=1",
        "RestartPreventExitStatus=2",
    ]
    if places.root != Path("/"):
        lines.append(f"Environment=CARPOOL_ROOT={places.root}")
    if user:
        rights = " ".join(f"CAP_{right.upper()}" for right in RIGHTS)
        lines += [f"User={user}", f"AmbientCapabilities={rights}", f"CapabilityBoundingSet={rights}"]
        lines.append(f"ExecStartPre=+/usr/bin/install -d -m 0755 -o {user} {places.run}")
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def has_systemd(places: Places) -> bool:
    """Whether systemd runs this machine, and this is the machine's own root."""
    return BOOTED.is_dir() and places.root == Path("/") and shutil.which("systemctl") is not None


def writes_unit(places: Places) -> bool:
    """Whether a unit is of use: here, or in the root of an image that is being made."""
    return has_systemd(places) or (places.root != Path("/") and shutil.which("systemctl") is not None)


# --- install ----------------------------------------------------------------------------------------------------


def install_steps(places: Places, *, group: str, user: str, starts: bool) -> list[Step]:
    """What is missing, in order; UsageError or RefusedError where it cannot be."""
    check_readable()
    user = account_of(places, user)
    steps: list[Step] = []
    if group and not _is_group(group):
        steps.append(Step(says=f"make group {group}", do=lambda: _do("groupadd", "--system", group)))
    if user and not _is_user(user):
        words = ("useradd", "--system", "--no-create-home", "--shell", NOLOGIN, user)
        steps.append(Step(says=f"make user {user}, which cannot log in", do=lambda: _do(*words)))
    steps += _directory_steps(places, user)
    if not places.settings.exists():
        text = settings_text(chosen={"access.group": group} if group else None)
        steps.append(Step(says=f"write {places.settings}", do=partial(_write, places.settings, text)))
    trace = places.journal_lock
    if not trace.exists():
        steps.append(Step(says=f"make {trace}, by which commands know it", do=lambda: _make_lock(trace, user)))
    unit, text = unit_of(places), unit_text(places, user=user)
    if writes_unit(places) and (not unit.exists() or unit.read_text() != text):
        steps.append(Step(says=f"write {unit}", do=partial(_write, unit, text)))
        if has_systemd(places):
            steps.append(Step(says="run systemctl daemon-reload", do=lambda: _do("systemctl", "daemon-reload")))
    if starts and not Client(places=places).is_running():
        steps.append(start_step(places))
    return steps


def account_of(places: Places, user: str) -> str:
    """As whom it runs: as before, if it was here; empty for root. RefusedError for another one than before."""
    if not places.state.exists():
        return "" if user == "root" else user
    before = name_of(places.state.lstat().st_uid)
    if user not in ("", before):
        raise RefusedError(
            f"it was installed to run as {before}, which has {places.state}; to have it run as {user}: carpool system"
            f" uninstall, chown -R {user} {places.state} {places.logs}, and install it again"
        )
    return "" if before == "root" else before


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def start_step(places: Places) -> Step:
    if has_systemd(places) and (unit_of(places).exists() or writes_unit(places)):
        return Step(says=f"run systemctl enable --now {UNIT}", do=lambda: _enable(places))
    return Step(says=f"start the daemon in {places.run}", do=lambda: start_machine(places))


def _enable(places: Places) -> None:
    _do("systemctl", "enable", "--now", UNIT)
    _wait_running(places)


def _wait_running(places: Places) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while not Client(places=places).is_running():
        if time.monotonic() > deadline:
            raise UnreachableError(f"the daemon does not answer; see journalctl -u {UNIT} and {places.daemon_log}")
        time.sleep(0.05)


def _directory_steps(places: Places, user: str) -> list[Step]:
    def make(directory: Path) -> None:
        make_directory(places, directory, owner=_uid(user))

    missing = [each for each in (places.run, places.state, places.logs) if not each.is_dir()]
    return [Step(says=f"make {each}", do=partial(make, each)) for each in missing]


def _uid(user: str) -> int:
    return pwd.getpwnam(user).pw_uid if user else os.geteuid()


def _make_lock(path: Path, user: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchown(fd, _uid(user), -1)
    os.close(fd)


def check_readable() -> None:
    """RefusedError where carpool or its Python is in a directory that other users cannot enter (I25)."""
    for path in (Path(carpool.__file__), Path(sys.executable), Path(sys.executable).resolve()):
        closed = closed_to_others(path)
        if closed is not None:
            raise RefusedError(
                f"other users cannot read {closed}, and carpool needs {path} in all their programs; install carpool"
                " where everyone can read it, with a Python that everyone can read:"
                " /usr/bin/python3 -m venv /opt/carpool, say"
            )


def closed_to_others(path: Path) -> Path | None:
    """The first part of a path that not everyone may pass, or read at its end; None if there is none."""
    for each in (*reversed(path.parents), path):
        facts = each.stat()
        wanted = stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else stat.S_IROTH
        if not facts.st_mode & wanted:
            return each
    return None


def warnings() -> list[str]:
    """What is said of a carpool that others than root can write: whoever can, becomes root by it (I25)."""
    package, python = Path(carpool.__file__).parent, Path(sys.executable)
    found: dict[Path, Path] = {}
    for path in (package, package.resolve(), python, python.resolve()):
        open_part = open_to_others(path)
        if open_part is not None:
            found.setdefault(open_part, path)
    return [
        f"{part} can be written by others than root, and the daemon runs {path}: whoever can write it can become root"
        for part, path in found.items()
    ]


def open_to_others(path: Path) -> Path | None:
    """The first part of a path that is not root's, or that others may write; None if there is none."""
    for each in (*reversed(path.parents), path):
        facts = each.stat()
        writes = stat.S_IWOTH | (stat.S_IWGRP if facts.st_gid else 0)
        is_sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX  # what root has there stays
        if facts.st_uid or (facts.st_mode & writes and not is_sticky):
            return each
    return None


# --- uninstall --------------------------------------------------------------------------------------------------


def uninstall_steps(places: Places, *, force: bool, purge: bool) -> list[Step]:
    """What is there of it, in order; RefusedError while jobs run, unless forced."""
    steps: list[Step] = []
    if Client(places=places).is_running():
        steps.append(Step(says=stop_words(places, force=force), do=lambda: stop_daemon(places)))
    unit = unit_of(places)
    if unit.exists():
        if has_systemd(places):
            steps.append(Step(says=f"run systemctl disable {UNIT}", do=lambda: _do("systemctl", "disable", UNIT)))
        steps.append(Step(says=f"remove {unit}", do=lambda: unit.unlink(missing_ok=True)))
        if has_systemd(places):
            steps.append(Step(says="run systemctl daemon-reload", do=lambda: _do("systemctl", "daemon-reload")))
    removed = [places.run, places.journal_lock]
    if purge:
        removed = [places.run, places.state, places.logs, places.settings, places.settings.parent]
    return steps + [Step(says=f"remove {path}", do=partial(_remove, path)) for path in removed if path.exists()]


def stop_words(places: Places, *, force: bool) -> str:
    """What it means to stop it; RefusedError while jobs run, unless forced."""
    try:
        status = Client(places=places).status()
    except CarpoolError as error:  # it is of another version
        if not force:
            raise RefusedError(f"{error}; nobody knows whether its jobs are over: --force stops it anyway") from error
        return "stop the daemon; what jobs it has go on without taking turns"
    if status.jobs and not force:
        raise RefusedError(
            f"{status.jobs} of its jobs are not over: wait for them or cancel them (carpool ps), or use --force; they"
            " go on without taking turns then"
        )
    left = f"; {status.jobs} of its jobs go on without taking turns" if status.jobs else ""
    return f"stop daemon {status.pid}{left}"


def _remove(path: Path) -> None:
    """A directory with all in it, a file, or a directory in which there is nothing else."""
    if path.name == "carpool" and path.parent.name == "etc":
        with contextlib.suppress(OSError):
            path.rmdir()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def stop_daemon(places: Places) -> None:
    """Stop it and wait until it has ended; its jobs go on."""
    client = Client(places=places)
    if has_systemd(places) and unit_of(places).exists():
        _do("systemctl", "stop", UNIT)
        if not client.is_running():
            return
    pid = client.stop(force=True)
    birth, deadline = birth_of(pid), time.monotonic() + STOP_SECONDS
    while is_alive(pid, birth):
        if time.monotonic() > deadline:
            raise RefusedError(f"daemon {pid} was told to stop {STOP_SECONDS:.0f} s ago; see {places.daemon_log}")
        time.sleep(0.02)


# --- below ------------------------------------------------------------------------------------------------------


def check_root() -> None:
    if os.geteuid() != 0:
        raise UsageError("only root can do this: sudo carpool system …; --dry-run shows what it would do")


def _do(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except FileNotFoundError as error:
        raise RefusedError(f"{words[0]} is not here; do what it does by hand: {' '.join(words)}") from error
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"{' '.join(words)} did not end within {COMMAND_SECONDS:.0f} s") from error
    if done.returncode:
        raise RefusedError(f"{' '.join(words)} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _write(path: Path, text: str) -> None:
    """Write it whole or not at all, for everyone to read."""
    for parent in reversed([each for each in path.parents if not each.exists()]):
        parent.mkdir()
        parent.chmod(0o755)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.chmod(0o644)
    draft.replace(path)


def _is_group(name: str) -> bool:
    try:
        return bool(grp.getgrnam(name))
    except KeyError:
        return False


def _is_user(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False
