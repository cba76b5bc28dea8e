"""What a runner and a warm parent say to each other, and what both look at to tell whether a warm start is the same.

A warm parent is a process of this user that has imported torch and forks for each program (docs/design/0021). It
listens at a socket in the run directory, one for each interpreter. A runner sends one request with the program's open
files; it hears either why the program must start cold, or the program's pid and later its end. The words are lines of
JSON; files travel as SCM_RIGHTS with the first byte.

Rules
  V18 Whoever is at the other end of the socket is a process of this user, by the kernel's word, and so is the
      directory: nobody else can have a program started, or see its environment.
  V19 What cannot be the same is a cold start, with a reason in words; it is never an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FILES_MAX = 200  # that travel with a request; the kernel takes 253
REQUEST_MAX = 16 << 20
CHUNK = 1 << 16
ENV_WARM_PARENT = "CARPOOL_WARM_PARENT"  # set: a warm parent, which is no job and has no page
ENV_WARM_SPARE = "CARPOOL_WARM_SPARE"  # of a warm parent: room for the variables of its programs
ENV_WARM_PRELOAD = "CARPOOL_WARM_PRELOAD"  # of a warm parent: what LD_PRELOAD is for its programs
PADDING_BYTES = 8192  # of the parent's arguments and variables, for those of its programs
# Variables that the C library, the loader or libgomp read for themselves, where nobody can note it.
PREFIXES = (
    *(
        "LD_",
        "PYTHON",
        "LC_",
        "LANG",
        "TZ",
        "MALLOC_",
        "GLIBC_",
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "GOTO_",
    ),
    *(
        "BLIS_",
        "NPY_",
        "NUMPY_",
        "ATEN_",
        "C10_",
        "TORCH",
        "PYTORCH",
        "DNNL_",
        "ONEDNN_",
        "CUDA_",
        "CUBLAS_",
        "TRITON",
    ),
)
# Set, they make Python tell of imports, of memory from its start on, or go on when a program is over.
TELL_OF_IMPORTS = (
    *("PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONTRACEMALLOC", "PYTHONINSPECT", "PYTHONDUMPREFS"),
    *("PYTHONMALLOCSTATS", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"),
)
OURS = "CARPOOL_"  # the job's own variables: they differ from job to job, and are read after the fork
# Lines of /proc/self/status that a fork cannot change to another's.
STATUS = {
    "Uid": "user",
    "Gid": "group",
    "Groups": "groups",
    "CapInh": "capabilities",
    "CapPrm": "capabilities",
    "CapEff": "capabilities",
    "CapBnd": "capabilities",
    "CapAmb": "capabilities",
    "NoNewPrivs": "privileges",
    "Seccomp": "seccomp filter",
    "Seccomp_filters": "seccomp filter",
    "Cpus_allowed": "processors",
    "Mems_allowed": "memory nodes",
}
# Limits that are read when a library is loaded or a thread is made; the others are set after the fork.
LOAD_LIMITS = ("RLIMIT_STACK", "RLIMIT_AS", "RLIMIT_DATA")


def directory_in(run: Path) -> Path:
    return run / "warm"


def key_of(interpreter: str, version: str) -> str:
    """Names the parent that serves an interpreter; one of another carpool is another parent."""
    return hashlib.sha1(
        f"{interpreter}\n{version}".encode(errors="surrogateescape"), usedforsecurity=False
    ).hexdigest()[:12]


def situation() -> dict[str, str]:
    """Where this process stands: what its children have from it and cannot change, by words for people."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in STATUS:
            found[STATUS[name]] = f"{found.get(STATUS[name], '')} {value.strip()}".strip()
    for name, file in (
        ("cgroup", "cgroup"),
        ("personality", "personality"),
        ("score for the OOM killer", "oom_score_adj"),
    ):
        try:
            found[name] = Path(f"/proc/self/{file}").read_text().strip()
        except OSError:
            found[name] = ""
    found["root directory"] = _link("/proc/self/root")
    for name in sorted(os.listdir("/proc/self/ns")):
        found[f"{name} namespace"] = _link(f"/proc/self/ns/{name}")
    return found


def _link(path: str) -> str:
    try:
        facts = os.stat(path)
    except OSError:
        return ""
    return f"{facts.st_dev}:{facts.st_ino}"


def is_traced() -> bool:
    """Whether a debugger follows this process: it would not follow a program of another parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


def limits() -> dict[str, tuple[int, int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


# --- the command line -------------------------------------------------------------------------------------------


class Command:
    """A command line of Python that a fork can become: `python [-u] SCRIPT`, `-m MODULE` or `-c CODE`."""

    def __init__(self, argv: Sequence[str]) -> None:
        """ValueError says in words what else stands there."""
        words = list(argv[1:])
        self.is_unbuffered = False
        while words and words[0] == "-u":
            self.is_unbuffered = True
            del words[0]
        if not words:
            raise ValueError("it is Python without a program")
        self.kind = words[0] if words[0] in ("-m", "-c") else ""
        if not self.kind and words[0].startswith("-"):
            raise ValueError(f"of Python's options only -u, -m and -c are known to a warm start, not {words[0]}")
        if self.kind:
            del words[0]
        if not words:
            raise ValueError(f"nothing follows {self.kind}")
        self.target, self.arguments = words[0], words[1:]


# --- how it travels ---------------------------------------------------------------------------------------------


def check_peer(peer: socket.socket) -> None:
    """PermissionError if the other end is another user's (V18)."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        raise PermissionError(f"a process of user {uid} is at the other end")


def send_request(peer: socket.socket, request: Mapping[str, Any], files: Sequence[int]) -> None:
    body = json.dumps(request).encode()
    head = struct.pack("<I", len(body))
    socket.send_fds(peer, [head], list(files))
    peer.sendall(body)


def receive_request(peer: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """OSError or ValueError for what is no request; then no file of it stays open."""
    head, files, flags, _ = socket.recv_fds(peer, 4, FILES_MAX + 1)
    try:
        if len(head) != 4 or flags & socket.MSG_CTRUNC:
            raise ValueError("no whole request came")
        length = struct.unpack("<I", head)[0]
        if length > REQUEST_MAX:
            raise ValueError(f"a request of {length} bytes is too long")
        body = bytearray()
        while len(body) < length:
            part = peer.recv(min(CHUNK, length - len(body)))
            if not part:
                raise ValueError("the request ends early")
            body += part
        return json.loads(bytes(body)), files
    except BaseException:
        for file in files:
            os.close(file)
        raise


def send_word(peer: socket.socket, **word: object) -> None:
    peer.sendall(json.dumps(word).encode() + b"\n", socket.MSG_NOSIGNAL)


class Words:
    """The words that come over a connection, one at a time."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._rest = b""

    def next(self) -> dict[str, Any] | None:
        """The next one; None if the other end is gone."""
        while b"\n" not in self._rest:
            try:
                part = self._peer.recv(CHUNK)
            except ConnectionError:
                return None
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        word: dict[str, Any] = json.loads(line)
        return word
