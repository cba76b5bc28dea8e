"""What the operating system knows of processes: who they are, whether they live and compute, and whom it prefers.

A pid means something only in its pid namespace. Here a pid without a namespace is one of this process's own, by which
it sees every process of its namespace and of those inside it. Processes of other namespaces are `UNSEEN`.

What a process's owner can hold up (hold_ups.py) is its `stat`, `environ`, `maps` and links; not its `status`.

Rules
  I42 A process is of a job only if it is of the job's user, whatever its environment or a page says. A signal goes to
      processes of that user only, whichever pid was named: the machine's daemon could send it to all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from carpool.daemon import hold_ups
from carpool.wire.page import own_namespace
from carpool.wire.protocol import ENV_JOB, ENV_PAGE

PROC_BYTES = 1 << 14  # `status` names every group of its user
ENVIRON_BYTES = 1 << 17
LARGE_BYTES_MAX = 8 << 20  # more variables no program can be started with; what a process makes of them is its own
UNSEEN = -1  # in place of a pid: nobody here can tell who it is, or whether it lives
SO_PEERPIDFD = 77  # Linux 6.5; before that a pid that was used again cannot be told from the first
FIRST_NAMESPACE = 0xEFFFFFFC  # the number of the one that sees all others
NOWHERE = 1  # in place of a namespace's number: one that is not seen here
NEARLY_ALL_PERCENT = 80
UNLIMITED = 1 << 20  # descriptors, where the system names no number
KEPT_MAX = 10_000  # processes of other namespaces that are remembered
RESTS = 100  # so many times as long as a look at all processes took, there is none: one percent of the loop at most
Found = TypeVar("Found")
Image = tuple[int, int, int]  # pid, birth, and where its arguments lie
KERNEL_PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
CPU_CLOCK = 2  # of a process, as clock_getcpuclockid(3) names it
NEVER_HELD_UP = {"status", "schedstat", "statm", "comm"}


def _read(pid: int, name: str, *, is_large: bool = False) -> bytes:
    """A file of a process; empty if it is gone, or its owner holds it up."""
    if not hold_ups.is_on() or name in NEVER_HELD_UP:
        return _read_now(pid, name, is_large=is_large)
    return hold_ups.ask(owner_of(pid), (pid, name), lambda: _read_now(pid, name, is_large=is_large), b"")


def _read_now(pid: int, name: str, *, is_large: bool = False) -> bytes:
    """Read often, and Path would take three times as long."""
    global _spare
    fd, parts, left = -1, [b""], LARGE_BYTES_MAX if is_large else PROC_BYTES
    try:
        fd = _open(f"/proc/{pid}/{name}")
        parts.append(os.read(fd, min(left, ENVIRON_BYTES)))
        while is_large and parts[-1] and (left := left - len(parts[-1])) > 0:
            parts.append(os.read(fd, min(left, ENVIRON_BYTES)))
    except OSError:
        return b""
    finally:
        if fd >= 0:
            os.close(fd)
        if _spare < 0:
            _spare = _set_aside()
    return b"".join(parts)


def _open(path: str) -> int:
    """Open it even if this process has no descriptor left: nobody is dead because of that."""
    global _spare
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or _spare < 0:
            raise
    os.close(_spare)
    _spare = -1
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _set_aside() -> int:
    """A descriptor for worse times; -1 if there is none to be had."""
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


_spare = _set_aside()


def status_of(pid: int) -> dict[bytes, bytes]:
    """What `status` says of a process; nothing if it is gone."""
    lines = (line.partition(b":") for line in _read(pid, "status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def owner_of(pid: int) -> int:
    """The user who started a process, also if its program has the rights of another; -1 if it is gone."""
    uids = status_of(pid).get(b"Uid", b"").split()
    return int(uids[0]) if uids else -1


def _state_and_parent(pid: int) -> tuple[bytes, int] | None:
    """The letter of its state, and who started it; None if it is gone or dead."""
    if hold_ups.is_on():
        said = status_of(pid) if pid > 0 else {}
        found = (said[b"State"][:1], int(said[b"PPid"])) if b"PPid" in said else None
    else:
        fields = _stat_fields(pid) if pid > 0 else None
        found = (fields[0], int(fields[1])) if fields else None
    return found if found is not None and found[0] not in (b"Z", b"X") else None


def _stat_fields(pid: int) -> list[bytes] | None:
    text = _read(pid, "stat")
    return text.rpartition(b")")[2].split() if text else None


def busy_ns(pid: int) -> int:
    """Processor time of a process and all its threads, and how long its first thread wanted a processor and had none;
    0 if it is gone. On a crowded machine a process that computes gets little of the one and much of the other."""
    try:
        return time.clock_gettime_ns(~pid << 3 | CPU_CLOCK) + _delay_ns(pid) if pid > 0 else 0
    except OSError:
        return 0


def _delay_ns(pid: int) -> int:
    fields = _read(pid, "schedstat").split()
    return int(fields[1]) if len(fields) > 1 else 0  # gone, or a kernel that does not count it


def birth_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its pid, its identity. None if it is gone or dead."""
    fields = _stat_fields(pid) if pid > 0 else None
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def is_alive(pid: int, birth: int | None = None) -> bool:
    """Whether a process lives, and is the one that was born then, unless nobody can tell."""
    if birth is None:
        return _state_and_parent(pid) is not None
    found = birth_of(pid)
    return found == birth if found is not None else hold_ups.is_on() and _state_and_parent(pid) is not None


