"""Threads that Python did not start, and whose they are: that is read from their stacks.

For a thread that waits, the kernel tells its stack pointer and its next instruction (/proc/self/task/N/syscall).
Words on its stack that point into a library's code are the calls that led there. A thread whose calls are all of
libraries that never touch a tensor by themselves is a worker: of OpenMP, of torch, of a linear algebra library. Any
other is a stranger, and so is one that never waits.

Workers of OpenMP and linear algebra work for a thread that waits for them. Those of torch may also go on while the
program does something else (`torch.jit.fork`). So they are looked at each time: one is at rest only if it is asleep,
with hardly anything on its stack, or waits for other processes. A worker that is at work is deep in torch's code,
also while it waits for OpenMP or for memory.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import os
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from carpool import _native

STACK_BYTES = 1 << 16  # of a stack that are looked at: a worker that waits has used less
CARPOOL = "carpool's own"  # its libraries: every allocation goes through them
# Whole names, for a program may have a library of its own that begins like one of these (libtorch_mine.so). What
# follows the first dot or hyphen is a version or an installer's mark.
PLAIN = frozenset({CARPOOL, "libc", "ld", "libm", "libpthread", "libstdc++", "libgcc_s", "[vdso]"})  # anybody's
WORKERS = re.compile(
    r"libgomp|libi?omp5?|libtbb(bind|malloc(_proxy)?)?[\d_]*"
    r"|libtorch(_(cpu|python|global_deps|nvshmem|(cuda|hip|xpu)(_(cpp|cu|linalg))?))?|libc10(_(cuda|hip|xpu))?"
    r"|libcaffe2(_nvrtc|_observers)?"
    r"|lib(scipy_)?openblas(64)?_?(p|o|openmp|pthreads?)?(64)?_?|libmkl_\w+|libblis"
    r"|libcuda|libcudart|libcudadebugger|libcublas(Lt)?|libcudnn(_\w+)?|libnccl"
    r"|libnv(rtc|rtc_builtins|JitLink|ToolsExt|idia|ptxcompiler|perf_\w+|shmem_\w+)"
    r"|libjemalloc|libtcmalloc(_\w+)?|libmimalloc|lib(a|t|l|ub)san"
    # These reach a tensor's memory only if the program gave it to them: as an array of numpy's, by DLPack or by its
    # address. Such memory stays where it is while the program is parked (parking/exports.py), so they may go on.
    r"|libzmq|cygrpc|libuv|libarrow(_(python|dataset|acero|compute|flight|substrait))?"
)
TORCH = re.compile(r"lib(torch|c10|caffe2)(_\w+)?")  # those of them that get work at other times too
REST_BYTES = 3072  # on the stack: at rest 300 to 1,200 were seen, with torch 2.13; in the middle of an operator 5,600
WAITS_FOR_OTHERS = {  # by machine, the numbers of poll, select, accept, epoll_wait and their younger kin
    "x86_64": frozenset({7, 23, 43, 232, 270, 271, 281, 288, 441}),
    "aarch64": frozenset({22, 72, 73, 202, 242, 441}),
}.get(os.uname().machine, frozenset())
PYTHON = re.compile(r"(lib)?python\d*")
# So torch names its threads for the backward pass. Each had Python's lock when it began, and addresses of Python's
# code may lie on its stack ever since (torch 2.6, Python 3.13). One that runs Python now is found by its frame.
AUTOGRAD = "pt_autograd_"
NATIVE = Path(_native.__file__).resolve().parent
TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class Stranger:
    """A thread that may touch tensors at any time."""

    number: int
    library: str  # whose calls are on its stack; empty for one that computes

    @property
    def may_settle(self) -> bool:
        """Whether another look may find it waiting, gone, or known: Python's threads begin and end inside Python."""
        return not self.library or _is_pythons(self.library)

    def __str__(self) -> str:
        return f"{self.number} of {self.library}" if self.library else f"{self.number}, which computes all the time,"


@dataclass(frozen=True, slots=True)
class Stack:
    """What a thread that waits has on its stack."""

    call: int  # the system call's number
    libraries: frozenset[str]  # without those that anybody calls
    used_bytes: int

    @property
    def stranger(self) -> str | None:
        """A library that makes it a stranger; None for a worker."""
        others = sorted(each for each in self.libraries if not is_worker(each))
        return others[0] if others else None if self.libraries else "an unknown library"

    @property
    def is_torchs(self) -> bool:
        return any(TORCH.fullmatch(_stem(each)) for each in self.libraries)

    @property
    def is_at_rest(self) -> bool:
        return self.call in WAITS_FOR_OTHERS or self.used_bytes <= REST_BYTES


