"""Pages of memory: how the kernel is asked for them, so that a move waits for the kernel as little as possible.

A move waits for new memory most of all. The kernel hands out and maps a large page (2 MiB) once where it does so five
hundred times for small ones. So both ends of a copy get large pages if the kernel has them; if not, a move only takes
longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Iterator, Sequence

MADV_DONTFORK, MADV_HUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_COLLAPSE = 10, 14, 22, 23, 25
PROT_NONE, MAP_FIXED, MAP_FAILED = 0, 0x10, ctypes.c_void_p(-1).value
HUGE_BYTES = 2 << 20
GAP_BYTES = 4096  # between two neighbours on the heap: the allocator's own words, and what rounding leaves


@contextlib.contextmanager
def mapped(fd: int, count: int, offset: int = 0) -> Iterator[int]:
    """The file's address while the block lasts, one where large pages fit; a forked child does not have it."""
    libc, span = system(), ctypes.c_size_t(count + HUGE_BYTES)
    libc.mmap.restype = ctypes.c_void_p
    held = libc.mmap(None, span, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    if held == MAP_FAILED:
        raise _trouble("the store could not be mapped")
    try:
        base = -(-held // HUGE_BYTES) * HUGE_BYTES
        place, access = ctypes.c_void_p(base), mmap.PROT_READ | mmap.PROT_WRITE
        how = mmap.MAP_SHARED | MAP_FIXED
        if libc.mmap(place, ctypes.c_size_t(count), access, how, fd, ctypes.c_long(offset)) == MAP_FAILED:
            raise _trouble("the store could not be mapped")
        advise(base, count, MADV_DONTFORK)
        yield base
    finally:
        libc.munmap(ctypes.c_void_p(held), span)


def populate(address: int, count: int, how: int) -> None:
    """Get pages of a mapping at once; where there is no room that is an error here, and would be a signal later."""
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    if not advise(begin, address + count - begin, how) and ctypes.get_errno() != errno.EINVAL:
        raise _trouble("there was no page to be had")  # EINVAL: an old kernel gets them one by one


def prefer_large_pages(ranges: Sequence[tuple[int, int]]) -> None:
    """Let the kernel back fresh memory, given as addresses and sizes, in large pages.

    Neighbours are taken as one: a large page may hold the end of one and the beginning of the next.
    """
    joined: list[list[int]] = []
    for begin, count in sorted(ranges):
        if joined and begin - joined[-1][1] <= GAP_BYTES:
            joined[-1][1] = max(joined[-1][1], begin + count)
        else:
            joined.append([begin, begin + count])
    for begin, end in joined:
        first = -(-begin // HUGE_BYTES) * HUGE_BYTES
        length = (end - first) // HUGE_BYTES * HUGE_BYTES
        if length > 0:
            advise(first, length, MADV_HUGEPAGE)


def advise(address: int, count: int, how: int) -> bool:
    return not system().madvise(ctypes.c_void_p(address), ctypes.c_size_t(count), how)


def _trouble(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


@functools.cache
def system() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
