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
      it (BUSY_PART), or if the daemon saw the process asleep and took the turn.
  T8  A program that pauses for less than STALL_NS makes no system call for this. The clock of processor time, which
      is one, is read only after a pause was longer.
  T9  Where work may still be in flight at a point (a GPU), a pause counts only from when the device has finished:
      after the turn was given back. The first long pause is a reason to try that once, no more. Only where nothing is
      in flight does the page show a pause, so that the daemon may take the turn in it.

The hot part is C (native/hot_path.c): a boundary begins a pause, the next begin point ends it if it was short.
"""

from __future__ import annotations

from time import monotonic_ns, process_time_ns

from carpool.agent.turns.hot_path import PlainTurnState
from carpool.wire.page import H_WAITERS, LAPSED, PAUSE_INPUT, S_PAUSE_FROM, S_PAUSE_NS, S_RECALL, S_TAKEN_NS
from carpool.wire.protocol import STALL_NS

AFTER_STEP, AFTER_YIELD, AFTER_BLOCK = range(3)  # kinds of points, as native/hot_path.c has them
FIELDS = ("after_step", "after_yield", "after_block")  # of TurnState: the counts of T6
LIKELY, MOST = 2, 3
BUSY_PART = 4  # a pause in which the process computed for more than a quarter of it is not idle


class Pauses:
    """The pauses of the thread that takes the turns; `state` has what the C points must know of them."""

    def __init__(self, state: PlainTurnState, *, is_synchronous: bool) -> None:
        self._state = state
        self._words = state.words
        state.is_shown = is_synchronous
        self._is_tried = False  # T9: whether a turn was given back to see how long the pause is

    def begin(self, kind: int) -> None:
        """Nothing is on the device from now on, or nothing that was not waited for."""
        state, now = self._state, monotonic_ns()
        state.pause_from, state.pause_kind = now, kind
        state.pause_cpu_ns = process_time_ns() if state.is_timed else 0
        self._show(now & ~PAUSE_INPUT)

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
        busy_ns = process_time_ns() - state.pause_cpu_ns if state.pause_cpu_ns else None
        is_taken = state.held and words[base + S_RECALL] >= LAPSED
        self.forget()
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
        self._show(monotonic_ns() | PAUSE_INPUT if is_clean else 0)

    def held_input_ns(self, waited_ns: int) -> int:
        """The part of a wait for input that is over in which it had its turn."""
        words, base = self._words, self._state.base
        if not self._state.held:
            return 0
        if base and words[base + S_RECALL] >= LAPSED and words[base + S_PAUSE_FROM]:
            return max(0, min(waited_ns, words[base + S_TAKEN_NS] - words[base + S_PAUSE_FROM]))
        return waited_ns

    def end_input(self) -> None:
        self._show(0)

    def _show(self, from_ns: int) -> None:
        if self._state.is_shown and self._state.base:
            self._words[self._state.base + S_PAUSE_FROM] = from_ns
