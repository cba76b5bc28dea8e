"""Turns a fork of the warm parent into a program: what a new process of Python has, is made as it is there.

In order: files and directory, limits, signals, variables, standard streams, random states, the byte meter, and last
`__main__` with the modules put away (shelf.py). main.py then runs the code, from its outermost frame.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import logging
import os
import posix
import random
import resource
import signal
import sys
import time
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from typing import Any

from carpool.agent import boot
from carpool.agent.warm.keeper import GO
from carpool.agent.warm.reads import Reads
from carpool.agent.warm.shelf import Shelf
from carpool.agent.warm.title import Title
from carpool.wire import warm
from carpool.wire.protocol import ENV_PAGE

PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}  # as the interpreter does at its start
STREAMS = (("stdin", "rb", "r"), ("stdout", "wb", "w"), ("stderr", "wb", "w"))


class Program:
    """The program, once `become` is over: what main.py runs."""

    def __init__(self, request: Mapping[str, Any], shelf: Shelf, reads: Reads) -> None:
        self._request = request
        self._command = warm.Command(request["argv"])
        self._environment: dict[str, str] = request["environment"]
        self._shelf = shelf
        self._reads = reads
        self._done: Deeds | None = None  # before it began
        self.module = ""  # what -m names; otherwise there is code
        self.source: bytes | str = b""
        self.filename = "<string>"
        self.namespace: dict[str, Any] = {}

    def become(self, files: Sequence[int], tell: int, hear: int, title: Title) -> bool:
        """Become the program; False if its runner wants it no more. What cannot be had is told the keeper."""
        try:
            tell, hear = self._take_files(files, tell, hear)
            self._take_limits()
            self._take_signals()
            self._take_variables()
            title.tell(self._environment)
            title.show(*self._request["argv"])
            self._make_streams()
            _draw_anew(self._shelf)
            self._make_main()
            self._join()
        except Exception as error:  # noqa: BLE001 - whatever it is, a cold start does without
            os.write(tell, f"{type(error).__name__}: {error}".encode(errors="replace"))
            os._exit(1)
        os.write(tell, GO)
        os.close(tell)
        is_wanted = os.read(hear, 1) == GO
        os.close(hear)
        logging._startTime = time.time()  # type: ignore[attr-defined]
        self._done = deeds()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._request["blocked"])
        return is_wanted

    # --- what a process has ------------------------------------------------------------------------------

    def _take_files(self, files: Sequence[int], tell: int, hear: int) -> tuple[int, int]:
        """The program's files under their numbers, its directory, and no other file but the two pipes."""
        numbers: list[int] = self._request["files"]
        above = max(numbers) + 1
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in (tell, hear, *files)]
        tell, hear, directory, *own = moved
        os.fchdir(directory)
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {tell, hear, *own}:
            if number > 2:
                with contextlib.suppress(OSError):
                    os.close(number)
        for file, number in zip(own, numbers, strict=True):
            os.dup2(file, number, inheritable=True)
            os.close(file)
        return tell, hear

    def _take_limits(self) -> None:
        os.umask(self._request["umask"])
        for name, (soft, hard) in self._request["limits"].items():
            kind = getattr(resource, name)
            if resource.getrlimit(kind) != (soft, hard):
                resource.setrlimit(kind, (soft, hard))
        if os.sched_getscheduler(0) != self._request["scheduler"]:
            os.sched_setscheduler(0, self._request["scheduler"], os.sched_param(0))
        if os.getpriority(os.PRIO_PROCESS, 0) != self._request["nice"]:
            os.setpriority(os.PRIO_PROCESS, 0, self._request["nice"])

    def _take_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        ignored = set(self._request["ignored"]) | PYTHON_IGNORES
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        if signal.SIGINT not in ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _take_variables(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        posix.environ.clear()
        posix.environ.update({os.fsencode(name): os.fsencode(value) for name, value in self._environment.items()})
        boot.note_words()
        time.tzset()

    def _make_streams(self) -> None:
        """As the interpreter makes them; how they are encoded depends on variables that are the parent's too."""
        is_unbuffered = self._command.is_unbuffered or bool(self._environment.get("PYTHONUNBUFFERED"))
        for number, (name, mode, text_mode) in enumerate(STREAMS):
            before = getattr(sys, f"__{name}__")
            is_raw = is_unbuffered and text_mode == "w"
            buffer: Any = open(number, mode, 0 if is_raw else -1, closefd=False)  # noqa: SIM115 - it stays
            raw = buffer if is_raw else buffer.raw
            raw.name = f"<{name}>"
            stream = io.TextIOWrapper(
                buffer,
                encoding=before.encoding,
                errors=before.errors,
                newline="\n",
                line_buffering=not is_unbuffered and (name == "stderr" or raw.isatty()),
                write_through=is_unbuffered,
            )
            stream.mode = text_mode  # type: ignore[misc]
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    # --- the program -------------------------------------------------------------------------------------

    def _make_main(self) -> None:
        command = self._command
        sys.orig_argv = list(self._request["argv"])
        sys.executable = self._request["interpreter"]
        spawn = self._shelf.module("multiprocessing.spawn")
        if spawn is not None:
            spawn.set_executable(sys.executable)
        sys.argv = [command.kind or command.target, *command.arguments]
        main = types.ModuleType("__main__")
        self.namespace = main.__dict__
        self.namespace |= {
            "__annotations__": {},
            "__builtins__": sys.modules["builtins"],
            "__loader__": BuiltinImporter,
        }
        if command.kind:
            sys.path.insert(0, "" if command.kind == "-c" else self._request["cwd"])
            self.module = command.target if command.kind == "-m" else ""
            self.source = command.target + "\n"
        else:
            self.filename = _absolute(command.target, self._request["cwd"])
            with open(command.target, "rb") as script:
                self.source = script.read()
            sys.path.insert(0, _script_directory(command.target))
            loader = SourceFileLoader("__main__", self.filename)
            self.namespace |= {"__file__": self.filename, "__cached__": None, "__loader__": loader}
        sys.modules["__main__"] = main

    def _join(self) -> None:
        """The job's meter, and carpool's hooks when the program imports torch."""
        with contextlib.suppress(AttributeError):  # no meter was built, or none is wanted
            ctypes.CDLL(None).carpool_join()
        self._shelf.before_first = self._check_variables
        self._shelf.on_other = self._meet_other
        self._shelf.open()

    def _check_variables(self) -> None:
        """The program imports what the parent read variables for; it may have set some since (V12)."""
        name = self._reads.difference(self._environment, os.environ)
        if name:
            self._start_again(f"it sets {name}, which is read when torch is imported")

    def _meet_other(self, name: str, place: str) -> None:
        """The program's own search finds another module of this name (V11); torch would have that one, too."""
        if self._shelf.module("torch") is not None:
            self._start_again(f"{place} would be imported in place of what the warm parent has")

    def _start_again(self, why: str) -> None:
        """Begin anew, cold, in the same process; nobody can tell, if it has done nothing yet. Else it is told."""
        if deeds() != self._done:
            sys.stderr.write(f"carpool: {why}; that comes too late for a warm start: start it with --cold\n")
            return
        with contextlib.suppress(OSError, ValueError, KeyError):  # it is only what explain says
            note = os.path.join(os.path.dirname(self._environment[ENV_PAGE]), "started.json")
            with open(note) as file:
                start = json.load(file) | {"how": f"cold: {why}"}
            with open(f"{note}.{os.getpid()}", "x") as file:
                json.dump(start, file)
            os.replace(file.name, note)
        os.execve(sys.executable, self._request["argv"], self._environment)

    def report(self, error: BaseException) -> None:
        """Show an error as the interpreter would, without carpool's frame."""
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(trace), trace
        sys.excepthook(type(error), error, trace)
        sys.excepthook = lambda *_: None  # the interpreter's turn comes next


Deeds = tuple[int, int, int, int, bool, frozenset[str]]


def deeds() -> Deeds:
    """What this process has done that could not be done twice: while it is equal, nothing was."""
    with open("/proc/self/io") as counts:
        writes = next((int(line.split()[1]) for line in counts if line.startswith("syscw")), 0)
    count = getattr(ctypes.CDLL(None), "carpool_deeds", lambda: 0)  # native/reads.c
    files = frozenset(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
    return writes, count(), len(os.listdir("/proc/self/task")), os.umask(os.umask(0)), _has_children(), files


def _has_children() -> bool:
    """Whether there is any process that it started, or was one that it waited for."""
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss:
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _absolute(script: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, script)) if not script.startswith("/") else script


def _script_directory(script: str) -> str:
    """What the interpreter puts in front of sys.path: where the script is, or what it is a link to."""
    if os.path.islink(script):
        script = os.path.join(os.path.dirname(script), os.readlink(script))
    return os.path.dirname(os.path.realpath(script))


def _draw_anew(shelf: Shelf) -> None:
    """What modules draw from the operating system when they are imported, each program draws for itself."""
    random.seed()
    torch, numpy = shelf.module("torch"), shelf.module("numpy")
    if torch is not None:
        torch.default_generator.seed()
    if numpy is not None:
        numpy.random.seed()
    processes = shelf.module("multiprocessing.process")
    if processes is not None:
        setattr(processes, "ORIGINAL_DIR", os.getcwd())  # noqa: B010 - typeshed does not know it
        own = processes.current_process()
        own._config["authkey"] = processes.AuthenticationString(os.urandom(32))
    config = shelf.module("torch._dynamo.config")
    with contextlib.suppress(AttributeError, KeyError, OSError):
        if config is not None and "debug_dir_root" in config._config:
            config._config["debug_dir_root"].default = os.path.join(os.getcwd(), "torch_compile_debug")
