"""How a daemon is found and reached: its directories, its locks and its sockets, as long as they are its own.

Anybody may remove what is in a directory: a person, a program that sweeps old files, two daemons of older versions.
So the daemon looks with each of its notes, and whenever somebody wakes it who could not reach it (wire/lock.py). It
makes again what was removed. It removes nothing that is not its own, not even at its end: a socket is known by its
inode. If another daemon holds the lock of the run directory by then, that one has its jobs too, and it gives up.

What lies beside the journal is looked at by a thread: that disk may hang, and turns go on meanwhile. The loop itself
touches the run directory only, where the jobs' pages are too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from carpool.errors import CarpoolError, PeerError
from carpool.wire.lock import Lock, Sign, read_sign, show_sign, take_lock
from carpool.wire.places import Places, make_directory

log = logging.getLogger("carpool")
BACKLOG = 4096  # connections that wait to be taken; the kernel may allow fewer
UNKNOWN_SECONDS = 1.0  # a lock whose holder cannot be seen: one that has just started writes its sign at once
TAKE_OVER_SECONDS = 10.0
LOOK_SECONDS = 0.01
AGAIN_SECONDS = 1.0


class BoundSocket:
    """A Unix socket and the name under which others find it."""

    def __init__(self, path: Path, kind: socket.SocketKind, *, mode: int = 0o700, group: int | None = None) -> None:
        self._path = path
        _remove_dead(path, kind)
        self.socket = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
        try:
            self.socket.bind(os.fsencode(path))  # the umask lets nobody else in yet
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
            if kind == socket.SOCK_STREAM:
                self.socket.listen(BACKLOG)
            self._facts = path.lstat()
        except OSError as error:
            self.socket.close()
            raise PeerError(
                f"no socket can be made at {path}: {error.strerror}; set CARPOOL_DIR to a directory on a disk of this"
                " machine"
            ) from error

    def is_own(self) -> bool:
        """Whether what others find there is this socket."""
        try:
            return os.path.samestat(self._facts, self._path.lstat())
        except OSError:
            return False

    def remove(self) -> None:
        """Take the name away, if it is still ours; call it before the socket is closed, which keeps its inode."""
        if self.is_own():
            with contextlib.suppress(OSError):
                self._path.unlink()


def bind(places: Places, path: Path, kind: socket.SocketKind) -> BoundSocket:
    """A socket that all who may use this daemon can reach."""
    return BoundSocket(path, kind, mode=places.socket_mode, group=places.group)


def _remove_dead(path: Path, kind: socket.SocketKind) -> None:
    """Make way for a socket. Whoever calls this holds the lock, so what is there should be of a daemon that died."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PeerError(f"{path} is no socket of yours; remove it, or set CARPOOL_DIR to another place")
    _check_dead(path, kind)
    path.unlink(missing_ok=True)


def _check_dead(path: Path, kind: socket.SocketKind) -> None:
    if _is_answered(path, kind):
        raise PeerError(f"another process answers at {path}; end it, or set CARPOOL_DIR to another place")


