"""The page a job shares with the daemon: words that either side reads without a system call.

One file per job, made by the daemon (owner-only), mapped by every process of the job that preloads the byte
meter or takes turns, and by the daemon. It is an array of 64-bit words: a header, then one slot a process.
`native/page.h`, the same table in C, is made from this file (`make docs`).

Rules
  G1  Each word has one writer, the daemon or the process that owns the slot; the few header words that every
      meter writes change by atomic operations. Nobody locks anything.
  G2  A slot belongs to the live process whose pid stands in it. The meter claims slots from the front with an
      atomic exchange; the daemon hands out slots from FIRST_LENT on to processes that have no meter.
  G3  A dead process cannot hold anything: readers skip it. Its slot is cleared by who gave it: a meter takes a
      claimed one over with an exchange, the daemon clears a lent one. Who is in another pid namespace cannot tell the
      dead from the living there, and takes all for living.
  G4  The file is fully allocated before it is shared, so a full disk fails its creation, not a later store.
  G5  The one sentence in it is the daemon's, written before the number that announces it.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import stat
from pathlib import Path
from typing import overload

from carpool.errors import PeerError

MAGIC = 0x314C4F4F50524143  # the bytes "CARPOOL1", little-endian
LAYOUT = 3
PAGE_BYTES = 65536
SLOT_WORDS = 16
TEXT_BYTES = 512  # at the end: the daemon's sentence about the newest denial (H_DENIED_NS), ended by a zero
TEXT_AT = PAGE_BYTES - TEXT_BYTES
SLOTS = TEXT_AT // 8 // SLOT_WORDS  # slot 0 is the header
FIRST_LENT = 448

# Header words.
H_MAGIC = 0
H_LAYOUT = 1
H_CAP = 2  # daemon: bytes all processes of the job may hold together; 0 is no cap
H_WAITERS = 3  # daemon: how many other jobs wait for this job's lane
H_SLOTS_USED = 4  # meter: one past the highest slot that anybody ever tried to claim
H_DENIED_COUNT = 5  # meter: allocations refused for the cap
H_DENIED_BYTES = 6  # meter: size of the newest refused allocation
H_LENT_USED = 7  # daemon: one past the highest slot ever lent; 0 if none was
H_CHECKPOINT = 8  # daemon: number of its newest order to write a checkpoint; 0 if there was none
H_PRICE = 9  # daemon: wall time that device time costs, PRICE_ONE for 1:1; 0 is no compute limit
H_PAID_UNTIL = 10  # CUDA guests: monotonic time up to which what was launched is paid for; a launch waits for it
H_DEVICE_NS = 11  # CUDA guests: device time of all processes the job ever had, as it was paid for
H_ENDED_NS = 12  # CUDA guests: monotonic time when the latest kernel that they measured ended
H_CAPACITY = 13  # daemon: bytes of the job's device; what goes beyond is not waited for. 0 is not known
H_DENIED_NS = 14  # daemon: monotonic time of its newest denial; allocations that began to wait before it fail
H_TRIAL = 15  # CUDA guests: since when one of them runs what was never measured, its pid in the bits TRIAL_PID; or 0

# Words of a process's slot.
S_PID = 0  # 0 is a free slot
S_LIVE = 1  # bytes held now (meter); signed, a forked child may free what its parent counted
S_PEAK = 2  # most bytes held since the agent last reset it
S_STEPS = 3  # agent: iterations finished
S_BOUNDARY_NS = 4  # agent: monotonic time of the newest boundary
S_RECALL = 5  # daemon: 0, LAPSED, or give the turn back at the first boundary with steps >= this number
S_LEASE = 6  # agent: one of LEASE_*
S_STALL_NS = 7  # agent: time spent waiting for input data, in all
S_FLAGS = 8  # FLAG_* bits; from NAMESPACE_SHIFT on, the number of the pid namespace in which S_PID means something
S_PARKED = 9  # agent: bytes it moved to the host; 0 unless the lease word says parked
S_PENDING = 10  # guest: the part of S_LIVE that is asked for and not yet given
S_PASS = 11  # daemon: to whom the recalled turn goes, as a pass; agent: the bit PASSED, by an exchange (bell.py)
S_OFFER = 12  # daemon: the pass by which this process may be rung; agent: 0 when it was
S_STALL_HELD_NS = 13  # agent: of S_STALL_NS, the part during which it had its turn
S_DEVICE_NS = 14  # CUDA guest: device time; without a compute limit the time it had its turn
S_SPILLED = 15  # CUDA guest: bytes beyond the cap or the card, in managed memory (--oversubscribe); not in S_LIVE

LEASE_NONE, LEASE_HELD, LEASE_ASKED, LEASE_PARKED = 0, 1, 2, 3
LAPSED = 1 << 63  # in S_RECALL: the turn was taken away; ask before computing again
FLAG_METERED = 1  # the C meter counts this process's bytes
FLAG_BELL = 2  # it can be rung, and ring others
FLAG_PACED = 4  # the CUDA guest takes this process's turns, and keeps to the compute limit itself
FLAG_IDLE = (
    8  # the CUDA guest saw at a wait that nothing this process launched still runs, and nothing launched since
)
FLAG_ASIDE = 16  # the CUDA guest waits for room: S_PENDING is not part of S_LIVE meanwhile
FLAG_SOON = 32  # its optimizer's update runs, a short one: a recalled turn is given back in a moment
FLAG_AGENT = 64  # the Python agent takes this process's turns: the CUDA guest leaves them to it
NAMESPACE_SHIFT = 32
PRICE_ONE = 1024
OWN_CAP = 1 << 63  # in H_CAPACITY: the cap is the user's (caps.py)
TRIAL_PID = (1 << 22) - 1  # as large as the largest pid there can be

# A pass: the pid to ring, whether its lane is shared, and the serial of the grant.
PASS_SHARED = 1 << 22  # above the largest pid there can be
PASS_SERIAL_SHIFT = 23
PASS_SERIAL_MASK = (1 << 39) - 1
PASS_QUIET = 1 << 62  # whoever uses it need not tell the daemon (B6)
PASSED = 1 << 63

try:
    _swap = importlib.import_module("carpool._native.points").swap
    HAS_SWAP = True
except (ImportError, AttributeError):  # no compiler, or a library of an older checkout
    HAS_SWAP = False


def slot_base(slot: int) -> int:
    return slot * SLOT_WORDS


def swap(words: memoryview, index: int, before: int, after: int) -> bool:
    """Put `after` where `before` stands, as one step; whether it did. Needs HAS_SWAP."""
    return bool(_swap(words, index, before, after))


def own_namespace() -> int:
    """The number of this process's pid namespace, as slots have it; 0 where nobody tells."""
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
    denied_count = Word(H_DENIED_COUNT)
    denied_bytes = Word(H_DENIED_BYTES)
    lent_used = Word(H_LENT_USED)
    checkpoint = Word(H_CHECKPOINT)
    price = Word(H_PRICE)
    paid_until_ns = Word(H_PAID_UNTIL)
    device_ns = Word(H_DEVICE_NS)
    ended_ns = Word(H_ENDED_NS)
    capacity = Word(H_CAPACITY)
    denied_ns = Word(H_DENIED_NS)
    trial = Word(H_TRIAL)


