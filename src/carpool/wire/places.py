"""Where carpool keeps its files, and the check that they are this user's alone.

There are two directories. `run` holds what the daemon is reached by: socket, lock, pages and files of jobs. `state`
holds what is kept: journal and logs.

One daemon serves one user of one machine, so `run` depends on nothing else. No variable that a shell, cron and a
service set differently moves it (HOME, XDG_RUNTIME_DIR, TMPDIR), and no logout removes it. `/var/tmp` is on every
Linux, is a disk of this machine even where homes are not, and leaves room for the name of a socket. `state` is below
the user's home and named after the machine, because one home may serve several. While a daemon or jobs of it are
there, `state` is what that daemon took.

`CARPOOL_DIR` puts both under one directory, as the tests do: that is another daemon.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from carpool.errors import PeerError, UsageError
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
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def parked(self) -> Path:
        """Where CPU-device jobs put their memory while they are parked: on a disk, which `run` often is not."""
        return self.store if self.store is not None else self.state / "parked"

    @property
    def daemon_log(self) -> Path:
        return self.state / "daemon.log"

    def directories(self) -> tuple[Path, ...]:
        """What a daemon needs, parents first."""
        return (*self.directories_of_run(), *self.directories_of_state())

    def directories_of_run(self) -> tuple[Path, ...]:
        return (self.run, self.jobs, self.bells)

    def directories_of_state(self) -> tuple[Path, ...]:
        """Those on a disk that may hang while jobs take turns: a home, often."""
        return (self.state, self.parked)

    def find_daemon(self) -> Sign | None:
        """The daemon that holds one of the locks, whether it can be reached or not."""
        found = (read_sign(path) for path in (self.lock, self.journal_lock))
        return next((sign for sign in found if sign is not None and sign.is_alive()), None)


def find_places(directory: str | os.PathLike[str] | None = None) -> Places:
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
