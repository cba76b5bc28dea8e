"""What the kernel says of a submitter, and the program that becomes him."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carpool.daemon import descent
from carpool.daemon.people import Caller
from carpool.daemon.standing import Standing, confinement, standing_of
from carpool.errors import RefusedError

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, so it is NOT tested")
SAYS = """
import json, os, resource, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "nice": os.nice(0), "umask": status["Umask"].strip(),
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16), "environment": dict(os.environ),
    "gains": status["NoNewPrivs"].strip(), "caps": int(status["CapPrm"], 16), "cwd": os.getcwd(),
    "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "cpus": sorted(os.sched_getaffinity(0))}))
"""
KEYRING = """
import ctypes
libc, status = ctypes.CDLL(None), dict(line.split(":", 1) for line in open("/proc/self/status"))
print(libc.syscall(ctypes.c_long(%d), 0, -3, 0), int(status["CapInh"], 16), int(status["CapAmb"], 16))
"""
CAP_NET_RAW = 13


def own(**changes: Any) -> Standing:
    found = standing_of(Caller(uid=os.getuid(), gid=os.getgid(), pid=os.getpid()))
    return Standing(**{**{name: getattr(found, name) for name in found.__struct_fields__}, **changes})


def descend(
    tmp_path: Path, standing: Standing, before: Callable[[], None] | None = None, **changes: object
) -> subprocess.CompletedProcess[str]:
    """Start the descent as the daemon does."""
    python = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable
    told = os.memfd_create("told")
    try:
        orders = {
            "standing": {name: getattr(standing, name) for name in standing.__struct_fields__},
            "argv": [python, "-I", "-S", "-c", SAYS],
            "environment": {"PATH": "/usr/bin:/bin"},
            "end": str(tmp_path / "end.json"),
            **changes,
        }
        os.write(told, json.dumps(orders).encode() + b"\nthe rest is the runner's")
        os.lseek(told, 0, os.SEEK_SET)
        words = [sys.executable, "-I", "-S", descent.__file__, str(told)]
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            env={},
            pass_fds=[told],
            preexec_fn=before,
            timeout=100,
            check=False,
        )
    finally:
        os.close(told)


@ROOT
def test_i43_the_descent_ends_in_a_process_that_is_the_user_and_nothing_else(tmp_path: Path) -> None:
    standing = own(uid=64001, gid=64002, groups=[64003, 64004], nice=os.nice(0) + 3, may_gain=False)
    standing.limits["RLIMIT_NOFILE"] = (100, 200)
    done = descend(tmp_path, standing)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["uids"], said["gids"], said["groups"]) == ([64001] * 3, [64002] * 3, [64003, 64004])
    assert (said["files"], said["nice"], said["gains"], said["caps"]) == ([100, 200], os.nice(0) + 3, "1", 0)
    assert (said["blocked"], said["umask"], said["cwd"]) == (0, "0077", "/")
    assert said["environment"].keys() <= {"PATH", "LC_CTYPE"}
    assert len(said["open"]) == 4, "the three standard ones and the one with the orders"
    assert said["cpus"] == sorted(os.sched_getaffinity(0))


@ROOT
def test_i43_the_descent_keeps_no_key_and_no_capability_of_the_daemon(tmp_path: Path) -> None:
    libc, number = ctypes.CDLL(None, use_errno=True), ctypes.c_long(descent.KEYCTL.get(os.uname().machine, 0))
    has_keys = bool(number.value) and libc.syscall(number, 0, -3, 1) > 0
    read, write = os.pipe()

    def before() -> None:  # as a daemon that got them from who started it
        descent.leave_keyring()
        os.write(write, b"%d" % libc.syscall(number, 0, -3, 0) if has_keys else b"-1")
        head, sets = (ctypes.c_uint32 * 2)(descent.CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(head, sets) == 0
        sets[2] |= 1 << CAP_NET_RAW
        assert libc.capset(head, sets) == 0 and libc.prctl(descent.CAP_AMBIENT, 2, CAP_NET_RAW, 0, 0) == 0

    argv = ["/usr/bin/python3", "-I", "-S", "-c", KEYRING % number.value]
    done = descend(tmp_path, own(uid=64001, gid=64002, groups=[]), before, argv=argv)
    daemons = int(os.read(read, 100))
    os.close(read)
    os.close(write)
    assert done.returncode == 0, done.stderr
    keyring, inheritable, ambient = map(int, done.stdout.split())
    assert (inheritable, ambient) == (0, 0)
    assert not has_keys or (daemons > 0 and keyring != daemons)


@ROOT
def test_i43_who_cannot_be_made_the_user_is_not_started(tmp_path: Path) -> None:
    done = descend(tmp_path, own(uid=64001, gid=-5))
    assert (done.returncode, done.stdout) == (1, ""), "nothing ran as root"
    assert "is not started" in done.stderr


@ROOT
def test_what_cannot_be_executed_is_written_down_as_the_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 64001, -1)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o011 == 0:  # pytest's own
            parent.chmod(0o711)
    done = descend(tmp_path, own(uid=64001, gid=64001), argv=["/nowhere/python"])
    assert done.returncode == 1
    assert "No such file" in json.loads((tmp_path / "end.json").read_text())["reason"]
    assert (tmp_path / "end.json").stat().st_uid == 64001


def test_i43_a_standing_is_what_the_kernel_says(tmp_path: Path) -> None:
    found = own()
    assert (found.uid, found.gid, sorted(found.groups)) == (os.getuid(), os.getgid(), sorted(os.getgroups()))
    for name, limits in found.limits.items():
        assert resource.getrlimit(getattr(resource, name)) == limits, name
    assert (found.nice, found.cpus) == (os.nice(0), sorted(os.sched_getaffinity(0)))
    assert confinement(os.getpid()) == ""


def test_i43_a_process_that_is_gone_or_of_somebody_else_has_none() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    for pid in (int(done.stdout), 0, -1):
        with pytest.raises(RefusedError):
            standing_of(Caller(uid=os.getuid(), gid=os.getgid(), pid=pid))
    with pytest.raises(RefusedError):
        standing_of(Caller(uid=os.getuid() + 1, gid=os.getgid(), pid=os.getpid()))


@ROOT
@pytest.mark.parametrize("space", ["--mount", "--net", "--pid"])
def test_i43_who_is_in_a_namespace_of_his_own_is_confined(space: str) -> None:
    words = ["unshare", space, *(["--fork"] if space == "--pid" else []), sys.executable, "-S", "-c", "input()"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        for _ in range(1000):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if confinement(int(children[0]) if children else process.pid):
                return
        raise AssertionError("it is not seen as confined")
    finally:
        process.communicate()
