"""What every iteration looks at: the state of the turn. It is C where that was built (native/hot_path.c).

The callables of the C module test that state themselves, and call Python only when there is something to decide.
Without the C module the hooks of torch_hooks.py do it all. Either way there is one TurnState, and no copy of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carpool._native import load
from carpool.wire.protocol import HOT_PATH_CONTRACT

native: Any = load("hot_path", HOT_PATH_CONTRACT)


class PlainTurnState:
    """What the points of a loop must know of this process's turn; Link and Turns set it."""

    __slots__ = (
        "away_ns",
        "base",
        "depth",
        "held",
        "is_instant",
        "is_off",
        "is_waiting",
        "left_ns",
        "peer",
        "peer_inode",
        "rung",
        "sampled_at",
        "stall_ns",
        "steady_bytes",
        "taker",
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