class Slot(Words):
    """The words of one process. `page.slot(number)` makes one: `page.slot(member.slot).recall = 5`.

    A slot is a view, made at no cost worth a thought, so callers make one where they need it and keep none for long.
    """

    __slots__ = ()
    pid = Word(S_PID)
    steps = Word(S_STEPS)
    boundary_ns = Word(S_BOUNDARY_NS)
    recall = Word(S_RECALL)
    lease = Word(S_LEASE)
    stall_ns = Word(S_STALL_NS)
    flags = Word(S_FLAGS)
    parked_bytes = Word(S_PARKED)
    pending_bytes = Word(S_PENDING)
    pass_word = Word(S_PASS)
    offer = Word(S_OFFER)
    stall_held_ns = Word(S_STALL_HELD_NS)
    device_ns = Word(S_DEVICE_NS)
    spilled_bytes = Word(S_SPILLED)

    @property
    def number(self) -> int:
        return self.base // SLOT_WORDS

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


class Page:
    """One mapped page: `header` has the job's words by name, `slot(number)` those of a process.

    `words` is the same as a memoryview of unsigned 64-bit integers, for code that cannot afford a name: the agent's
    points, and tests.
    """

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self._mapping = mapping
        self.words = memoryview(mapping).cast("Q")
        self.header = Header(self.words)

    def slot(self, number: int) -> Slot:
        return Slot(self.words, slot_base(number))

    @classmethod
    def create(cls, path: Path) -> Page:
        """Make the file of a new job; an OSError means the disk refused and nothing was left behind."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            mapping = mmap.mmap(fd, PAGE_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        page = cls(path, mapping)
        page.words[H_LAYOUT] = LAYOUT
        page.words[H_SLOTS_USED] = 1
        page.words[H_MAGIC] = MAGIC  # last: a reader that sees the magic sees the rest
        return page

    @classmethod
    def open(cls, path: Path) -> Page:
        """Map an existing page after checking that it is ours and of this layout."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise PeerError(f"cannot open the shared page {path}: {error.strerror}") from error
        try:
            facts = os.fstat(fd)
            if facts.st_uid != os.geteuid() or not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077:
                raise PeerError(f"the shared page {path} is not a private file of this user; it is not used")
            if facts.st_size < PAGE_BYTES:
                raise PeerError(
                    f"the shared page {path} has {facts.st_size} bytes instead of {PAGE_BYTES}; restart the job"
                )
            mapping = mmap.mmap(fd, PAGE_BYTES)
        finally:
            os.close(fd)
        page = cls(path, mapping)
        if page.words[H_MAGIC] != MAGIC or page.words[H_LAYOUT] != LAYOUT:
            found = page.words[H_LAYOUT]
            page.close()
            raise PeerError(
                f"the shared page {path} has layout {found}, this carpool speaks {LAYOUT}; restart the job"
            )
        return page

    def deny(self, text: str, *, now: int) -> None:
        """Daemon only: what waits for memory now fails, and the program is told why."""
        said = text.encode()[: TEXT_BYTES - 1].decode(errors="ignore").encode()
        self._mapping[TEXT_AT:PAGE_BYTES] = said.ljust(TEXT_BYTES, b"\0")
        self.words[H_DENIED_NS] = now  # last: who sees it sees the sentence

    def slot_of(self, pid: int) -> int | None:
        """The slot that a process of this pid namespace has claimed, or None."""
        words, spaces = self.words, {0, own_namespace()}
        for base in range(SLOT_WORDS, slot_base(SLOTS), SLOT_WORDS):
            if words[base + S_PID] == pid and words[base + S_FLAGS] >> NAMESPACE_SHIFT in spaces:
                return base // SLOT_WORDS
        return None

    def lend_slot(self, pid: int) -> int | None:
        """Daemon only (G2): give a process without the meter a slot; None when all are taken."""
        for slot in range(FIRST_LENT, SLOTS):
            base = slot_base(slot)
            if self.words[base + S_PID] == 0:
                self.clear_slot(slot)
                self.words[H_LENT_USED] = max(self.words[H_LENT_USED], slot + 1)
                self.words[base + S_FLAGS] = own_namespace() << NAMESPACE_SHIFT
                self.words[base + S_PID] = pid
                return slot
        return None

    def clear_pass(self, slot: int) -> None:
        """Daemon only: what a daemon before this one armed is void."""
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


def as_count(word: int) -> int:
    """What a signed word counts: nothing if it is below zero, as where a child freed what its parent counted."""
    return max(0, word - (1 << 64) if word >> 63 else word)
