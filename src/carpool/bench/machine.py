"""A private machine for one measurement: the daemon that serves several users, in a directory of its own.

It needs root, as only root can start programs as somebody else. The users are numbers that nobody on this machine
has; they get no account, no home and no group. What the machine's own daemon does is not touched.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from carpool.bench.node import PROGRAMS, STOP_SECONDS, Node, plain_environment, wait_gone
from carpool.client import Client
from carpool.errors import PeerError, UnreachableError, UsageError
from carpool.wire.lock import MACHINE
from carpool.wire.places import machine_places

FIRST_UID = 64_100  # above what Debian and systemd give to people and services
START_SECONDS = 60.0
LOOK_SECONDS = 0.05
OWN_OF_A_CONTAINER = {"/proc", "/dev", "/run", "/sys", "/opt"}


def free_uids(count: int) -> list[int]:
    """Numbers of users that this machine does not have."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    found: list[int] = []
    uid = FIRST_UID
    while len(found) < count:
        if uid not in taken:
            found.append(uid)
        uid += 1
    return found


def check_root() -> None:
    """UsageError where programs of several users cannot be started."""
    if os.geteuid() != 0:
        raise UsageError("this needs programs of several users, and only root can start them: use sudo")
    probe = [sys.executable, "-c", "import carpool.client"]
    uid = free_uids(1)[0]
    said = _why_not(probe, uid) or _why_not([sys.executable, str(PROGRAMS / "hold.py"), "--help"], uid)
    if said:
        raise UsageError(
            f"other users cannot use this carpool: {said}; install carpool and torch where everyone may read them, as"
            " docs/lab.md says, and use that one"
        )


def _why_not(command: list[str], uid: int) -> str:
    try:
        done = subprocess.run(
            command, user=uid, group=uid, extra_groups=[], capture_output=True, cwd="/", check=False
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return done.stderr.decode(errors="replace").strip().rpartition("\n")[2] if done.returncode else ""


class Machine(Node):
    """A running daemon of all users. Use `open_machine` to get one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.places = machine_places(directory)
        self.client = Client(places=self.places)
        self.environment = {**plain_environment(), "CARPOOL_ROOT": str(directory)}
        self.environment.pop("CARPOOL_DIR", None)

    def start(self, settings: str) -> None:
        self.places.settings.parent.mkdir(parents=True)
        self.places.settings.write_text(settings)
        command = [sys.executable, "-m", "carpool.daemon.main", MACHINE]
        daemon = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, cwd="/")
        self.started.append(daemon)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.pid = self.client.status().pid
                return
            except (UnreachableError, PeerError) as error:
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise PeerError(f"the machine's daemon does not start: {error}") from error
            time.sleep(LOOK_SECONDS)

    def directory_of(self, uid: int) -> Path:
        """A directory in which this user may write."""
        place = self.directory / f"home{uid}"
        if not place.exists():
            place.mkdir(mode=0o700)
            os.chown(place, uid, uid)
        return place

    def popen(
        self, uid: int, command: Sequence[str], *, stdin: int = subprocess.DEVNULL, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program as this user; what it says goes to our stderr unless somebody wants it."""
        home = self.directory_of(uid)
        child = subprocess.Popen(
            command,
            user=uid,
            group=uid,
            extra_groups=[],
            env={**self.environment, "HOME": str(home)},
            cwd=home,
            stdin=stdin,
            stdout=sys.stderr.fileno() if stdout is None else stdout,
        )
        self.started.append(child)
        return child

    def run_as(self, uid: int) -> Callable[..., subprocess.Popen[bytes]]:
        """`carpool run` as this user, to be called like Node.run."""

        def run(argv: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
            return self.popen(uid, [sys.executable, "-m", "carpool.cli.main", "run", *options, "--", *argv])

        return run

    def in_container(self, uid: int, place: Path) -> Callable[..., subprocess.Popen[bytes]]:
        """A program of this user in a container of bubblewrap that writes to `place`, to be called like Node.run."""
        box = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run"]
        for path in [*Path("/").iterdir(), *Path("/opt").glob("*")]:
            if path.is_symlink():
                box += ["--symlink", str(path.readlink()), str(path)]
            elif str(path) not in OWN_OF_A_CONTAINER:
                box += ["--ro-bind-try", str(path), str(path)]
        box += ["--bind", str(place), str(place), "--setenv", "TMPDIR", str(place)]

        def run(argv: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "carpool.cli.main", "container-args", "--bwrap", *options]
            asked = self.popen(uid, command, stdout=subprocess.PIPE)
            said, _ = asked.communicate(timeout=START_SECONDS)
            if asked.returncode:
                raise PeerError("carpool container-args failed")
            return self.popen(uid, [*box, *shlex.split(said.decode()), *argv])

        return run

    def why_no_containers(self, uid: int) -> str:
        """Why bubblewrap cannot be used by this user here; empty if it can."""
        if shutil.which("bwrap") is None:
            return "bubblewrap is not installed"
        made = self.popen(uid, ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"])
        return "bubblewrap may not run here" if made.wait(START_SECONDS) else ""

    def close(self) -> None:
        """End what still runs, the daemon last."""
        daemon = self.started[:1]
        self.started = self.started[1:]
        for child in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        for child in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)
            child.kill()
            child.wait()
        for child in daemon:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)
            child.kill()
            child.wait()
        wait_gone(self.pid)


@contextlib.contextmanager
def open_machine(settings: str) -> Iterator[Machine]:
    """The daemon of a machine with these settings (carpool.toml); gone, with its jobs, at the end of the block."""
    check_root()
    with tempfile.TemporaryDirectory(prefix="cpm-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        machine = Machine(Path(directory))
        try:
            machine.start(settings)
            yield machine
        finally:
            machine.close()
