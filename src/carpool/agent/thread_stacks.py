"""Threads that Python did not start, and whose they are: that is read from their stacks.

For a thread that waits, the kernel tells its stack pointer and its next instruction (/proc/self/task/N/syscall).
Words on its stack that point into a library's code are the calls that led there. A thread whose calls are all of
libraries that never touch a tensor by themselves is a worker: of OpenMP, of torch, of a linear algebra library. Such
a thread gets work only while the program computes. Any other is a stranger, and so is one that never waits.
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
    r"|libzmq|cygrpc|libuv|libarrow(_(python|dataset|acero|compute|flight|substrait))?"
)
PYTHON = re.compile(r"(lib)?python\d*")
NATIVE = Path(_native.__file__).resolve().parent
TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class Stranger:
    """A thread that may touch tensors at any time."""

    number: int
    library: str  # whose calls are on its stack; empty if it could not be looked at, because it never waited

    @property
    def may_settle(self) -> bool:
        """Whether another look may find it waiting, gone, or known: Python's threads begin and end inside Python."""
        return not self.library or PYTHON.fullmatch(_stem(self.library)) is not None

    def __str__(self) -> str:
        return f"{self.number} of {self.library}" if self.library else f"{self.number}, which computes all the time,"


class Workers:
    """The threads of this process that were seen to be workers, so that one that is busy again is still known."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()  # with when it began: a number may come again

    def stranger(self, known: Set[int]) -> Stranger | None:
        """A thread that is neither known to Python nor a worker; None too where the kernel does not tell."""
        code: _Code | None = None
        try:
            for number in [int(each.name) for each in TASKS.iterdir() if int(each.name) not in known]:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is gone
                    thread = number, _birth(number)
                    if thread not in self._seen:
                        code = code or _Code()
                        library = _foreign_library(number, code)
                        if library is not None:
                            return Stranger(number, library)
                        self._seen.add(thread)
        except OSError:
            return None
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


def _foreign_library(number: int, code: _Code) -> str | None:
    """A library of this thread that makes it a stranger; empty while it runs; None for a worker."""
    libraries = _libraries_on_stack(number, code)
    if libraries is None:
        return ""
    others = sorted(each for each in libraries if not is_worker(each))
    if others or not libraries:
        return others[0] if others else "an unknown library"
    return None


def is_worker(library: str) -> bool:
    """Whether a library of this file name is one that never touches a tensor by itself."""
    return WORKERS.fullmatch(_stem(library)) is not None


def _libraries_on_stack(number: int, code: _Code) -> set[str] | None:
    """The libraries that this thread is in, without those that anybody calls; None while it runs."""
    words = (TASKS / str(number) / "syscall").read_text().split()
    if len(words) < 3:
        return None
    top, instruction = int(words[-2], 16), int(words[-1], 16)
    end = next((end for begin, end in code.stacks if begin <= top < end), top)
    found = {code.library_at(address) for address in (instruction, *_words(top, min(end, top + STACK_BYTES)))}
    return {library for library in found if library is not None and _stem(library) not in PLAIN}


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