def is_stopped(pid: int) -> bool:
    """Whether a process cannot run until somebody continues it: by a signal, or a debugger holds it."""
    found = _state_and_parent(pid)
    return found is not None and found[0] in (b"T", b"t")


def is_asleep(pid: int) -> bool:
    """Whether no thread of a process runs or wants a processor; not if nobody can tell. 10 µs a thread."""
    try:
        threads = [entry.name for entry in os.scandir(f"/proc/{pid}/task")] if pid > 0 else []
    except OSError:
        return False
    for thread in threads:
        if _state_of(pid, thread) == b"R":
            return False
    return bool(threads)


def _state_of(pid: int, thread: str) -> bytes:
    if hold_ups.is_on():
        said = _read_now(pid, f"task/{thread}/status").partition(b"\nState:")[2]
    else:
        said = _read_now(pid, f"task/{thread}/stat").rpartition(b")")[2]
    return said.split(None, 1)[0] if said else b""


def _environment(pid: int) -> list[bytes]:
    """The variables that a process was started with; none if it is gone, or wrote over them, as programs do that set
    their title."""
    variables = _read(pid, "environ", is_large=True)
    return [each for each in variables.split(b"\0") if b"=" in each]


def _variable(variables: list[bytes], name: str) -> str:
    mark = f"{name}=".encode()
    return next((os.fsdecode(each[len(mark) :]) for each in variables if each.startswith(mark)), "")


def page_of(pid: int) -> str:
    """The page that a process was started with, which names its job: a pid may be somebody else's by now, and another
    daemon may have a job of the same id. Empty if it has none, or is gone."""
    return _variable(_environment(pid), ENV_PAGE)


def variable_of(pid: int, name: str) -> str:
    """A variable that a process was started with; empty if it has none of that name, or nobody can tell."""
    return _variable(_environment(pid), name)


def job_of(pid: int) -> str | None:
    """The job inside which a process was started, empty if it was in none; None if nobody can tell."""
    variables = _environment(pid)
    return _variable(variables, ENV_JOB) if variables else None


def by_page(user: int) -> dict[str, set[int]]:
    """Every living process of this user that was started inside a job, by the job's page (I42). A look takes 5 µs for
    each process of the machine."""
    return by_pages({user})[user]


def by_pages(users: Collection[int]) -> dict[int, dict[str, set[int]]]:
    """The same for several users: /proc is gone through once, however many they are."""
    found: dict[int, dict[str, set[int]]] = {user: {} for user in users}
    is_one = len(found) == 1 and not hold_ups.is_on()
    for pid in _all_pids() if found else ():
        user = next(iter(found)) if is_one else _shown_owner(pid, found)
        if user is not None and (page := page_of(pid)) and is_alive(pid):
            found[user].setdefault(page, set()).add(pid)
    return found


