"""The warm parent: imports torch once, then forks for each program that a runner sends.

It is no job: no turn, no page, no bytes in the ledger. `carpool daemon status` shows it with its memory. It ends when
nobody came for ten minutes, when a file changed that it has imported (V14), when the host's memory is short, when its
socket is gone, and when somebody ends it. Programs go on then: each has a keeper of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carpool.agent import warm_up
from carpool.agent.warm import fit, keeper, title
from carpool.agent.warm.program import Program
from carpool.agent.warm.reads import Reads
from carpool.agent.warm.shelf import Shelf
from carpool.wire import warm

PRELOADED = ("numpy", "torch", "torch._dynamo")
IDLE_SECONDS = 600.0
LOOK_SECONDS = 30.0
MISFIT_IDLE_SECONDS = 60.0  # a parent that served nobody for so long makes way for one that fits
REQUEST_SECONDS = 5.0
MEMORY_SHARE_MIN = 10  # percent of the host's memory that must be available
HERE = Path(__file__).parent
MADV_COLLAPSE, LARGE_PAGE = 25, 2 << 20
OWN = (warm.ENV_WARM_PARENT, warm.ENV_WARM_SPARE, warm.ENV_WARM_PRELOAD)


class Parent:
    def __init__(self) -> None:
        self._started_with = dict(os.environ)
        self._environment = _clean_environment()
        self._title = title.Title()
        self._title.show(f"carpool: warm parent of {sys.executable}")
        self._socket = socket.socket(fileno=int(sys.argv[1]))
        self._path = Path(sys.argv[2])
        self._inode = 0
        self._is_ready = False
        self._shelf = Shelf()
        self._reads = Reads()
        self._programs = 0
        self._trouble = ""  # why nobody can be served here
        self._changed = ""  # a file that is not what was imported

    def begin(self) -> None:
        """Be known. Whoever ends all parents takes their sockets away first and then looks for notes: this one's is
        there before it looks for its socket, so it is ended or ends itself, and imports nothing then."""
        self._note()
        try:
            self._inode = self._path.stat().st_ino
        except OSError:
            self._path.with_suffix(".json").unlink(missing_ok=True)
            os._exit(0)

    def preload(self) -> None:
        """Import everything; what goes wrong is why nobody is served here."""
        files = _open_files()
        try:
            self._reads.add(_site_reads(self._started_with))
            self._reads.begin()
            self._shelf.fill(PRELOADED)
            from carpool.agent import backends  # noqa: F401
            from carpool.agent.checkpoint import replay_guard  # noqa: F401
            from carpool.agent.turns import torch_hooks  # noqa: F401

            warm_up.make_first_calls(sys.modules["torch"])
            _rehearse(sys.modules["torch"])
        except Exception as error:  # noqa: BLE001 - whatever it is, programs start cold
            self._trouble = f"the warm parent could not be made ready ({type(error).__name__}: {error})"
        self._reads.end()
        _end_threads()
        if _open_files() != files:
            self._trouble = self._trouble or "an import left a file open in the warm parent"
        self._fit = fit.Fit(self._environment, self._reads, self._shelf.top_names())
        self._shelf.put_away()
        gc.collect()
        gc.freeze()
        _collapse()

    def serve(self) -> Program | None:
        """Fork for whoever comes; returns in a program, and None at the parent's own end."""
        self._is_ready = True
        self._note()
        served = time.monotonic()
        while not self._is_over(served):
            if not select.select([self._socket], [], [], LOOK_SECONDS)[0]:
                continue
            try:
                peer, _ = self._socket.accept()
            except OSError:
                continue
            program, answer = self._answer(peer)
            if program is not None:
                return program
            if not answer:
                served = time.monotonic()
            elif self._changed or time.monotonic() - served > MISFIT_IDLE_SECONDS:
                break
        self._close()
        return None

    def _answer(self, peer: socket.socket) -> tuple[Program | None, str]:
        """The program, in its own process; else why this one starts cold, or nothing."""
        files: list[int] = []
        with contextlib.closing(peer):
            try:
                warm.check_peer(peer)
                peer.settimeout(REQUEST_SECONDS)
                request, files = warm.receive_request(peer)
                peer.settimeout(None)
                self._changed = self._changed or self._fit.changed()
                why = f"{self._changed} changed after it was imported" if self._changed else ""
                why = why or self._trouble or self._fit.misfit(request)
                if why:
                    warm.send_word(peer, cold=why)
                    return None, why
                program = self._fork(peer, request, files)
            except (OSError, ValueError, KeyError) as error:
                with contextlib.suppress(OSError):
                    warm.send_word(peer, cold=f"the warm parent failed ({type(error).__name__}: {error})")
                return None, "failed"
            finally:
                for file in files:
                    with contextlib.suppress(OSError):  # a program has closed them
                        os.close(file)
        return program, ""

    def _fork(self, peer: socket.socket, request: dict[str, Any], files: list[int]) -> Program | None:
        program = Program(request, self._shelf, self._reads)
        if os.fork():
            self._programs += 1
            self._note()
            return None
        self._title.show("carpool: keeper of", *request["argv"])
        pipes = keeper.keep(peer, request)
        if pipes is None or not program.become(files, *pipes, self._title):
            os._exit(1)
        files.clear()
        peer.detach()
        self._socket.detach()
        return program

    # --- its own life ------------------------------------------------------------------------------------

    def _is_over(self, served: float) -> bool:
        if time.monotonic() - served > IDLE_SECONDS or available_percent() < MEMORY_SHARE_MIN:
            return True
        try:
            return self._path.stat().st_ino != self._inode
        except OSError:
            return True

    def _note(self) -> None:
        """What the daemon shows of it."""
        facts: dict[str, object] = {"pid": os.getpid(), "python": sys.executable, "programs": self._programs}
        facts |= {"used": time.time(), "is_ready": self._is_ready}
        draft = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(facts))
            draft.replace(self._path.with_suffix(".json"))

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
                self._path.with_suffix(".json").unlink(missing_ok=True)
        self._socket.close()