class Workers:
    """The threads of this process that were seen to be workers, so that one that is busy again is still known.

    Not those of torch: they are looked at each time.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()  # with when it began: a number may come again

    def stranger(self, known: Set[int]) -> Stranger | None:
        """A thread that is neither known to Python nor a worker, or one of torch's that is at work.

        None too where the kernel does not tell.
        """
        code: _Code | None = None
        asleep: dict[int, int] = {}  # how often each had slept when it was looked at
        try:
            for number in [int(each.name) for each in TASKS.iterdir() if int(each.name) not in known]:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is gone
                    thread = number, _birth(number)
                    if thread not in self._seen:
                        code, asleep[number] = code or _Code(), _sleeps(number)
                        stranger = self._look(thread, code)
                        if stranger is not None:
                            return stranger
            # One that was at work may have given work to one that was asleep when it was looked at.
            for number, count in asleep.items():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if _sleeps(number) != count or _waits(number) is None:
                        return Stranger(number, "")
        except OSError:
            return None
        return None

    def _look(self, thread: tuple[int, str], code: _Code) -> Stranger | None:
        number = thread[0]
        stack = _stack(number, code)
        if stack is None:
            return Stranger(number, "")
        if stack.stranger is not None:
            return Stranger(number, stack.stranger)
        if not stack.is_torchs:
            self._seen.add(thread)
        elif not stack.is_at_rest:
            return Stranger(number, "")
        return None


class _Code:
    """Where the code of libraries is, at this moment."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._rows: list[tuple[int, str]] = []
        self.stacks: list[tuple[int, int]] = []
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            span, rights, _, _, _, *path = line.split(None, 5)
            begin, end = (int(each, 16) for each in span.split("-"))
            if "x" in rights:
                self._begins.append(begin)
                self._rows.append((end, _name(path[0]) if path else "code that was made in memory"))
            elif "w" in rights:
                self.stacks.append((begin, end))

    def library_at(self, address: int) -> str | None:
        place = bisect.bisect_right(self._begins, address) - 1
        if place < 0 or address >= self._rows[place][0]:
            return None
        return self._rows[place][1]


def _name(path: str) -> str:
    place = Path(path.strip())
    return CARPOOL if place.parent == NATIVE else place.name


def _stem(library: str) -> str:
    """Its name without what follows the first dot or hyphen."""
    return re.split(r"[.-]", library, maxsplit=1)[0]


def is_worker(library: str) -> bool:
    """Whether a library of this file name is one that never touches a tensor by itself."""
    return WORKERS.fullmatch(_stem(library)) is not None


def _is_pythons(library: str) -> bool:
    return PYTHON.fullmatch(_stem(library)) is not None


def _title(number: int) -> str:
    return (TASKS / str(number) / "comm").read_text(errors="replace")


def _waits(number: int) -> tuple[int, int, int] | None:
    """The system call that a thread waits in, its stack pointer and its next instruction.

    None while it runs, or waits for a page of its memory, which is no system call.
    """
    words = (TASKS / str(number) / "syscall").read_text().split()
    if len(words) < 3 or int(words[0]) < 0:
        return None
    return int(words[0]), int(words[-2], 16), int(words[-1], 16)


def _stack(number: int, code: _Code) -> Stack | None:
    """None while it does not wait."""
    waits = _waits(number)
    if waits is None:
        return None
    call, top, instruction = waits
    end = next((end for begin, end in code.stacks if begin <= top < end), top)
    calls = [code.library_at(address) for address in (instruction, *_words(top, min(end, top + STACK_BYTES)))]
    used = max((8 * place for place, library in enumerate(calls) if library is not None), default=0)
    found = frozenset(library for library in calls if library is not None and _stem(library) not in PLAIN)
    if any(map(_is_pythons, found)) and _title(number).startswith(AUTOGRAD):
        found = frozenset(library for library in found if not _is_pythons(library))
    return Stack(call, found, used)


def _words(begin: int, end: int) -> array.array[int]:
    """The stack up to where the C library keeps the thread's own data, which begins with its own address."""
    words = array.array("Q")
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words.frombytes(os.pread(memory, (end - begin) // 8 * 8, begin))
    finally:
        os.close(memory)
    own = next((place for place, word in enumerate(words) if word == begin + 8 * place), len(words))
    return words[:own]


def _birth(number: int) -> str:
    return (TASKS / str(number) / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def _sleeps(number: int) -> int:
    for line in (TASKS / str(number) / "status").read_text(errors="replace").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0