def _shown_owner(pid: int, users: Collection[int]) -> int | None:
    """Whose of these users a process is. One that may not be looked into is shown as root's (`is_of`)."""
    try:
        shown = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - of each process of the machine: Path takes twice as long
    except OSError:
        return None
    user = owner_of(pid) if shown in users or shown == 0 else -1
    return user if user in users and shown in (user, 0) else None


def is_of(pid: int, user: int) -> bool:
    """Whether this user started a process. One that may not be looked into is shown as root's."""
    try:
        shown = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return False
    return shown in (user, 0) and owner_of(pid) == user


def send(pid: int, number: signal.Signals, user: int) -> None:
    """Send a signal to a process if it is of this user (I42), as that user could: else nothing happens."""
    try:
        pidfd = open_pidfd(pid)
    except OSError:  # no descriptor is left
        return
    if pidfd is None:
        return
    try:
        uids = status_of(pid).get(b"Uid", b"").split()  # of the process that the descriptor is of, or else it is dead
        if str(user).encode() in (uids[:1] + uids[2:3]):
            signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(pidfd)


def parents() -> dict[int, int]:
    """Every living process with its parent; 8 µs each."""
    found: dict[int, int] = {}
    for pid in _all_pids():
        seen = _state_and_parent(pid)
        if seen is not None:
            found[pid] = seen[1]
    return found


def image_of(pid: int) -> Image | None:
    """Which program a process executes: it gets other addresses with each, at random. None if it is gone or dead."""
    fields = _stat_fields(pid)
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return pid, int(fields[19]), int(fields[45])


def mapped_files(pid: int) -> set[str]:
    """The files that a process has mapped, as its libraries; none if it is gone, or may not be looked at."""
    lines = _read(pid, "maps", is_large=True).splitlines()
    paths = (line.split(None, 5)[5] for line in lines if b"/" in line)
    return {os.fsdecode(path.removesuffix(b" (deleted)")) for path in paths}


def maps(pid: int, path: str) -> bool:
    """Whether a process has this file mapped, under whatever name it sees it."""
    try:
        facts = Path(path).lstat()
    except OSError:
        return False
    mark = f" {os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x} {facts.st_ino} ".encode()
    return mark in _read(pid, "maps", is_large=True)


def with_file(path: str, user: int) -> set[int]:
    """Every living process of this user that has the file mapped, but for this one. A look takes 0.1 ms for each
    process of that user, and 5 µs for each other one."""
    return {
        pid for pid in _all_pids() if pid != os.getpid() and is_of(pid, user) and maps(pid, path) and is_alive(pid)
    }


def acts_as(pid: int) -> tuple[int, int]:
    """The user and group as which a process acts; -1 for both if it is gone."""
    said = status_of(pid)
    found = [said.get(name, b"").split() for name in (b"Uid", b"Gid")]
    return (int(found[0][1]), int(found[1][1])) if all(found) else (-1, -1)


def resident_bytes(pid: int) -> int:
    """The memory that a process has in use, also what it shares with others; 0 if it is gone."""
    fields = _read(pid, "statm").split()
    return int(fields[1]) * KERNEL_PAGE if len(fields) > 1 else 0


def name_of(pid: int) -> str:
    """The name of a process as ps shows it; empty if it is gone."""
    return os.fsdecode(_read(pid, "comm").strip())


# --- pid namespaces ------------------------------------------------------------------------------------------


def connected_by(peer: socket.socket) -> int:
    """The process that made the connection; 0 if it is gone, UNSEEN if it is in a namespace that is not seen here."""
    pidfd = -1
    try:
        pidfd = peer.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()  # a second descriptor
    except OSError:  # an older kernel, or no descriptor is left
        pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid or UNSEEN
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return {-1: 0, 0: UNSEEN}.get(int(fields["Pid"]), int(fields["Pid"]))


def inner_pid(pid: int) -> int:
    """The number that a process has for itself; 0 if it is gone."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid if is_alive(pid) else 0  # a kernel older than 4.1


def namespace_of(pid: int) -> int:
    """The number of a process's pid namespace, as slots have it; 0 if the kernel does not tell."""
    return look(pid, "ns/pid", lambda: Path(f"/proc/{pid}/ns/pid").stat().st_ino & 0xFFFFFFFF, 0)