def _is_answered(path: Path, kind: socket.SocketKind) -> bool:
    """Whether a process has this socket; nothing is sent to it."""
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(os.fsencode(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


class Entrance:
    def __init__(self, places: Places, sign: Sign) -> None:
        self._places = places
        self._sign = sign
        before = read_sign(places.lock) or read_sign(places.journal_lock)  # /run is empty after a boot
        self.is_after_boot = before is not None and before.boot != sign.boot  # the machine was started since
        self._locks: dict[Path, Lock] = {}
        self._directory: int | None = None
        self._bound: BoundSocket | None = None
        self._server: asyncio.Server | None = None
        self._connect: Callable[[], asyncio.Protocol] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._is_looking = self._is_look_due = False  # a thread looks at the journal's disk; it is to do so again
        self.on_lost: Callable[[], object] = lambda: None  # another daemon has our place
        self.on_restored: list[Callable[[], object]] = []  # directories are there again, and may be empty

    # --- locks -------------------------------------------------------------------------------------------

    def take_locks(self) -> None:
        """Hold both locks, or PeerError with who does.

        A daemon that a runner brought back makes way for one that somebody starts: that one has chosen its settings.
        """
        began, asked = time.monotonic(), 0
        while (path := self._take_missing()) is not None:
            self._let_go()
            other = read_sign(path)
            is_known = other is not None and other.is_alive()
            may_take_over = other is not None and other.is_brought_back and not self._sign.is_brought_back
            patience = (TAKE_OVER_SECONDS if may_take_over else 0.0) if is_known else UNKNOWN_SECONDS
            if time.monotonic() - began > patience:
                raise PeerError(_who_has(path, other, self._sign))
            if other is not None and may_take_over and other.pid != asked:
                asked = other.pid
                other.send(signal.SIGTERM)
            time.sleep(LOOK_SECONDS)
        # Somebody may have removed the locks of a daemon that lives: nothing of its jobs may be touched.
        _check_dead(self._places.socket, socket.SOCK_STREAM)
        _check_dead(self._places.knock, socket.SOCK_DGRAM)
        self._hold_directory()
        self._show_sign()

    def _take_missing(self) -> Path | None:
        """Take what we do not hold, that of the journal first; returns the one that another process has."""
        for path in (self._places.journal_lock, self._places.lock):
            if path not in self._locks:
                lock = take_lock(path, self._sign)
                if lock is None:
                    return path
                self._locks[path] = lock
        return None

    def _show_sign(self) -> None:
        if self._places.is_machine:
            show_sign(self._places.sign, self._sign)

    def _let_go(self) -> None:
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def _hold_directory(self) -> None:
        """systemd-tmpfiles, which sweeps /var/tmp by age, leaves a directory alone that somebody locks."""
        if self._directory is not None:
            os.close(self._directory)
        self._directory = os.open(self._places.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(self._directory, fcntl.LOCK_SH | fcntl.LOCK_NB)

    # --- the socket --------------------------------------------------------------------------------------

    async def open(self, connect: Callable[[], asyncio.Protocol]) -> None:
        """Let others connect."""
        self._connect = connect
        self._bound = bind(self._places, self._places.socket, socket.SOCK_STREAM)
        await self._serve(self._bound)

    async def _serve(self, bound: BoundSocket) -> None:
        assert self._connect is not None  # open() set it
        before = self._server
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._connect, sock=bound.socket, backlog=BACKLOG
        )
        if before is not None:
            before.close()  # connections that it took stay

    def close(self, *, is_stopped: bool) -> None:
        """Let go of everything. One that was stopped takes its socket with it; else the next daemon is waited for."""
        if is_stopped and self._bound is not None:
            self._bound.remove()
        if self._server is not None and is_stopped:
            self._server.close()
        self._let_go()

    # --- looks -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Make again what was removed; give up if another daemon is in our place."""
        if self._bound is None:
            return
        try:
            self._look_at_state()
            if not self._is_whole(self._bound):
                self._restore()
        except (CarpoolError, OSError, RuntimeError) as error:  # the last: no thread can be started
            log.warning("daemon.unreachable reason=%s", error)  # the next look tries again

    def _is_whole(self, bound: BoundSocket) -> bool:
        """Whether all that it is reached by is there, and is its own."""
        paths = (*self._places.directories_of_run(), self._places.knock)
        return self._locks[self._places.lock].is_own() and all(path.exists() for path in paths) and bound.is_own()

    def _restore(self) -> None:
        for directory in self._places.directories_of_run():
            make_directory(self._places, directory)
        if not self._locks[self._places.lock].is_own():
            again = take_lock(self._places.lock, self._sign)
            if again is None:
                self._make_way()
                return
            self._take_up(self._places.lock, again)
        self._hold_directory()
        self._show_sign()
        for restore in self.on_restored:
            restore()
        if self._bound is not None and not self._bound.is_own():
            self._bound = bind(self._places, self._places.socket, socket.SOCK_STREAM)
            task = asyncio.get_running_loop().create_task(self._serve(self._bound))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        log.warning("daemon.restored pid=%d run=%s", self._sign.pid, self._places.run)

    def _take_up(self, path: Path, again: Lock) -> None:
        """Hold this lock from now on, unless the daemon has let go of all of them meanwhile."""
        before = self._locks.pop(path, None)
        if before is None:
            again.close()
            return
        before.close()
        self._locks[path] = again

    def _look_at_state(self) -> None:
        """Have the journal's directory looked at; once more, if a look there is under way."""
        self._is_look_due = self._is_looking
        if not self._is_looking:
            words = (asyncio.get_running_loop(), self._locks[self._places.journal_lock])
            threading.Thread(target=self._look_aside, args=words, name="state", daemon=True).start()
            self._is_looking = True

    def _look_aside(self, loop: asyncio.AbstractEventLoop, lock: Lock) -> None:
        """A thread does this; the loop takes up what it made."""
        again = self._restore_state(lock)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so does the process
            loop.call_soon_threadsafe(self._state_seen, again)

    def _restore_state(self, lock: Lock) -> Lock | None:
        """Make again what was removed there; returns the lock if it was taken again."""
        path, directories = self._places.journal_lock, self._places.directories_of_state()
        try:
            is_lost = not lock.is_own()
            if not is_lost and all(directory.exists() for directory in directories):
                return None
            for directory in directories:
                make_directory(self._places, directory)
            again = take_lock(path, self._sign) if is_lost else None
        except (CarpoolError, OSError) as error:
            log.warning("daemon.state_lost reason=%s", error)  # the next look tries again
            return None
        if is_lost and again is None:
            log.warning("daemon.state_taken %s", _who_has(path, read_sign(path), self._sign))
        else:
            log.warning("daemon.restored pid=%d state=%s", self._sign.pid, self._places.state)
        return again

    def _state_seen(self, again: Lock | None) -> None:
        self._is_looking = False
        if again is not None:
            self._take_up(self._places.journal_lock, again)
        if self._is_look_due:
            self.look()

    def _make_way(self) -> None:
        """Another process has our lock. It may yet be refused because of us, so it counts once it listens."""
        if _is_answered(self._places.socket, socket.SOCK_STREAM):
            path = self._places.lock
            log.error("daemon.replaced %s", _who_has(path, read_sign(path), self._sign))
            self.on_lost()
        else:
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.look)


def _who_has(path: Path, other: Sign | None, own: Sign) -> str:
    """Which daemon holds a lock, and what to do."""
    if other is None:
        return f"a daemon is already running (it holds {path}, and does not say who it is)"
    where = "" if other.host == own.host else f" on {other.host}"
    said = f"daemon {other.pid}{where} is already running (it holds {path})"
    if where:
        return f"{said}; set CARPOOL_DIR to a directory that only this machine uses"
    if other.run != own.run:
        return (
            f"{said} and is reached in {other.run}, not in {own.run}; stop it there, or set CARPOOL_DIR for a second"
        )
    return said