def _clean_environment() -> dict[str, str]:
    """The variables with which a program of this parent would have been started, and what only it needs taken off."""
    preload = os.environ.get(warm.ENV_WARM_PRELOAD, "")
    if preload:
        os.environ["LD_PRELOAD"] = preload
    else:
        os.environ.pop("LD_PRELOAD", None)
    for name in OWN:
        os.environ.pop(name, None)
    return dict(os.environ)


def _site_reads(environment: Mapping[str, str]) -> Any:
    """What the start of this Python read, before anybody could note it."""
    out, into = os.pipe()
    words = [sys.executable, "-S", str(HERE / "site_reads.py"), str(HERE.parents[2])]
    os.posix_spawn(sys.executable, words, environment, file_actions=[(os.POSIX_SPAWN_DUP2, into, 1)])
    os.close(into)
    with open(out, "rb") as answer:
        return json.loads(answer.read().splitlines()[-1])


def _rehearse(torch: Any) -> None:
    """A forward and an update of nothing: programs then share the pages of what nearly all of them run first. No
    backward, whose engine forbids forks. What it draws, each program draws anew."""
    with contextlib.suppress(Exception):  # a torch that has these elsewhere goes without
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.Adam(model.parameters())
        with torch.no_grad():
            model(torch.zeros(1, 1))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()


def _end_threads() -> None:
    """A library's own threads end in the parent of a fork too, as OpenBLAS's do; a fork that is for nothing else."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _collapse() -> None:
    """Into large pages, where the kernel can (Linux 6.1): a fork copies one entry in place of 512."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *_ = line.split(None, 5)
        start, end = (int(each, 16) for each in span.split("-"))
        start, end = -(-start // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE
        if rights == "rw-p" and inode == "0" and start < end:
            advise(start, end - start, MADV_COLLAPSE)


def _open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def available_percent() -> int:
    """Of the host's memory; 100 where nobody tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 100
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("MemTotal", "MemAvail"))}
    return 100 * found.get("MemAvailable", 1) // max(1, found.get("MemTotal", 1))


def serve() -> Program | None:
    """Called by main.py: returns in each program, with what to run. Nobody is told of this process's end: it is no
    child of the runner that started it, and so not part of a job in which that runner is. The runner goes on when
    this process has written its note."""
    noted, begun = os.pipe()
    if os.fork():
        os.close(begun)
        os.read(noted, 1)
        os._exit(0)
    os.close(noted)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report elsewhere
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    global _parent
    _parent = Parent()
    _parent.begin()
    os.close(begun)
    _parent.preload()
    return _parent.serve()


_parent: Parent | None = None  # kept by its programs too: to free what it knows they would copy a thousand pages
