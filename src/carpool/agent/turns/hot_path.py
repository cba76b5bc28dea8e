"""What every iteration looks at: the state of the turn. It is C where that was built (native/hot_path.c).

The callables of the C module test that state themselves, and call Python only when there is something to decide.
Without the C module the hooks of torch_hooks.py do it all. Either way there is one TurnState, and no copy of it.

What a change of turn costs is measured here, too: in the first CHANGE_STEPS iterations after a grant, by what they
take beyond a usual one. Caches are cold then, threads wake on one processor, the device's queue is empty. At the end
of a turn the wait for the device is added: what the host ran ahead of it at first is paid there. The sums stand in
the slot (S_CHANGES, S_CHANGE_NS), and the core chooses quanta by them. A usual iteration is the fading mean of the
later ones. Short turns have no later ones: there it only falls, by iterations that took clearly less.

Rules
  D15 A wait for input or an idle pause is no part of an iteration, usual or first. A program asks for its turn when
      its input has come, so the first iteration after a grant has no wait: with waits in the usual one a change of
      turn would cost less than nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from carpool._native import load
from carpool.wire.protocol import CHANGE_STEPS, HOT_PATH_CONTRACT, S_CHANGE_NS, S_CHANGES

USUAL_PART = 16  # a usual iteration follows the last one by this part
LESS_PART = 128  # a first iteration took clearly less than usual if it took this part less
EXCESS_MAX = 16  # one iteration counts as no more than so many usual ones beyond it: it may have held an evaluation
WORD_MASK = (1 << 64) - 1

native: Any = load("hot_path", HOT_PATH_CONTRACT)


class PlainTurnState:
    """What the points of a loop must know of this process's turn; Link and Turns set it."""

    __slots__ = (
        "after_block",
        "after_step",
        "after_yield",
        "away_ns",
        "base",
        "compared_ns",
        "depth",
        "excess_ns",
        "held",
        "is_compared",
        "is_instant",
        "is_off",
        "is_shown",
        "is_timed",
        "is_waiting",
        "iterated_ns",
        "left_ns",
        "pause_cpu_ns",
        "pause_from",
        "pause_kind",
        "peer",
        "peer_inode",
        "rung",
        "sampled_at",
        "stall_ns",
        "steady_bytes",
        "taker",
        "turn_steps",
        "usual_ns",
        "words",
    )

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.base = 0  # word index of this process's slot; 0 until it has one
        self.held = False
        self.is_off = False  # the program is left alone from now on
        self.depth = 0  # inside `with carpool.turn()`: automatic points are part of it
        self.taker = 0  # the thread that takes turns (T4)
        self.stall_ns = 0  # how long the input takes, a fading mean
        self.sampled_at = 0  # the step at which the memory was last looked at
        self.steady_bytes = 0  # a job that holds more than this at a boundary has grown; 0 while nobody knows
        self.peer = -1  # the connection to the daemon
        self.peer_inode = 0  # by which it is known
        self.rung = 0  # serial of the newest grant that was rung (bell.py)
        self.is_instant = False  # a turn goes with nothing to wait for or to give back
        self.is_waiting = False  # the C hook returned the turn; Python waits for the next
        self.left_ns = 0  # when the C hook last returned the turn
        self.away_ns = 0  # how long the turn was away by the C hook, in all
        self.pause_from = 0  # since when the program pauses (pauses.py); 0: it computes
        self.pause_cpu_ns = 0  # processor time when the pause began; 0: nobody looked
        self.pause_kind = 0  # after which kind of point
        self.after_step = self.after_yield = 1  # how likely an idle pause is after each kind (T6)
        self.after_block = 2
        self.is_timed = False  # whether processor time is read when a pause begins
        self.is_shown = False  # whether nothing is on the device in a pause, so that the page shows it
        self.iterated_ns = 0  # the last boundary, or grant
        self.usual_ns = 0  # how long a usual iteration takes; 0 while nobody knows
        self.compared_ns = 0  # the same when the turn began: what is learnt in a turn is not compared in it
        self.is_compared = False  # the first iterations of this turn are compared with it
        self.turn_steps = CHANGE_STEPS  # iterations of this turn, counted up to there
        self.excess_ns = 0  # what they took beyond usual ones

    def turn_began(self, now: int) -> None:
        """The turn is held from now on."""
        self.iterated_ns = now
        self.excess_ns = 0
        self.compared_ns = self.usual_ns
        self.is_compared = self.usual_ns != 0
        self.turn_steps = 0 if self.is_compared else CHANGE_STEPS

    def iterated(self, now: int) -> None:
        """An iteration ended."""
        took, usual = now - self.iterated_ns, self.usual_ns
        self.iterated_ns = now
        if self.turn_steps >= CHANGE_STEPS:
            self.usual_ns = usual + (min(took, 2 * usual) - usual) // USUAL_PART if usual else took
            return
        self.excess_ns += min(took - self.compared_ns, EXCESS_MAX * self.compared_ns)
        if took < usual - usual // LESS_PART:
            self.usual_ns = usual + (took - usual) // USUAL_PART
        self.turn_steps += 1
        if self.turn_steps == CHANGE_STEPS:
            self._book(self.excess_ns, 1)

    def waited(self, waited_ns: int) -> None:
        """The thread that takes the turns waited for so long, for its input or in a pause (D15)."""
        if self.held and get_ident() == self.taker:
            self.iterated_ns += waited_ns

    def turn_ended(self, drained_ns: int) -> None:
        """The turn goes, after a wait of so long for the device."""
        if self.is_compared and self.turn_steps > 0:
            is_short = self.turn_steps < CHANGE_STEPS
            self._book(drained_ns + (self.excess_ns if is_short else 0), int(is_short))
        self.is_compared = False
        self.turn_steps = CHANGE_STEPS

    def _book(self, cost_ns: int, count: int) -> None:
        if self.base:
            at = self.base + S_CHANGE_NS
            self.words[at] = (self.words[at] + cost_ns) & WORD_MASK
            self.words[self.base + S_CHANGES] += count

    def know(self, point: int, is_clean: bool) -> None:
        """Leave this point to the C hook; here there is none."""

    def forget(self) -> None:
        """Take every point back from the C hook."""

    def hang_bell(self, own: int, directory: bytes) -> None:
        """Say where this process is rung; without C nobody is."""

    def take_bell_down(self) -> None:
        """Nobody rings here any more."""

    def pass_on(self) -> int:
        """Ring the next job; the pass that was used, or 0."""
        return 0

    def hear(self) -> int:
        """The pass by which this process was rung, or 0."""
        return 0


class PlainCalls:
    """The state of a wrapped function, as the C ModuleCall and FetchCall have it."""

    __slots__ = ("count", "depth", "is_graded_told", "state", "taker", "watch")

    def __init__(self) -> None:
        self.depth = 0  # 1 inside an outermost module call
        self.count = 0  # outermost calls, or items fetched
        self.is_graded_told = True  # whether a call that ends with gradients on may end an iteration
        self.state: PlainTurnState | None = None
        self.taker = 0  # the thread whose outermost calls are points
        self.watch: Callable[[], None] | None = None  # called before a call in any other thread, if there is one


def make_turn_state(words: memoryview) -> PlainTurnState:
    state: PlainTurnState = PlainTurnState(words) if native is None else native.TurnState(words)
    return state
