"""The lock that keeps it to one daemon, and the sign in it: which daemon that is, and where its files are.

A daemon holds two locks all its life. One is beside its socket, the other beside its journal. A second daemon that
finds other directories than the first (another HOME, a /var/tmp of its own) still meets one of the two. The kernel
lets go of a lock however the process ends, so none is left behind by one that was killed.

The lock decides. The sign is only words: it lets others say who is there, and wake a daemon that cannot be reached.
A sign names a process by its pid, its time of birth and the machine's boot. So a pid that was used again, or that of
another machine, is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from carpool.errors import PeerError

SIGN_BYTES_MAX = 1 << 16
BROUGHT_BACK = "--brought-back"  # an argument of the daemon's process: it is started as the last one was told
MACHINE = "--machine"  # the same: it serves all users, in the system's places and as carpool.toml says
WAKE = signal.SIGUSR1  # a daemon that gets it looks whether its socket and its locks are still its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    pid: int
    birth: int  # in clock ticks since boot
    boot: str
    host: str
    run: str
    state: str
    is_brought_back: bool  # a runner or `carpool run` started it as the last one was told; nobody chose its settings

    def is_alive(self) -> bool:
        """Whether its daemon runs, as far as can be seen from here."""
        return self.boot == boot_id() and self.birth == birth_of(self.pid)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.is_alive():
                os.kill(self.pid, number)


def make_sign(*, run: Path, state: Path, is_brought_back: bool) -> Sign:
    """The sign of this process."""
    return Sign(
        pid=os.getpid(),
        birth=birth_of(os.getpid()),
        boot=boot_id(),
        host=os.uname().nodename,
        run=str(run),
        state=str(state),
        is_brought_back=is_brought_back,
    )


def read_sign(path: Path, *, owner: int | None = None) -> Sign | None:
    """What the newest holder wrote into a lock; None if there is none, it cannot be read, or somebody else than the
    owner (this user) wrote it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != (os.geteuid() if owner is None else owner):
            return None
        return _decoded(os.read(fd, SIGN_BYTES_MAX))
    except (OSError, ValueError, TypeError):
        return None
    finally:
        os.close(fd)


def _decoded(text: bytes) -> Sign:
    sign = Sign(**json.loads(text))
    for field in fields(sign):
        if type(getattr(sign, field.name)).__name__ != field.type:
            raise TypeError(field.name)
    return sign


class Lock:
    """A file that one process holds; use `take_lock`."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def is_own(self) -> bool:
        """Whether the file that others find there is the one we hold."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except OSError:
            return False

    def write(self, sign: Sign) -> None:
        text = _encoded(sign)
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))

    def close(self) -> None:
        os.close(self._fd)


def show_sign(path: Path, sign: Sign) -> None:
    """Let everyone read who the daemon is, without a lock that somebody could hold; the caller has the locks."""
    draft = path.with_name(f"{path.name}.new")
    with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)
        draft.write_bytes(_encoded(sign))
        draft.chmod(0o644)
        draft.replace(path)


def _encoded(sign: Sign) -> bytes:
    return json.dumps(asdict(sign)).encode()


def take_lock(path: Path, sign: Sign) -> Lock | None:
    """Hold this lock and write the sign into it; None if another process has it. It never waits."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        lock = Lock(path, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except OSError as error:
            lock.close()
            raise PeerError(
                f"{path} cannot be locked: {error.strerror}; set CARPOOL_DIR to a directory on a disk of this machine"
            ) from error
        if lock.is_own():  # else it was removed before we had it
            lock.write(sign)
            return lock
        lock.close()


def boot_id() -> str:
    """Changes whenever the machine starts, and is another on every machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def birth_of(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if it is gone or dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19]) if fields[0] not in "ZX" else 0
