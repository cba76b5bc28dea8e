"""Where carpool keeps its files, and the check that they are this user's alone.

There are two directories. `run` holds what the daemon is reached by: socket, lock, pages and files of jobs. `state`
holds what is kept: journal and logs.

One daemon serves one user of one machine, so `run` depends on nothing else. No variable that a shell, cron and a
service set differently moves it (HOME, XDG_RUNTIME_DIR, TMPDIR), and no logout removes it. `/var/tmp` is on every
Linux, is a disk of this machine even where homes are not, and leaves room for the name of a socket. `state` is below
the user's home and named after the machine, because one home may serve several. While a daemon or jobs of it are
there, `state` is what that daemon took.

`CARPOOL_DIR` puts both under one directory, as the tests do: that is another daemon.

Where a daemon of the machine is installed, commands use that one: it serves all users. Its places are the system's
(/etc/carpool, /run/carpool, /var/lib/carpool, /var/log/carpool), or those below `CARPOOL_ROOT`.

Rules
  I20 A command uses the daemon that CARPOOL_DIR names; else the machine's, if it is installed: its settings are
      there, and its socket or one of its locks; else the user's own.
  I21 A command talks to the owner of the daemon's place only: of an own daemon to the user himself, of the
      machine's to whoever root gave its run directory. Nothing is sent before the kernel said who answers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from carpool.errors import PeerError, UnreachableError, UsageError
from carpool.wire.lock import Sign, read_sign

SOCKET_PATH_MAX = 107  # the kernel's limit for the name of a Unix socket
RUN_PARENT = Path("/var/tmp")
FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk, or this user's part of it
CHECKPOINT_REFUSED = "checkpoint.refused"  # in a job's directory: why it can no longer be written, by the job itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    run: Path
    state: Path
    base: Path | None = None  # what CARPOOL_DIR says; None for the usual places
    store: Path | None = None  # for parked jobs, if the daemon was told another than that in `state`
    root: Path | None = None  # of the machine's daemon: the directory before /etc, /run and /var; None: an own daemon
    group: int | None = None  # of the machine's daemon: only members of this group may use it; None: everyone

    @property
    def is_machine(self) -> bool:
        """Whether these are of the daemon that serves all users of the machine."""
        return self.root is not None

    @property
    def settings(self) -> Path:
        """What an admin wrote for the machine's daemon."""
        assert self.root is not None
        return self.root / "etc" / "carpool" / "carpool.toml"

    @property
    def sign(self) -> Path:
        """Who the machine's daemon is, for all to read: the locks are for nobody else to open."""
        return self.run / "daemon.sign"

    @property
    def socket(self) -> Path:
        return self.run / "daemon.sock"

    @property
    def lock(self) -> Path:
        return self.run / "daemon.lock"

    @property
    def journal_lock(self) -> Path:
        """The second lock, for those who find this journal and another `run`."""
        return self.state / "journal.lock"

    @property
    def jobs(self) -> Path:
        return self.run / "jobs"

    @property
    def bells(self) -> Path:
        return self.run / "bells"

    @property
    def knock(self) -> Path:
        """The socket at which a program knocks while its allocation waits."""
        return self.run / "knock"

    @property
    def config(self) -> Path:
        return self.run / "daemon.json"

    @property
    def journal(self) -> Path:
        return self.state / "journal.db"

    @property
    def kept_jobs(self) -> Path:
        """What the daemon keeps of jobs: the machine's where no user can look."""
        return self.jobs if self.root is None else self.state / "jobs"

    @property
    def logs(self) -> Path:
        return self.state / "logs" if self.root is None else self.root / "var" / "log" / "carpool"

    @property
    def parked(self) -> Path:
        """Where CPU-device jobs put their memory while they are parked: on a disk, which `run` often is not."""
        return self.store if self.store is not None else self.state / "parked"

    def logs_of(self, user: int | None) -> Path:
        """Where the logs of this user's jobs are: on the machine in a directory that only he can enter."""
        return self.logs if self.root is None else self.logs / str(user)

    def all_logs(self) -> list[Path]:
        """Every directory of logs."""
        return [self.logs] if self.root is None else [path for path in self.logs.iterdir() if path.is_dir()]

    def parked_of(self, user: int) -> Path:
        """Where this user's jobs put their memory."""
        return self.parked if self.root is None else self.parked / str(user)

    @property
    def daemon_log(self) -> Path:
        return (self.state if self.root is None else self.logs) / "daemon.log"

    def directories(self) -> tuple[Path, ...]:
        """What a daemon needs, parents first."""
        return (*self.directories_of_run(), *self.directories_of_state())

    def directories_of_run(self) -> tuple[Path, ...]:
        return (self.run, self.jobs, self.bells)

    def directories_of_state(self) -> tuple[Path, ...]:
        """Those on a disk that may hang while jobs take turns: a home, often."""
        return (
            (self.state, self.parked) if self.root is None else (self.state, self.parked, self.kept_jobs, self.logs)
        )

    def mode_of(self, directory: Path) -> int:
        """Who may do what in a directory of the daemon's: nobody else, but for what others need of the machine's."""
        if self.root is None or directory == self.kept_jobs:
            return 0o700
        if directory == self.run:
            return 0o755 if self.group is None else 0o750
        return 0o711

    @property
    def socket_mode(self) -> int:
        if self.root is None:
            return 0o700
        return 0o666 if self.group is None else 0o660

    def is_installed(self) -> bool:
        """Whether the machine has a daemon for all its users, running or not (I20)."""
        traces = (self.socket, self.lock, self.journal_lock)  # the last outlives a boot, and anybody may see it
        return _is_seen(self.settings) and any(map(_is_seen, traces))

    def find_daemon(self) -> Sign | None:
        """The daemon that holds one of the locks, whether it can be reached or not."""
        if self.is_machine:
            with contextlib.suppress(PeerError, OSError):
                sign = read_sign(self.sign, owner=self.owner())
                return sign if sign is not None and sign.is_alive() else None
            return None
        found = (read_sign(path) for path in (self.lock, self.journal_lock))
        return next((sign for sign in found if sign is not None and sign.is_alive()), None)

    def owner(self) -> int:
        """The user who serves there (I21); PeerError if that is nobody who may, OSError if there is no directory."""
        if self.root is None:
            return os.geteuid()
        facts = self.run.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_mode & stat.S_IWOTH:
            raise PeerError(f"{self.run} is no directory that only the machine's daemon writes; tell an admin")
        if facts.st_uid not in (0, os.geteuid()):
            above = self.run.parent.stat()
            if above.st_uid != 0 or above.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PeerError(
                    f"{self.run} belongs to user {facts.st_uid}, and nothing says that root gave it to him; tell an"
                    " admin, or set CARPOOL_DIR for a daemon of your own"
                )
        return facts.st_uid

    def check_socket(self) -> int:
        """Refuse a socket of somebody else; returns who has to answer there (I21)."""
        if self.root is None:
            check_private(self.socket)
            return os.geteuid()
        owner = self.owner()
        try:
            facts = self.socket.lstat()
        except PermissionError as error:
            raise UnreachableError(
                f"the machine's daemon is for members of group {_name_of(self.run.lstat().st_gid)} only ({self.run});"
                " ask an admin to make you one, or set CARPOOL_DIR for a daemon of your own"
            ) from error
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != owner:
            raise PeerError(f"{self.socket} belongs to user {facts.st_uid}, not to the machine's daemon ({owner})")
        return owner


