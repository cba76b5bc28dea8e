"""A runner starts its program warm: it asks a warm parent to fork it, and makes the parent if there is none.

Whatever stands in the way is a cold start, with a reason (V19 of wire/warm.py). A runner that makes the parent waits
for it, and so do those that come meanwhile: together they wait for one import of torch instead of one each.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import carpool
from carpool.cli.child import Wish
from carpool.devices.libraries import find_library
from carpool.errors import CarpoolError, ColdStartError
from carpool.wire import warm
from carpool.wire.places import Places, make_private
from carpool.wire.protocol import ENV_TURNS_AT_LAUNCHES

START_SECONDS = 120.0  # an import of torch, on a machine that is busy
ANSWER_SECONDS = 20.0  # of a parent that has imported it
LOOK_SECONDS = 0.2
PARENTS_MAX = 2
BACKLOG = 512
PACKAGE = Path(carpool.__file__).parent
_IS_PYTHON = re.compile(r"python[0-9.]*")


class WarmProgram:
    """A program that was forked from a warm parent, as its runner sees it."""

    def __init__(self, peer: socket.socket, words: warm.Words, pid: int, keeper: int) -> None:
        self.pid = pid
        self.cpu_s = 0.0
        self._keeper = keeper
        self._peer = peer
        self._words = words
        self._pidfd = os.pidfd_open(pid)
        self._statuses: list[int | None] = []

    def go(self) -> None:
        """Let it run (V15), and listen for its end: SIGCHLD then comes to this process, as from a child."""
        self._peer.sendall(b"g", socket.MSG_NOSIGNAL)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while (word := self._words.next()) is not None:
            self.cpu_s = word.get("cpu_s", 0.0)
            self._put(word["status"])
            if not os.WIFSTOPPED(word["status"]):
                return
        with contextlib.suppress(OSError):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            select.select([self._pidfd], [], [])
        self._put(None)

    def _put(self, status: int | None) -> None:
        self._statuses.append(status)
        os.kill(os.getpid(), signal.SIGCHLD)

    def poll(self) -> tuple[bool, int | None]:
        """Whether something new is known, and its status as wait(2) has it; None if it ended nobody knows how."""
        return (True, self._statuses.pop(0)) if self._statuses else (False, None)

    def send(self, number: int, *, to_group: bool = False) -> None:
        """Send it a signal, or what a terminal sends to all of its process group."""
        with contextlib.suppress(ProcessLookupError):
            if to_group:
                os.killpg(self._keeper, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)


def start(places: Places, wish: Wish, *, is_urgent: Callable[[], bool]) -> WarmProgram:
    """Have the program forked; it waits for `go`. ColdStartError says why it is not. `is_urgent` tells that nobody
    should be waited for any more."""
    interpreter = check(wish)
    directory = warm.directory_in(places.run)
    try:
        make_private(directory)
        plain = os.path.normpath(interpreter)
        if not os.path.samefile(plain, interpreter):
            raise ColdStartError(f"{interpreter} is not {plain}")
        path = directory / f"{warm.key_of(plain, carpool.__version__)}.sock"
        peer = _connected(path, plain, wish)
        with contextlib.ExitStack() as undo:
            undo.callback(peer.close)
            warm.check_peer(peer)
            _send(peer, wish, interpreter)
            word = _wait_word(peer, is_urgent, seconds=ANSWER_SECONDS if _is_ready(path) else START_SECONDS)
            if word is None:
                raise ColdStartError(_last_words(path) or "the warm parent ended")
            if "pid" not in word:
                raise ColdStartError(word["cold"])
            found = WarmProgram(peer, warm.Words(peer), word["pid"], word["keeper"])
            undo.pop_all()
            peer.settimeout(None)
            return found
    except ColdStartError:
        raise
    except (OSError, ValueError, CarpoolError) as error:
        raise ColdStartError(f"no warm parent could be reached ({error})") from error


def check(wish: Wish) -> str:
    """The interpreter that would run the program, as it would call itself; ColdStartError for what is none."""
    environment = wish.environment
    if not _IS_PYTHON.fullmatch(Path(wish.argv[0]).name):
        raise ColdStartError(f"{wish.argv[0]} is not a Python")
    try:
        warm.Command(wish.argv)
    except ValueError as error:
        raise ColdStartError(str(error)) from error
    if ENV_TURNS_AT_LAUNCHES in environment:
        raise ColdStartError("on a GPU programs start cold")
    if environment.get("CARPOOL_RECORD"):
        raise ColdStartError("what is recorded for a checkpoint starts cold")
    told = next(filter(environment.get, warm.TELL_OF_IMPORTS), None)
    if told is not None:
        raise ColdStartError(f"{told} is set, and imports are what it tells of")
    if warm.is_traced():
        raise ColdStartError("a debugger follows it")
    if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
        raise ColdStartError("its terminal is another program's just now")
    found = shutil.which(wish.argv[0], path=environment.get("PATH"))
    if found is None:
        raise ColdStartError(f"{wish.argv[0]} was not found")
    path = os.path.join(os.getcwd(), found)
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                raise ColdStartError(f"{path} is a script")
    except OSError as error:
        raise ColdStartError(f"{path}: {error.strerror}") from error
    return path


def _connected(path: Path, interpreter: str, wish: Wish) -> socket.socket:
    """A connection to the parent at this path; one is started if nobody listens there."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(str(path))
        return peer
    except OSError:
        with open(path.with_suffix(".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                peer.connect(str(path))
            except OSError:
                _start_parent(path, interpreter, wish)
                peer.connect(str(path))
    return peer


def _start_parent(path: Path, interpreter: str, wish: Wish) -> None:
    """It listens at once, so that all who come wait for it and nobody starts another."""
    reads = find_library("reads")
    if reads is None:
        raise ColdStartError("carpool's C libraries were not built; see carpool doctor")
    _end_others(path)
    for left in (path, path.with_suffix(".json")):
        left.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
        preload = wish.environment.get("LD_PRELOAD", "")
        environment = {name: value for name, value in wish.environment.items() if name not in wish.own}
        environment |= {
            "LD_PRELOAD": f"{reads}:{preload}" if preload else reads,
            warm.ENV_WARM_PRELOAD: preload,
            warm.ENV_WARM_SPARE: "x" * warm.PADDING_BYTES,
            warm.ENV_WARM_PARENT: "1",
        }
        with open(path.with_suffix(".err"), "wb") as errors:
            subprocess.run(
                [
                    interpreter,
                    str(PACKAGE / "agent" / "warm" / "main.py"),
                    str(listener.fileno()),
                    str(path),
                    " " * warm.PADDING_BYTES,
                ],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment,
                cwd="/",
                pass_fds=[listener.fileno()],
                start_new_session=True,
                check=False,
            )


def _end_others(path: Path) -> None:
    """So many parents at most; the one that was used longest ago goes."""
    known = []
    for file in path.parent.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(file.read_text())
            known.append((facts["used"], int(facts["pid"]), file))
    for _, pid, file in sorted(known)[: max(0, len(known) - PARENTS_MAX + 1)]:
        file.unlink(missing_ok=True)
        file.with_suffix(".sock").unlink(missing_ok=True)  # it ends when it looks
        with contextlib.suppress(OSError):
            if b"carpool" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGTERM)


def _send(peer: socket.socket, wish: Wish, interpreter: str) -> None:
    numbers = sorted({0, 1, 2} | {number for number in _open_files() if _is_inherited(number)})
    if len(numbers) > warm.FILES_MAX:
        raise ColdStartError(f"it has {len(numbers)} open files")
    cwd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        umask = next(
            line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")
        )
        request: dict[str, Any] = {
            "argv": list(wish.argv),
            "interpreter": interpreter,  # as it would call itself
            "cwd": os.getcwd(),
            "environment": dict(wish.environment),
            "umask": int(umask, 8),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "scheduler": os.sched_getscheduler(0),
            "limits": warm.limits(),
            "ignored": sorted(wish.ignored),
            "blocked": sorted(wish.mask),
            "situation": warm.situation(),
            "files": numbers,
            "keep": wish.stays,
        }
        warm.send_request(peer, request, [cwd, *numbers])
    finally:
        os.close(cwd)


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def _is_ready(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return bool(json.loads(path.with_suffix(".json").read_text())["is_ready"])
    return False


def _wait_word(peer: socket.socket, is_urgent: Callable[[], bool], *, seconds: float) -> dict[str, Any] | None:
    """The first word; only one comes before `go`."""
    peer.settimeout(LOOK_SECONDS)
    words, deadline = warm.Words(peer), time.monotonic() + seconds
    while True:
        try:
            return words.next()
        except TimeoutError:
            if is_urgent() or time.monotonic() > deadline:
                raise ColdStartError("the warm parent was not ready in time") from None


def _last_words(path: Path) -> str:
    with contextlib.suppress(OSError):
        said = path.with_suffix(".err").read_text(errors="replace").strip()
        return f"the warm parent failed: {said.rpartition(chr(10))[2]}" if said else ""
    return ""
