"""What whoever submits a job has, as the kernel says: its program gets that, and no more.

The client tells what its program is to have (calls.Inherited), and could tell anything. The kernel's own words set
the bounds: the machine's daemon, which is root, gives these; what the client told is then taken over by the runner,
which is the user by then and can pass no bound.

Rules
  I43 A submitted program is its submitter's: user, groups, limits, priority and processors are those of the process
      that submitted it, as the kernel names them. Who is confined (in a container, behind a filter of system calls,
      without some of the machine's capabilities) cannot submit, as the program would be out of that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from resource import RLIM_INFINITY

import msgspec

from carpool.daemon import processes
from carpool.daemon.people import Caller
from carpool.errors import RefusedError

NAMESPACES = {
    "mnt": "other file systems",
    "pid": "other process numbers",
    "user": "other users",
    "net": "another network",
}
LIMITS = {
    "Max cpu time": "RLIMIT_CPU",
    "Max file size": "RLIMIT_FSIZE",
    "Max data size": "RLIMIT_DATA",
    "Max stack size": "RLIMIT_STACK",
    "Max core file size": "RLIMIT_CORE",
    "Max resident set": "RLIMIT_RSS",
    "Max processes": "RLIMIT_NPROC",
    "Max open files": "RLIMIT_NOFILE",
    "Max locked memory": "RLIMIT_MEMLOCK",
    "Max address space": "RLIMIT_AS",
    "Max pending signals": "RLIMIT_SIGPENDING",
    "Max msgqueue size": "RLIMIT_MSGQUEUE",
    "Max nice priority": "RLIMIT_NICE",
    "Max realtime priority": "RLIMIT_RTPRIO",
    "Max realtime timeout": "RLIMIT_RTTIME",
}
PLAIN = {os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE}  # real-time is for who may ask for it


class Standing(msgspec.Struct, kw_only=True, frozen=True):
    uid: int
    gid: int
    groups: list[int]
    limits: dict[str, tuple[int, int]]  # soft and hard, by their names in setrlimit(2)
    nice: int
    scheduler: int
    cpus: list[int]
    oom: int  # how gladly the kernel ends it when memory runs out
    may_gain: bool  # whether programs of it may get more rights, as sudo does


def standing_of(caller: Caller) -> Standing:
    """Of the process that asks for a job in the background; RefusedError if there can be none for it."""
    if os.geteuid() != 0 and caller.uid != os.geteuid():
        raise RefusedError(
            f"jobs in the background need a daemon of root: this one runs as user {os.geteuid()}, and what it starts"
            " would be that user's; start the program with carpool run, which works for all"
        )
    if caller.pid <= 0:
        raise RefusedError("nobody here can tell which process submits this job; start it with carpool run")
    try:
        _check_same(caller)
        confined = confinement(caller.pid)
        if confined:
            raise RefusedError(
                f"this call comes from inside a container or the like ({confined}), and a job in the background would"
                " run outside of it; start the program with carpool run"
            )
        found = _read(caller)
        _check_same(caller)  # it was the same all the time
    except (OSError, ValueError, KeyError) as error:
        raise RefusedError(f"process {caller.pid}, which submits this job, is gone or cannot be looked at") from error
    return found


def _check_same(caller: Caller) -> None:
    """That this is still a process of that user, and no other program of it has his rights or more."""
    status = processes.status_of(caller.pid)
    uids, gids = ({int(number) for number in status[name].split()} for name in (b"Uid", b"Gid"))
    if uids != {caller.uid} or gids != {caller.gid}:
        raise ValueError("it has other rights by now")


def _read(caller: Caller) -> Standing:
    pid, status = caller.pid, processes.status_of(caller.pid)
    scheduler = os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK
    return Standing(
        uid=caller.uid,
        gid=caller.gid,
        groups=[int(group) for group in status[b"Groups"].split()],
        limits=_limits_of(Path(f"/proc/{pid}/limits").read_text()),
        nice=os.getpriority(os.PRIO_PROCESS, pid),
        scheduler=scheduler if scheduler in PLAIN else os.SCHED_OTHER,
        cpus=sorted(os.sched_getaffinity(pid)),
        oom=int(Path(f"/proc/{pid}/oom_score_adj").read_text()),
        may_gain=status.get(b"NoNewPrivs", b"0") == b"0",
    )


def _limits_of(text: str) -> dict[str, tuple[int, int]]:
    """As the kernel writes them for people; prlimit(2) would need one more capability."""
    found = {}
    for line in text.splitlines()[1:]:
        name = LIMITS.get(line[:26].strip())
        if name is not None:
            soft, hard = (RLIM_INFINITY if word == "unlimited" else int(word) for word in line[26:].split()[:2])
            found[name] = soft, hard
    return found


def confinement(pid: int) -> str:
    """What a process is kept from that this daemon is not, in words; empty if nothing."""
    own = os.getpid()
    for name, said in NAMESPACES.items():
        if _number_of(pid, f"ns/{name}") != _number_of(own, f"ns/{name}"):
            return said
    if _number_of(pid, "root") != _number_of(own, "root"):
        return "another root directory"
    his, ours = processes.status_of(pid), processes.status_of(own)
    if _filters(his) > _filters(ours):
        return "a filter of system calls"
    if int(ours[b"CapBnd"], 16) & ~int(his[b"CapBnd"], 16):
        return "fewer capabilities"
    return ""


def _number_of(pid: int, name: str) -> tuple[int, int]:
    path = Path(f"/proc/{pid}/{name}")

    def look() -> tuple[int, int]:
        facts = path.stat()
        return facts.st_dev, facts.st_ino

    looking: Callable[[], tuple[int, int]] = look
    return processes.look(pid, name, looking, (0, 0))


def _filters(status: dict[bytes, bytes]) -> tuple[int, int]:
    return int(status.get(b"Seccomp", b"0")), int(status.get(b"Seccomp_filters", b"0"))
