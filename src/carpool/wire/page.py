"""The page a job shares with the daemon: words that either side reads without a system call.

Each job has one file. The daemon makes it, for its own user only, and maps it. So does every process of the job that
preloads a guest library or takes turns. It is an array of 64-bit words: a header, then one slot for each process.
protocol.py lists the words and what they mean. Here are the rules, and the words under names.

Rules
  G1  Each word has one writer, the daemon or the process that owns the slot. The few header words that every meter
      writes change by atomic operations. Nobody locks anything.
  G2  A slot belongs to the live process whose pid stands in it. The meter claims slots from the front with an
      atomic exchange. The daemon lends slots from FIRST_LENT on, to processes that have no meter.
  G3  A dead process cannot hold anything, so readers skip it. Whoever gave the slot clears it: a meter takes a
      claimed one over with an exchange, the daemon clears a lent one. A process in another pid namespace cannot tell
      the dead from the living, and takes all for living.
  G4  The file is fully allocated before it is shared, so a full disk fails its creation, not a later store.
  G5  The one sentence in it is the daemon's. It is written before the number that announces it.
  G6  Programs may spoil their page, by mistake or on purpose. The daemon lives on when the file is cut short: it then
      reads zeroes. A page without its magic is spoilt, and is not believed any more. Counts are never read as more
      than COUNT_MAX.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Any, overload

from carpool._native import load
from carpool.errors import PeerError
from carpool.wire.protocol import *

native: Any = load("swap", SWAP_CONTRACT)
HAS_SWAP = native is not None  # else no compiler was there, or the library is of an older checkout
COUNT_MAX = 1 << 62  # no program counts so far; a larger number is a wild write


def slot_base(slot: int) -> int:
    return slot * SLOT_WORDS


def swap(words: memoryview, index: int, before: int, after: int) -> bool:
    """Put `after` where `before` stands, as one atomic step, and say whether it did. Needs HAS_SWAP."""
    return bool(native.swap(words, index, before, after))


def cuts() -> int:
    """How many guarded pages this process has found cut short (G6)."""
    return int(native.cuts()) if HAS_SWAP else 0


def own_namespace() -> int:
    """The number of this process's pid namespace, as slots have it; 0 if the kernel does not tell."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF
    except OSError:
        return 0


def raise_flag(words: memoryview, base: int, flag: int) -> None:
    """Set a bit of a slot's S_FLAGS, in which the guest's threads change others meanwhile."""
    while HAS_SWAP and not swap(words, base + S_FLAGS, flags := words[base + S_FLAGS], flags | flag):
        pass
    if not HAS_SWAP:
        words[base + S_FLAGS] |= flag


def make_pass(*, pid: int, is_shared: bool, serial: int, is_quiet: bool = False) -> int:
    flags = (PASS_SHARED if is_shared else 0) | (PASS_QUIET if is_quiet else 0)
    return pid | flags | (serial & PASS_SERIAL_MASK) << PASS_SERIAL_SHIFT


def pass_pid(word: int) -> int:
    return word & (PASS_SHARED - 1)


def pass_is_shared(word: int) -> bool:
    return bool(word & PASS_SHARED)


def pass_serial(word: int) -> int:
    return word >> PASS_SERIAL_SHIFT & PASS_SERIAL_MASK


class Word:
    """A word of the page under a name: reading the attribute reads the page, setting it stores there."""

    def __init__(self, index: int) -> None:
        self.index = index

    @overload
    def __get__(self, words: None, owner: type[Words]) -> Word: ...
    @overload
    def __get__(self, words: Words, owner: type[Words]) -> int: ...
    def __get__(self, words: Words | None, owner: type[Words]) -> Word | int:
        return self if words is None else words.all[words.base + self.index]

    def __set__(self, words: Words, value: int) -> None:
        words.all[words.base + self.index] = value


class Count(Word):
    """A word that counts something."""

    @overload
    def __get__(self, words: None, owner: type[Words]) -> Word: ...
    @overload
    def __get__(self, words: Words, owner: type[Words]) -> int: ...
    def __get__(self, words: Words | None, owner: type[Words]) -> Word | int:
        return self if words is None else min(words.all[words.base + self.index], COUNT_MAX)


class Words:
    """Some of the page's words, by name. Nothing is copied: two of these over one page always agree."""

    __slots__ = ("all", "base")

    def __init__(self, words: memoryview, base: int = 0) -> None:
        self.all = words
        self.base = base


class Header(Words):
    """The words that concern the job as a whole: `page.header.waiters = 2`."""

    __slots__ = ()
    cap_bytes = Word(H_CAP)
    waiters = Word(H_WAITERS)
    slots_used = Word(H_SLOTS_USED)
    denied_count = Count(H_DENIED_COUNT)
    denied_bytes = Count(H_DENIED_BYTES)
    lent_used = Word(H_LENT_USED)
    checkpoint = Word(H_CHECKPOINT)
    price = Word(H_PRICE)
    paid_until_ns = Count(H_PAID_UNTIL)
    device_ns = Count(H_DEVICE_NS)
    ended_ns = Count(H_ENDED_NS)
    capacity = Word(H_CAPACITY)
    denied_ns = Word(H_DENIED_NS)
    trial = Word(H_TRIAL)


