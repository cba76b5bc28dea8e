"""From root to a user: a program of its own, started by the machine's daemon for each job in the background.

It is a fresh process with nothing of the daemon's but one descriptor, and nothing of the user's but numbers. It makes
itself the user, then becomes the job's runner. No thread, no lock and no buffer of the daemon's is in it, as there
would be after a fork. No variable, path or file of the user's is looked at while it is root (rule I43, and
docs/design/0025-jobs-of-many-users.md). It imports nothing of carpool and no other package: `python -I -S` runs it.

Its argument is a descriptor with one JSON object: `standing` (standing.py), `argv`, `environment`, and `end`, a file
of the user's that is told why nothing was started. What follows the object's line in that file is the runner's.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import sys

NO_NEW_PRIVS, CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL = 38, 47, 4  # of prctl(2)
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}  # numbers of the system call
JOIN_SESSION_KEYRING = 1  # of keyctl(2)
CAPABILITY_VERSION = 0x20080522  # of capset(2): two words for each set


def descend(standing: dict) -> None:  # type: ignore[type-arg]  # it came as JSON
    """Become the user, for good: OSError or PermissionError if any part of it fails."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(standing["oom"]))
    os.sched_setscheduler(0, standing["scheduler"], os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, standing["nice"])
    os.sched_setaffinity(0, standing["cpus"])
    if not standing["may_gain"]:
        _give_up_gains()
    for name, (soft, hard) in standing["limits"].items():
        limit(getattr(resource, name), soft, hard)
    leave_keyring()  # while it is root: who has used up his keys would keep the daemon's
    clear_inheritable()
    uid, gid = standing["uid"], standing["gid"]
    os.setgroups(standing["groups"])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise PermissionError("the kernel did not change the user")
    if uid != 0:
        try:
            os.setuid(0)
        except PermissionError:
            return
        raise PermissionError("the way back to root is open")


def limit(kind: int, soft: int, hard: int) -> None:
    """Never above what is said; where this process may not pass its own bound, that."""
    most = resource.getrlimit(kind)[1]
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError):
        resource.setrlimit(kind, (_least(soft, most), _least(hard, most)))


def _least(one: int, other: int) -> int:
    return min((one, other), key=lambda value: float("inf") if value == resource.RLIM_INFINITY else value)


def leave_keyring() -> None:
    """Have a session keyring of its own: the daemon's may hold keys of root. OSError if it cannot be had."""
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION_KEYRING), None) < 0:
        wrong = ctypes.get_errno()
        if wrong not in (errno.ENOSYS, errno.EPERM):  # there are no keys here, or a container allows none
            raise OSError(wrong, f"no session keyring: {os.strerror(wrong)}")


def clear_inheritable() -> None:
    """Hand no capability on: changing the user leaves the inheritable ones. OSError if they stay."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)  # a kernel that knows none has none to clear
    head = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # twice effective, permitted, inheritable
    if libc.capget(head, sets) == 0:
        if not sets[2] and not sets[5]:
            return
        sets[2] = sets[5] = 0
        if libc.capset(head, sets) == 0:
            return
    wrong = ctypes.get_errno()
    raise OSError(wrong, f"inheritable capabilities stay: {os.strerror(wrong)}")


def _give_up_gains() -> None:
    if ctypes.CDLL(None).prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise PermissionError("the kernel did not take the right to gain rights")


def main() -> None:
    told_fd = int(sys.argv[1])
    with open(told_fd, "rb", closefd=False) as file:
        told = json.loads(file.readline())
    os.closerange(3, told_fd)
    os.closerange(told_fd + 1, 1 << 16)
    os.chdir("/")
    os.umask(0o077)
    try:
        descend(told["standing"])
    except (ArithmeticError, KeyError, OSError, TypeError, ValueError) as error:
        sys.exit(f"carpool: a job of user {told['standing']['uid']} is not started: {error}")
    os.dup2(1, 2)  # so far it was the daemon's, for the line above
    try:
        os.execve(told["argv"][0], told["argv"], told["environment"])
    except OSError as error:  # as the user, whose limit of processes it may be
        end = {"code": 1, "reason": f"could not be started: {error.strerror}"}
        with open(os.open(told["end"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump(end, file)
        sys.exit(1)


if __name__ == "__main__":
    main()
