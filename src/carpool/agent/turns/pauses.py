"""Pauses of a program: from a point at which it has nothing on the device to the next one at which it computes.

A pause begins at a boundary, at a clean yield point, or at the end of `with carpool.turn()`, and ends at the next
begin point. Most are shorter than a blink: the next iteration follows. A served model, a notebook or a game that is
stepped between two forwards sleeps in them, and others could have the turn meanwhile. Waits of a DataLoader are told
apart (`stall_ns` in turn_taking.py), but are shown to the daemon in the same way.

Rules
  T6  What follows a kind of point is foretold by what followed it before: a count from 0 to MOST goes up with every
      idle pause and down with every other one, as a processor foretells a branch. From LIKELY on, the turn goes back
      at the point, if somebody waits. An explicit block begins at LIKELY: it says that the work ends there.
  T7  A pause is idle if it is longer than STALL_NS and all threads of the process together used less than a part of
      it (BUSY_PART), or if the daemon saw the process asleep and took the turn. Time in which the thread that takes
      the turns wanted a processor and had none counts as used: a crowded machine makes nobody idle.
  T8  A program that pauses for less than STALL_NS makes no system call for this. What it used is asked only after a
      pause was longer.
  T9  Where work may still be in flight at a point (a GPU), a pause counts only from when the device has finished:
      after the turn was given back. The first long pause is a reason to try that once, no more. Only where nothing is
      in flight does the page show a pause, so that the daemon may take the turn in it: after STALL_NS, or at once if
      the pause was foretold.
  T10 A program whose input usually takes longer than STALL_NS wants no other turn when it is recalled at a boundary:
      its input comes next. Else it would wait for a whole quantum of another job, have a turn and give it back. If
      it asks again without an input, it was wrong, and begins to learn its input anew.

The hot part is C (native/hot_path.c): a boundary begins a pause, the next begin point ends it if it was short.
"""

from __future__ import annotations

from threading import get_ident
from time import monotonic_ns, process_time_ns

from carpool.agent.turns.hot_path import PlainTurnState
from carpool.agent.turns.profile import delay_ns
from carpool.wire.page import (
    H_WAITERS,
    LAPSED,
    PAUSE_BITS,
    PAUSE_FORETOLD,
    PAUSE_INPUT,
    S_PAUSE_FROM,
    S_PAUSE_NS,
    S_RECALL,
    S_STALL_HELD_NS,
    S_STALL_NS,
    S_TAKEN_NS,
)
from carpool.wire.protocol import STALL_NS

AFTER_STEP, AFTER_YIELD, AFTER_BLOCK = range(3)  # kinds of points, as native/hot_path.c has them
FIELDS = ("after_step", "after_yield", "after_block")  # of TurnState: the counts of T6
LIKELY, MOST = 2, 3
BUSY_PART = 4  # a pause in which the process computed for more than a quarter of it is not idle


def _used_ns() -> int:
    """Processor time of all threads, and how long this one wanted a processor in vain (T7)."""
    return process_time_ns() + delay_ns()