class Slot(Words):
    """The words of one process. `page.slot(number)` makes one: `page.slot(member.slot).recall = 5`.

    A slot is a view and costs next to nothing to make. Make one where you need it; there is no need to keep it.
    """

    __slots__ = ()
    pid = Word(S_PID)
    steps = Count(S_STEPS)
    boundary_ns = Count(S_BOUNDARY_NS)
    recall = Word(S_RECALL)
    lease = Word(S_LEASE)
    stall_ns = Count(S_STALL_NS)
    flags = Word(S_FLAGS)
    parked_bytes = Count(S_PARKED)
    pending_bytes = Count(S_PENDING)
    pass_word = Word(S_PASS)
    offer = Word(S_OFFER)
    stall_held_ns = Count(S_STALL_HELD_NS)
    device_ns = Count(S_DEVICE_NS)
    spilled_bytes = Count(S_SPILLED)
    pause_from = Count(S_PAUSE_FROM)
    pause_ns = Count(S_PAUSE_NS)
    taken_ns = Word(S_TAKEN_NS)
    changes = Count(S_CHANGES)

    @property
    def change_ns(self) -> int:
        """What its changes of turn cost it in all; below 0 if it was faster after them than usual."""
        word = self.all[self.base + S_CHANGE_NS]
        return max(-COUNT_MAX, word - (1 << 64)) if word >> 63 else min(word, COUNT_MAX)

    @property
    def number(self) -> int:
        return self.base // SLOT_WORDS

    @property
    def namespace(self) -> int:
        """The pid namespace in which its pid counts; 0 if that is not known."""
        return self.flags >> NAMESPACE_SHIFT

    @property
    def live_bytes(self) -> int:
        """Bytes the process holds now, without those that it asked for and does not have yet."""
        not_held = 0 if self.has(FLAG_ASIDE) else self.pending_bytes
        return max(0, as_count(self.all[self.base + S_LIVE]) - not_held)

    def has(self, flag: int) -> bool:
        """Whether one of the FLAG_* bits is set."""
        return bool(self.flags & flag)

    def raise_flag(self, flag: int) -> None:
        """Set a FLAG_* bit; the guest's threads may change others meanwhile."""
        raise_flag(self.all, self.base, flag)

    def swap_pass(self, before: int, after: int) -> bool:
        """Put `after` where the pass `before` stands, as one step; whether it did. Needs HAS_SWAP."""
        return swap(self.all, self.base + S_PASS, before, after)


class Mapping(mmap.mmap):
    """A mapped page with its guard (G6), which ends with the mapping, however that ends: what is mapped at the same
    place later is not taken for it."""

    _guard: object = None

    def guard(self) -> None:
        """From now on this process lives on when the file is cut short. Needs HAS_SWAP."""
        self._guard = native.guard(self) if HAS_SWAP else None

    def close(self) -> None:
        """Unmap it; a BufferError means that a view is alive, with which both go on."""
        super().close()
        self._guard = None