def _is_seen(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False
    return True


def _name_of(group: int) -> str:
    import grp

    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def find_places(directory: str | os.PathLike[str] | None = None) -> Places:
    """Those of the daemon that a command uses (I20); a directory that is named counts as CARPOOL_DIR."""
    if directory is None and not os.environ.get("CARPOOL_DIR"):
        machine = machine_places()
        if machine.is_installed():
            return machine
    return own_places(directory)


def machine_places(root: str | os.PathLike[str] | None = None) -> Places:
    """Those of the machine's daemon, installed or not; below another root if one is named, also by CARPOOL_ROOT."""
    said = Path(root if root is not None else os.environ.get("CARPOOL_ROOT") or "/")
    if not said.is_absolute():
        raise UsageError(f"CARPOOL_ROOT={said} is no absolute path; the machine's daemon has its files below it")
    places = Places(run=said / "run" / "carpool", state=said / "var" / "lib" / "carpool", root=said)
    if len(os.fsencode(places.socket)) > SOCKET_PATH_MAX:
        raise UsageError(
            f"the socket path {places.socket} is longer than the {SOCKET_PATH_MAX} characters the kernel allows;"
            " set CARPOOL_ROOT to a shorter directory"
        )
    return places


def places_of_job(directory: Path) -> Places:
    """Those of the daemon that has this directory of a job, whatever a command would use now."""
    machine = machine_places()
    return machine if directory.parent == machine.jobs else own_places()


def own_places(directory: str | os.PathLike[str] | None = None) -> Places:
    """The directories of this user, or below the one that is named, here or by CARPOOL_DIR; nothing is made."""
    chosen = os.environ.get("CARPOOL_DIR") if directory is None else directory
    if not chosen:
        run = RUN_PARENT / f"carpool-{os.geteuid()}"
        return Places(run=run, state=_taken_state(run) or usual_state())
    base = Path(chosen).absolute()
    places = Places(run=base / "run", state=base / "state", base=base)
    if len(os.fsencode(places.socket)) > SOCKET_PATH_MAX:
        raise UsageError(
            f"the socket path {places.socket} is longer than the {SOCKET_PATH_MAX} characters the kernel allows;"
            " set CARPOOL_DIR to a shorter directory"
        )
    return places


def usual_state() -> Path:
    """Where journal and logs go on this machine; UsageError if this user has no home."""
    kept = os.environ.get("XDG_STATE_HOME", "")
    parent = Path(kept) if kept.startswith("/") else _home() / ".local" / "state"
    return parent / "carpool" / os.uname().nodename


def _home() -> Path:
    said = os.environ.get("HOME")
    if said and not said.startswith("/"):
        raise UsageError(f"HOME={said} is no absolute path; set it to your home, or set CARPOOL_DIR")
    try:
        return Path(said) if said else Path.home()
    except RuntimeError as error:
        raise UsageError(
            f"user {os.geteuid()} has no home: HOME is not set, and /etc/passwd does not know the user;"
            " set HOME, or set CARPOOL_DIR to a directory for carpool's files"
        ) from error


def _taken_state(run: Path) -> Path | None:
    """The state of the daemon that is here, or was here and left its socket or jobs."""
    sign = read_sign(run / "daemon.lock")
    try:
        is_left = (run / "daemon.sock").exists() or any((run / "jobs").iterdir())
        return Path(sign.state) if sign is not None and is_left and Path(sign.state).is_dir() else None
    except OSError:
        return None


def make_directory(places: Places, directory: Path, *, owner: int | None = None) -> None:
    """Make one of the daemon's directories as it has to be, or make sure that it is so; missing parents too. Root may
    make it for another account, which is the owner of all that the machine's daemon has."""
    if not places.is_machine:
        make_private(directory)
        return
    mode, group = places.mode_of(directory), -1 if places.group is None else places.group
    owner = os.geteuid() if owner is None else owner
    try:
        for missing in _missing_parents(directory):
            missing.mkdir()
            missing.chmod(0o755)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            if owner != os.geteuid():
                os.chown(directory, owner, -1)
        facts = directory.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != owner:
            raise PeerError(f"{directory} is no directory of user {owner}; remove it, or give it to that user")
        if group not in (-1, facts.st_gid):
            os.chown(directory, -1, group)
        directory.chmod(mode)
    except OSError as error:
        room = "; free some space there" if error.errno in FULL else ""
        raise PeerError(f"cannot make {directory}: {error.strerror}{room}") from error


def make_private(directory: Path) -> None:
    """Make a directory that only this user can enter, or make sure that it is one; missing parents too."""
    try:
        for missing in (*_missing_parents(directory), directory):
            try:
                missing.mkdir(mode=0o700)
            except FileExistsError:
                continue
            missing.chmod(0o700)  # a umask may have taken even that away
        if not directory.is_dir():
            raise PeerError(f"{directory} is not a directory; remove it or set CARPOOL_DIR to another place")
    except OSError as error:
        room = "free some space there, or " if error.errno in FULL else ""
        raise PeerError(
            f"cannot make {directory}: {error.strerror}; {room}set CARPOOL_DIR to another place"
        ) from error
    check_private(directory)


def _missing_parents(directory: Path) -> list[Path]:
    """Outermost first."""
    return [parent for parent in reversed(directory.parents) if not parent.exists()]


def check_private(path: Path) -> None:
    """Refuse a directory or socket that belongs to somebody else or that others may enter; a link counts as both."""
    for facts in (path.lstat(), path.stat()):
        if facts.st_uid != os.geteuid():
            raise PeerError(
                f"{path} belongs to user {facts.st_uid}, not to you ({os.geteuid()}); remove it or set CARPOOL_DIR"
            )
        if stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o077:
            raise PeerError(f"{path} is open to other users (mode {facts.st_mode & 0o777:o}); run: chmod 700 {path}")