class Pauses:
    """The pauses of the thread that takes the turns; `state` has what the C points must know of them."""

    def __init__(self, state: PlainTurnState, *, is_synchronous: bool) -> None:
        self._state = state
        self._words = state.words
        state.is_shown = is_synchronous
        self._is_input_expected = False  # T10
        self._is_tried = False  # T9: whether a turn was given back to see how long the pause is

    def begin(self, kind: int) -> None:
        """Nothing is on the device from now on, or nothing that was not waited for."""
        state, now = self._state, monotonic_ns() & ~PAUSE_BITS
        state.pause_from, state.pause_kind = now, kind
        state.pause_cpu_ns = _used_ns() if state.is_timed else 0
        self._show(now, is_foretold=self._likely(kind) >= LIKELY)

    def restart(self) -> None:
        """The turn came back, or the device has finished: what was before this is no part of the pause."""
        if self._state.pause_from:
            self.begin(self._state.pause_kind)

    def forget(self) -> None:
        """It was no pause, or nobody knows."""
        self._state.pause_from = 0
        self._show(0)

    def is_foretold(self) -> bool:
        """Whether the pause that began just now will likely be idle, and somebody could use it (T6)."""
        state = self._state
        return bool(self._words[H_WAITERS] and state.pause_from) and self._likely(state.pause_kind) >= LIKELY

    def end(self) -> None:
        """The program computes again: learn from how long it did not."""
        state, words, base, now = self._state, self._words, self._state.base, monotonic_ns()
        from_ns, span = state.pause_from, now - state.pause_from
        busy_ns = _used_ns() - state.pause_cpu_ns if state.pause_cpu_ns else None
        is_taken = state.held and words[base + S_RECALL] >= LAPSED
        self.forget()
        if is_taken and not words[base + S_TAKEN_NS]:
            return  # it waited for memory, which says nothing of its pauses (D16)
        if span <= STALL_NS:
            self._count(is_idle=False)
            return
        state.is_timed = state.is_shown
        if not state.is_shown:
            self._learn_in_flight()
        elif is_taken:
            self._count(is_idle=True)
            words[base + S_PAUSE_NS] += max(0, min(words[base + S_TAKEN_NS], now) - from_ns)
        elif busy_ns is not None:
            idle_ns = span - busy_ns
            is_idle = idle_ns > STALL_NS and busy_ns * BUSY_PART <= span
            self._count(is_idle=is_idle)
            if state.held and is_idle:
                words[base + S_PAUSE_NS] += idle_ns
                state.waited(idle_ns)

    def _learn_in_flight(self) -> None:
        """A long pause on a device on which work may have been in flight when it began (T9)."""
        if not self._state.held:
            self._count(is_idle=True)
        elif not self._is_tried:
            self._is_tried = True
            setattr(self._state, FIELDS[self._state.pause_kind], LIKELY)

    def _likely(self, kind: int) -> int:
        count: int = getattr(self._state, FIELDS[kind])
        return count

    def _count(self, *, is_idle: bool) -> None:
        state, kind = self._state, self._state.pause_kind
        count = max(0, min(MOST, self._likely(kind) + (1 if is_idle else -1)))
        setattr(state, FIELDS[kind], count)
        state.is_timed = state.is_timed and count > 0

    # --- waits for input --------------------------------------------------------------------------------------

    def begin_input(self, *, is_clean: bool) -> None:
        """The program waits for its input from now on; nobody may have the turn with a step's memory held."""
        from_ns = (monotonic_ns() & ~PAUSE_BITS) | PAUSE_INPUT
        self._show(from_ns if is_clean else 0, is_foretold=is_clean and self._is_input_slow())

    def is_input_next(self) -> bool:
        """The turn is to go at a boundary: whether a wait for input comes next, and somebody can use it (T10). If
        nobody can, the job is to leave its device, and waits for that."""
        self._is_input_expected = bool(self._words[H_WAITERS]) and self._is_input_slow()
        return self._is_input_expected

    def note_asked(self) -> None:
        """The program asks for a turn; input that came was told before (`end_input`)."""
        if self._is_input_expected:
            self._is_input_expected = False
            self._state.stall_ns = 0

    def _is_input_slow(self) -> bool:
        return self._state.stall_ns > STALL_NS

    def end_input(self, waited_ns: int) -> None:
        """Input arrived after this long. A wait while others computed says little: it only fades the estimate."""
        state = self._state
        self._is_input_expected = False
        state.waited(waited_ns)
        state.stall_ns += (waited_ns - state.stall_ns) // 4 if state.held else -(state.stall_ns // 16)
        if waited_ns > STALL_NS and state.base:
            self._words[state.base + S_STALL_NS] += waited_ns
            self._words[state.base + S_STALL_HELD_NS] += self._held_input_ns(waited_ns)
        if get_ident() == state.taker and not state.depth:
            self._show(0)

    def _held_input_ns(self, waited_ns: int) -> int:
        """The part of a wait for input in which it had its turn."""
        words, base = self._words, self._state.base
        if not self._state.held:
            return 0
        if words[base + S_RECALL] >= LAPSED and words[base + S_PAUSE_FROM]:
            return max(0, min(waited_ns, words[base + S_TAKEN_NS] - words[base + S_PAUSE_FROM]))
        return waited_ns

    def _show(self, from_ns: int, *, is_foretold: bool = False) -> None:
        if self._state.is_shown and self._state.base:
            self._words[self._state.base + S_PAUSE_FROM] = from_ns | (PAUSE_FORETOLD if is_foretold else 0)