class Page:
    """One mapped page: `header` has the job's words by name, `slot(number)` those of a process.

    `words` is the same as a memoryview of unsigned 64-bit integers, for code that cannot afford a name: the agent's
    points, and tests.
    """

    def __init__(self, path: Path, mapping: Mapping) -> None:
        self.path = path
        self._mapping = mapping
        self.words = memoryview(mapping).cast("Q")
        self.header = Header(self.words)

    def slot(self, number: int) -> Slot:
        return Slot(self.words, slot_base(number))

    @classmethod
    def create(cls, path: Path, *, owner: int | None = None) -> Page:
        """Make the file of a new job of this user, or one's own; an OSError means the disk refused and nothing was
        left behind."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            if owner is not None and owner != os.geteuid():
                os.fchown(fd, owner, -1)
            mapping = Mapping(fd, PAGE_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        page = cls(path, mapping)
        page.write_head()
        return page

    @classmethod
    def renew(cls, path: Path, *, owner: int | None = None) -> Page:
        """Daemon only: make a spoilt file whole again, and empty. The programs that map it find zeroes there instead
        of its end, which would kill them. An OSError means that it cannot be done, as with somebody else's file."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not _is_page_of(os.fstat(fd), owner):
                raise OSError(errno.EPERM, "not a private file of the job's user", str(path))
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            os.pwrite(fd, bytes(PAGE_BYTES), 0)
            page = cls(path, Mapping(fd, PAGE_BYTES))
        finally:
            os.close(fd)
        page.guard()
        page.write_head()
        return page

    def write_head(self) -> None:
        """Daemon only: make an empty page one that others believe."""
        self.words[H_LAYOUT] = LAYOUT
        self.words[H_SLOTS_USED] = 1
        self.words[H_MAGIC] = MAGIC  # last: a reader that sees the magic sees the rest

    def guard(self) -> None:
        """Daemon only: from now on this process lives on when the file is cut short (G6)."""
        self._mapping.guard()

    def is_spoilt(self) -> bool:
        """Whether a program cut the file short or wrote where only the daemon may (G6)."""
        self.words[-1]  # of a guarded page that was cut anywhere, nothing is left from here on
        return self.words[H_MAGIC] != MAGIC or self.words[H_LAYOUT] != LAYOUT

    @classmethod
    def open(cls, path: Path, *, owner: int | None = None) -> Page:
        """Map an existing page after checking that it is ours, or this user's, and of this layout."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise PeerError(f"cannot open the shared page {path}: {error.strerror}") from error
        try:
            facts = os.fstat(fd)
            if not _is_page_of(facts, owner):
                raise PeerError(f"the shared page {path} is not a private file of its user; it is not used")
            if facts.st_size < PAGE_BYTES:
                raise PeerError(
                    f"the shared page {path} has {facts.st_size} bytes instead of {PAGE_BYTES}; restart the job"
                )
            mapping = Mapping(fd, PAGE_BYTES)
        finally:
            os.close(fd)
        page = cls(path, mapping)
        if page.is_spoilt():
            found = page.words[H_LAYOUT]
            page.close()
            raise PeerError(
                f"its page is of another version of carpool (layout {found}, this one speaks {LAYOUT}); start it anew"
            )
        return page

    def deny(self, text: str, *, now: int) -> None:
        """Daemon only: allocations that wait now fail, and the program is told why."""
        said = text.encode()[: TEXT_BYTES - 1].decode(errors="ignore").encode()
        self._mapping[TEXT_AT:PAGE_BYTES] = said.ljust(TEXT_BYTES, b"\0")
        self.words[H_DENIED_NS] = now  # last: a reader that sees it sees the sentence

    def slot_of(self, pid: int) -> int | None:
        """The slot that a process of this pid namespace has claimed, or None."""
        words, spaces = self.words, {0, own_namespace()}
        for base in range(SLOT_WORDS, slot_base(SLOTS), SLOT_WORDS):
            if words[base + S_PID] == pid and words[base + S_FLAGS] >> NAMESPACE_SHIFT in spaces:
                return base // SLOT_WORDS
        return None

    def lend_slot(self, pid: int, namespace: int | None = None) -> int | None:
        """Daemon only (G2): give a process without the meter a slot; None when all are taken. The pid is the one it
        has for itself, in this process's namespace unless another is named."""
        for slot in range(FIRST_LENT, SLOTS):
            base = slot_base(slot)
            if self.words[base + S_PID] == 0:
                self.clear_slot(slot)
                self.words[H_LENT_USED] = max(self.words[H_LENT_USED], slot + 1)
                self.words[base + S_FLAGS] = (own_namespace() if namespace is None else namespace) << NAMESPACE_SHIFT
                self.words[base + S_PID] = pid
                return slot
        return None

    def clear_pass(self, slot: int) -> None:
        """Daemon only: passes of an earlier daemon are void."""
        cleared = self.slot(slot)
        cleared.pass_word = cleared.offer = 0

    def clear_slot(self, slot: int) -> None:
        """Wipe a lent slot (G3)."""
        base = slot_base(slot)
        for word in range(1, SLOT_WORDS):
            self.words[base + word] = 0
        self.words[base + S_PID] = 0

    def pids(self) -> dict[int, int]:
        """Slot to pid of every claimed slot."""
        words, found = self.words, {}
        for first, end in ((1, min(words[H_SLOTS_USED], FIRST_LENT)), (FIRST_LENT, min(words[H_LENT_USED], SLOTS))):
            for slot in range(first, end):
                pid = words[slot_base(slot) + S_PID]
                if pid:
                    found[slot] = pid
        return found

    def live_bytes(self, slot: int) -> int:
        """Bytes the process of this slot holds now."""
        return self.slot(slot).live_bytes

    def pending(self) -> list[tuple[int, int]]:
        """Pid and bytes of every process whose allocations wait."""
        words, bases = self.words, range(SLOT_WORDS, slot_base(min(self.words[H_SLOTS_USED], SLOTS)), SLOT_WORDS)
        return [(words[base], words[base + S_PENDING]) for base in bases if words[base + S_PENDING] and words[base]]

    def close(self) -> None:
        # A BufferError means a view of the words is still alive elsewhere; the mapping then goes with it.
        with contextlib.suppress(BufferError):
            self.words.release()
            self._mapping.close()


def _is_page_of(facts: os.stat_result, owner: int | None) -> bool:
    whose = os.geteuid() if owner is None else owner
    return facts.st_uid == whose and stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077


def as_count(word: int) -> int:
    """What a signed word counts: nothing if it is below zero, as where what was there before the meter was freed."""
    return 0 if word >> 63 else min(word, COUNT_MAX)
