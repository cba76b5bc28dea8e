"""Where carpool keeps its files, and the check that they are this user's alone.

There are two directories. `run` holds what ends with the machine: socket, pages, the daemon's lock. `state` holds
what is kept: journal and logs. `CARPOOL_DIR` puts both under one directory, as the tests do.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from carpool.errors import PeerError, UsageError

SOCKET_PATH_MAX = 107  # the kernel's limit for the name of a Unix socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    run: Path
    state: Path
    store: Path | None = None  # for parked jobs, if the daemon was told another than that in `state`

    @property
    def socket(self) -> Path:
        return self.run / "daemon.sock"

    @property
    def lock(self) -> Path:
        return self.run / "daemon.lock"

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


def find_places(directory: str | os.PathLike[str] | None = None) -> Places:
    """The directories of this user, from the environment unless one is named; nothing is made."""
    chosen = os.environ.get("CARPOOL_DIR") if directory is None else directory
    if chosen:
        base = Path(chosen).absolute()
        places = Places(run=base / "run", state=base / "state")
    else:
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        run = Path(runtime) / "carpool" if runtime else Path(tempfile.gettempdir()) / f"carpool-{os.geteuid()}"
        kept = os.environ.get("XDG_STATE_HOME")
        state = (Path(kept) if kept else Path.home() / ".local" / "state") / "carpool"
        places = Places(run=run, state=state)
    if len(os.fsencode(places.socket)) > SOCKET_PATH_MAX:
        raise UsageError(
            f"the socket path {places.socket} is longer than the {SOCKET_PATH_MAX} characters the kernel allows;"
            " set CARPOOL_DIR to a shorter directory"
        )
    return places


def make_private(directory: Path) -> None:
    """Make a directory that only this user can enter, or make sure that it is one."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PeerError(f"cannot make {directory}: {error.strerror}; set CARPOOL_DIR to another place") from error
    check_private(directory)


def check_private(path: Path) -> None:
    """Refuse a directory or socket that belongs to somebody else or that others may enter."""
    facts = path.lstat()
    if facts.st_uid != os.geteuid():
        raise PeerError(
            f"{path} belongs to user {facts.st_uid}, not to you ({os.geteuid()}); remove it or set CARPOOL_DIR"
        )
    if stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o077:
        raise PeerError(f"{path} is open to other users (mode {facts.st_mode & 0o777:o}); run: chmod 700 {path}")