def look(pid: int, what: str, read: Callable[[], Found], otherwise: Found) -> Found:
    """What is found of a process; `otherwise` if it is gone, or its owner holds it up."""
    try:
        return hold_ups.ask(owner_of(pid), (pid, what), read, otherwise) if hold_ups.is_on() else read()
    except OSError:
        return otherwise


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether a process is a child of that one, or a child's child."""
    while pid > 1:
        seen = _state_and_parent(pid)
        pid = seen[1] if seen is not None else 0
        if pid == ancestor:
            return pid > 0
    return False


class Finder:
    """Finds processes by the numbers that they have for themselves, as they stand in pages."""

    def __init__(self) -> None:
        self._own = own_namespace()
        self._found: dict[tuple[int, int], tuple[int, int | None]] = {}  # pid and birth, by inner pid and namespace
        self._look_again_ns = 0  # when all processes may be looked at again
        self._seen = {self._own}  # namespaces of which a process was found, so that all of them are seen

    def find(self, inner: int, namespace: int) -> int:
        """The pid of a living process; 0 if there is none, UNSEEN if nobody here can tell."""
        if namespace in (0, self._own):
            return inner if is_alive(inner) else 0
        if namespace == NOWHERE:
            return UNSEEN
        key = (inner, namespace)
        pid, birth = self._found.get(key, (0, None))
        if pid and is_alive(pid, birth):
            return pid
        self._found.pop(key, None)
        if time.monotonic_ns() >= self._look_again_ns:
            self._look_at_all()
            if key in self._found:
                return self._found[key][0]
        return 0 if self._own == FIRST_NAMESPACE or namespace in self._seen else UNSEEN

    def _look_at_all(self) -> None:
        """Note every living process of another namespace. One look for all that are sought: programs may write any
        number of numbers into their pages."""
        began = time.monotonic_ns()
        for pid in _all_pids():
            numbers = status_of(pid).get(b"NSpid", b"").split()
            if len(numbers) > 1 and is_alive(pid):
                self.note(pid, int(numbers[-1]), namespace_of(pid))
        now = time.monotonic_ns()
        self._look_again_ns = now + (now - began) * RESTS

    def note(self, pid: int, inner: int, namespace: int) -> int:
        """Remember who this is; returns the pid."""
        key = (inner, namespace)
        if len(self._found) > KEPT_MAX:
            self._found.clear()
        self._found[key] = pid, birth_of(pid)
        self._seen.add(namespace)
        return pid


def _all_pids() -> list[int]:
    return [int(each.name) for each in os.scandir("/proc") if each.name.isdecimal()]


everyone = Finder()


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it is already gone. An OSError says no more
    than that there is no descriptor left."""
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except ProcessLookupError:
        return None


def raise_descriptor_limit() -> None:
    """Let this process have all descriptors that it may. What it starts gets the limit that it had (`limit_anew`)."""
    global _soft_limit
    _soft_limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit_anew(pid: int) -> None:
    """Give a process that was just started the limit of descriptors that this one was started with."""
    if _soft_limit is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):  # it may have ended
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_soft_limit, hard))


def descriptor_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else UNLIMITED


def descriptor_trouble() -> str:
    """A sentence if nearly all descriptors of this process are in use."""
    used = limit = descriptor_limit()
    with contextlib.suppress(OSError):  # not one is left to look
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    if used * 100 < limit * NEARLY_ALL_PERCENT:
        return ""
    return f"{used} of {limit} descriptors are in use: start the daemon with a higher hard limit (ulimit -Hn)"


_soft_limit: int | None = None  # what this process was started with, once it has raised it


def step_back() -> None:
    """Never push a job off its processor: where the daemon is woken by a hand-over, the next job just begins, and one
    of the processors is about to be free."""
    _set_policy(os.SCHED_BATCH)


@contextlib.contextmanager
def stepped_up() -> Iterator[None]:
    """What is started here runs as everybody does."""
    _set_policy(os.SCHED_OTHER)
    try:
        yield
    finally:
        step_back()


def _set_policy(policy: int) -> None:
    with contextlib.suppress(OSError):  # where it may not, it runs as everybody does
        os.sched_setscheduler(0, policy, os.sched_param(0))
