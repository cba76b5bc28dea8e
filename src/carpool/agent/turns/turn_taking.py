"""Taking turns: what happens at the points of a job's loop.

A *begin point* comes before device work (data arrived, a root module is called, `with carpool.turn()` is entered):
the turn must be held from here. A *boundary* ends an iteration: the step is counted and, if the daemon recalled the
turn, it is given back and waited for. Some boundaries are *clean* (scratch memory is gone, so the lane can be
given up); at others the turn is kept. A *yield point* ends no iteration (an evaluation's forward, one of several
backwards): a recalled turn goes there if the memory is as low as at a clean boundary, or by T5. Between such a point
and the next begin point the program *pauses*: if that will likely be idle, the turn goes back unasked (pauses.py).

Rules
  T1  While the turn is held and not recalled, a boundary makes no system call.
  T2  The program's numbers never depend on carpool: nothing here touches tensors, random state or thread counts
      (agent/parking moves tensors while the program waits, bit for bit).
  T3  Trouble is said once on stderr; then the program runs on as if alone.
  T4  One thread takes the turns: the one that called `carpool.take_turns_here()`, else the one that reached the first
      point. A forked child starts afresh, with no turn.
  T5  A program that passed OUTSIDE_LOOP yield points and neither stepped nor went backward has left its loop: what it
      holds there stays, and the daemon is told before the turn goes. In the loop it may be a graph, soon to be freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock, current_thread, get_ident
from time import monotonic_ns

from carpool.agent.link import Link, say
from carpool.agent.memory import Memory, name_turn_taker
from carpool.agent.parking.park import Parking
from carpool.agent.turns.pauses import AFTER_BLOCK, AFTER_STEP, AFTER_YIELD, Pauses
from carpool.agent.turns.profile import CLEAN_SLACK_BYTES, Profile
from carpool.agent.turns.program_errors import is_raised_by_program
from carpool.agent.turns.waiting import Waiting
from carpool.errors import LinkLostError, PeerError, UsageError
from carpool.wire import messages as m
from carpool.wire import page
from carpool.wire.page import H_WAITERS, LAPSED, S_BOUNDARY_NS, S_RECALL, S_STEPS
from carpool.wire.protocol import (
    GROWTH_PERCENT,
    ORPHAN_PATIENCE_NS,
    RECONNECT_NS,
    RESAMPLE_MASK,
    RETRY_NS,
    STALL_NS,
    STOPPED_PATIENCE_NS,
)

TAKE_OVER_SECONDS = 0.005  # how often a thread that is to take the turns looks whether the other one still waits
POINT_BLOCK = -1  # the end of an explicit turn
OUTSIDE_LOOP = 16  # few programs call more modules without gradients in one iteration


class Turns:
    """The turn-taking of this process. `boundary` and `begin` are the two calls on the hot path."""

    def __init__(self, link: Link, memory: Memory, *, taker: int = 0) -> None:
        self._link = link
        self._memory = memory
        self._words = link.words
        self.state = link.state
        self.state.taker = taker or get_ident()
        self.state.is_instant = memory.is_instant
        if self.state.taker == get_ident():
            name_turn_taker()
        self._slow = RLock()  # held by the thread that asks, waits or gives back (`take_here` waits for it)
        self._wants_more = True  # whether a turn that is given back is asked for again at once
        self._is_no_turn_said = False
        self._is_shared = False
        self._was_alone = False
        self._profile = Profile(memory)
        self._points = self._profile.points
        self._counted: dict[int, int] = {}  # steps by the point that ended them; of optimizers only the first ones
        self._parking = Parking(link, memory.movable, memory.live_bytes)
        self._waiting = Waiting(link, self._parking, self._profile.trim)
        self._asked_ns = 0
        self._pauses = Pauses(self.state, is_synchronous=memory.is_synchronous)
        self._left_ns = 0  # when the turn was last given up
        self._yields = 0  # since what the next line is about changed
        self._yields_at = (0, 0)  # steps and backwards at the newest yield point

    # --- the points ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A begin point: hold the turn when this returns."""
        state = self.state
        if state.pause_from and not state.depth and get_ident() == state.taker:
            self._pauses.end()
        if (state.held and self._words[state.base + S_RECALL] < LAPSED) or state.is_off:
            return
        if state.depth == 0 and get_ident() == state.taker:
            self._safely(self._acquire)

    def boundary(self, point: int = 0) -> None:
        """An iteration ended; `point` names which of the program's boundaries this is (an optimizer, say)."""
        state = self.state
        if state.is_off or state.depth or get_ident() != state.taker:
            return
        is_clean = self._points.get(point)
        if is_clean is None:
            self._safely(lambda: self._learn(point))
            return
        if not is_clean:
            return
        words, base = self._words, state.base
        if point < 0:
            self._counted[point] = self._counted.get(point, 0) + 1
        steps = words[base + S_STEPS] + 1
        words[base + S_STEPS] = steps
        words[base + S_BOUNDARY_NS] = now = monotonic_ns()
        state.iterated(now)
        self._pauses.begin(AFTER_BLOCK if point == POINT_BLOCK else AFTER_STEP)
        if words[base + S_RECALL] or not steps & RESAMPLE_MASK or self._pauses.is_foretold():
            self.after_count(steps)

    def take_back(self, *points: int) -> None:
        """What was counted at these points were no iterations: the program showed a better sign of them."""
        counted, base = sum(self._counted.pop(point, 0) for point in points), self.state.base
        if counted and base:
            steps = max(0, self._words[base + S_STEPS] - counted)
            self._words[base + S_STEPS] = self.state.sampled_at = steps
            self._profile.begin_anew()
            self.state.forget()

    def after_count(self, steps: int) -> None:
        """A step was counted, and the turn was recalled or it is time to look at the memory."""
        recall = self._words[self.state.base + S_RECALL]
        if self.state.is_waiting:
            self._safely(self._wait_on)
        elif recall:
            if recall >= LAPSED or steps >= recall:
                self._safely(self._hand_over)
        else:
            if not steps & RESAMPLE_MASK or steps - self.state.sampled_at > RESAMPLE_MASK:
                self._safely(self._resample)
            if self.state.held and self._pauses.is_foretold():
                self._safely(self._hand_over)

    @property
    def is_learning(self) -> bool:
        return self._profile.is_learning

    def learn_gradients(self, point: int, count_bytes: Callable[[], int]) -> None:
        """How much of what stays between turns is gradients; counting takes time, so only in the first iterations."""
        if self._profile.is_learning:
            self._profile.gradients[point] = count_bytes()

    def leave_to_c(self, point: int) -> None:
        """From now on the C hook, if there is one, counts at this point itself."""
        if point in self._points:
            self.state.know(point, self._points[point])

    def yield_point(self, backwards: int) -> None:
        """The turn may be given up but no iteration ended; `backwards` is how often the program went backward."""
        if not self._is_ours():
            return
        at, recall = (self._words[self._link.base + S_STEPS], backwards), self._words[self._link.base + S_RECALL]
        self._yields, self._yields_at = self._yields + 1 if at == self._yields_at else 1, at
        if recall and self._is_due(recall) and (self._yields > OUTSIDE_LOOP or self._is_clean_now()):
            self._safely(self._hand_over)
        elif self.state.is_shown and self._is_clean_now():
            self._pauses.begin(AFTER_YIELD)
            if self._pauses.is_foretold():
                self._safely(self._hand_over)

    def before_data(self) -> None:
        """The program is about to wait for input: give the turn back if somebody could use it meanwhile."""
        words = self._words
        recall = words[self._link.base + S_RECALL]
        if self._is_ours():
            if self.state.pause_from:
                self._pauses.end()
            self._pauses.begin_input(is_clean=self.state.is_shown and self._is_clean_now())
        if not (recall and self._is_due(recall)) and not (words[H_WAITERS] and self.state.stall_ns > STALL_NS):
            return
        if self._is_ours() and self._is_clean_now():
            self._safely(lambda: self._give_back(wants_more=False))

    def after_data(self, waited_ns: int) -> None:
        """Input arrived after this long."""
        self._pauses.end_input(waited_ns)
        self.begin()

    @contextmanager
    def turn(self, *, keep: bool = True) -> Iterator[None]:
        """An explicit turn; points inside it end no iteration. Without `keep` it goes back when the block ends."""
        if get_ident() != self.state.taker:
            self._say_no_turn()
            yield
            return
        self.begin()
        self.state.depth += 1
        try:
            yield
        finally:
            self.state.depth -= 1
            if keep:
                self.boundary(POINT_BLOCK)
            else:
                self._end_turn()

    def _end_turn(self) -> None:
        """Count the iteration, and give the turn back without asking for another."""
        self._wants_more = False
        try:
            self.boundary(POINT_BLOCK)
            if self._is_ours():
                self._safely(self._hand_over if self._link.is_up else self._let_go)
        finally:
            self._wants_more = True

    def _say_no_turn(self) -> None:
        if not self._is_no_turn_said and not self.state.is_off:
            self._is_no_turn_said = True
            say(
                f"job {self._link.job}: carpool.turn() took no turn in thread {current_thread().name}: another thread"
                " takes the turns; call carpool.take_turns_here() in the thread that computes"
            )

    def take_here(self) -> None:
        """The calling thread takes the turns from now on (T4), and the one that is held, if one is."""
        if get_ident() == self.state.taker:
            return
        if self.state.depth:
            raise UsageError(
                "another thread is inside 'with carpool.turn()'; call carpool.take_turns_here() before or after that"
            )
        self.state.taker = get_ident()  # no other thread begins to ask from here on
        name_turn_taker()
        while self.state.is_waiting:  # the C hook waits in the thread that took the turns before
            time.sleep(TAKE_OVER_SECONDS)
        with self._slow:
            pass

    # --- the slow path ------------------------------------------------------------------------------------

    def _safely(self, action: Callable[[], None]) -> None:
        """A bug of ours must not become the program's: say it once and leave the program alone (T3)."""
        try:
            with self._slow:
                action()
        except Exception as error:
            if is_raised_by_program(error):
                raise  # as a Ctrl-C is
            self.detach(f"unexpected {type(error).__name__}: {error}")

    def _hand_over(self) -> None:
        """A program that will likely pause, or wait for its input, asks again by itself (T6, T10)."""
        is_idle_next = self._pauses.is_foretold() or self._pauses.is_input_next()
        self._give_back(wants_more=self._wants_more and not is_idle_next)

    def _let_go(self) -> None:
        """There is nobody to give the turn back to; the next one is asked for as the first was."""
        self._set_held(is_held=False)

    def _learn(self, point: int) -> None:
        """The first iterations: find out which points are clean and what the job needs."""
        base = self._link.base
        if not base:
            self._rejoin()  # it went on alone before it ever had a slot
            return
        self.state.forget()  # what is clean may change
        self._profile.note_away(self.state.away_ns)
        self.state.away_ns = 0
        counted = self._profile.observe(point)
        if counted:
            self._counted[point] = self._counted.get(point, 0) + counted
            self._words[base + S_STEPS] += counted
            self._words[base + S_BOUNDARY_NS] = monotonic_ns()
        if not self._profile.is_learning:
            self._profile.note_steps(self._words[base + S_STEPS])
            self._report()
        self._pauses.begin(AFTER_BLOCK if point == POINT_BLOCK else AFTER_STEP)
        recall = self._words[base + S_RECALL]
        is_clean = self._points.get(point) or (self._profile.reported is not None and self._is_clean_now())
        is_due = self._is_due(recall) and (recall >= LAPSED or is_clean)
        if self.state.held and (is_due or (point == POINT_BLOCK and self._pauses.is_foretold())):
            self._hand_over()

    def _report(self) -> None:
        needs = self._profile.needs()
        self._profile.note_reported(needs)
        self.state.steady_bytes = self._steady_bytes(needs.persistent_bytes)
        try:
            self._link.send(needs)
            if gradients := sum(self._profile.gradients.values()):
                self._link.send(m.Gradients(gradient_bytes=gradients))
        except LinkLostError:
            self._lost()

    def _resample(self) -> None:
        """Look whether the job outgrew what it reported, and reconnect if the daemon was away."""
        if not self._link.is_up:
            self._rejoin()
            return
        self.state.sampled_at = self._words[self._link.base + S_STEPS]
        persistent, ephemeral = self._profile.sample()
        if self._profile.reported is None:
            return
        sizes = zip((persistent, ephemeral), self._profile.reported, strict=True)
        if any(size * 100 > known * (100 + GROWTH_PERCENT) for size, known in sizes):
            self._report()

    def _is_ours(self) -> bool:
        """Whether the turn is held, and is this thread's to give (T4)."""
        state = self.state
        return state.held and not state.is_off and not state.depth and get_ident() == state.taker

    def _is_due(self, recall: int) -> bool:
        """Whether the turn is to be given back now; ranks stop at one step, or they would wait for each other."""
        return recall == 1 or recall >= LAPSED or 0 < recall <= self._words[self._link.base + S_STEPS]

    def _is_clean_now(self) -> bool:
        known = self._profile.reported
        return known is None or self._memory.live_bytes() <= self._steady_bytes(known[0])

    def _steady_bytes(self, persistent_bytes: int) -> int:
        """A job that holds more than this at a boundary has grown."""
        return (persistent_bytes + self._memory.overhead_bytes) * (100 + GROWTH_PERCENT) // 100 + CLEAN_SLACK_BYTES

    def _acquire(self) -> None:
        """Ask for the turn and wait until it is granted."""
        self._pauses.note_asked()
        self._asked_ns = monotonic_ns()
        is_back = not self._link.is_up
        if is_back and not self._reach():
            return
        self._set_held(is_held=False)
        needs = [self._profile.needs()] if is_back and self._profile.reported is not None else []
        try:
            self._wait_granted(m.Ask(), *needs)
        except LinkLostError:
            self._lost()

    def _give_back(self, *, wants_more: bool) -> None:
        self._asked_ns = monotonic_ns()
        words, base = self._words, self._link.base
        is_told = not self._profile.is_learning and self._link.is_up and not self._is_clean_now()
        if is_told:
            self._resample()  # others decide by what it needs
        # Somebody may have come into the lane since the grant said that it was ours alone.
        waits_ns = monotonic_ns()
        self._memory.finish_device_work(give_back=self._is_shared or bool(words[H_WAITERS]))
        self.state.turn_ended(monotonic_ns() - waits_ns)
        passed = self.state.pass_on() if wants_more and not is_told else 0
        if not wants_more:
            self._pauses.restart()
        self._set_held(is_held=False)
        returned = m.Return(steps=words[base + S_STEPS], wants_more=wants_more, passed=passed)
        try:
            if wants_more:
                self._wait_granted(returned)
            else:
                self._link.send(returned)
        except LinkLostError:
            self._lost()
        steps = words[base + S_STEPS]
        if self.state.held and not self._profile.is_learning and steps - self.state.sampled_at > RESAMPLE_MASK:
            self._resample()

    def _wait_on(self) -> None:
        """The C hook passed the turn on, and the connection has something to say before the next one came."""
        self.state.is_waiting = False
        self._asked_ns = self._left_ns = self.state.left_ns
        try:
            self._wait_granted()
        except LinkLostError:
            self._lost()

    def _wait_granted(self, *asking: m.Message) -> None:
        """Send what asks for the turn, and wait for it."""
        try:
            self._words[self._link.base + page.S_LEASE] = self._parking.lease_word
            for message in asking:
                self._link.send(message)
            grant = self._waiting.wait_grant()
        except BaseException as error:
            if not isinstance(error, LinkLostError):
                self._parking.come_back()
            self._withdraw()
            raise
        self._is_shared = grant.is_shared
        self._set_held(is_held=True)
        self._pauses.restart()
        self._memory.turn_began(is_learning=self._profile.is_learning)

    def while_waiting(self, act: Callable[[], None]) -> None:
        """Do something while the C hook waits for the turn; what a program's signal handler raises ends the wait."""
        try:
            act()
        except BaseException:
            self.state.is_waiting = False
            self._asked_ns = self._left_ns = self.state.left_ns
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        """A Ctrl-C while waiting is the program's own affair: withdraw, so that nobody waits for us. It asks again on
        a new connection, because a grant that is on its way would be taken for the next one."""
        if self._link.is_up:
            self._set_held(is_held=False)
            self._link.close()

    def _set_held(self, *, is_held: bool) -> None:
        now = monotonic_ns()
        if is_held:
            self._profile.note_away(now - self._left_ns)
            self.state.turn_began(now)
        elif self.state.held or not self._left_ns:
            self._left_ns = now
        self.state.held = is_held
        if self._link.base:
            self._words[self._link.base + page.S_LEASE] = page.LEASE_HELD if is_held else page.LEASE_NONE

    # --- when the daemon is away --------------------------------------------------------------------------

    def _reach(self) -> bool:
        """Attach, waiting for a daemon that is being restarted; False if the job goes on alone."""
        while True:
            try:
                self._link.connect(holding=False)
                self._was_alone = False
                return True
            except LinkLostError as error:
                patience = ORPHAN_PATIENCE_NS if self._link.may_come_back() else STOPPED_PATIENCE_NS
                if self._was_alone or monotonic_ns() - self._asked_ns > patience:
                    self._go_alone(str(error))
                    return False
            except PeerError as error:
                self._turn_off(str(error))
                return False
            time.sleep(RECONNECT_NS / 1e9)

    def _lost(self) -> None:
        """The daemon went away: a holder keeps its turn, a waiting job waits for the daemon's return."""
        if self.state.held:
            return
        if self._words[self._link.base + page.S_LEASE] in (page.LEASE_ASKED, page.LEASE_PARKED):
            self._acquire()

    def _rejoin(self) -> None:
        if self._link.since_try_ns() < RETRY_NS:
            return
        try:
            self._link.connect(holding=self.state.held and not self._was_alone)
        except LinkLostError:
            return
        except PeerError as error:
            self._turn_off(str(error))
            return
        if self._profile.reported is not None:
            self._report()
        if self._was_alone:
            self._was_alone = False
            if self._wants_more:
                self._acquire()
            else:
                self._set_held(is_held=False)

    def _go_alone(self, why: str) -> None:
        if not self._was_alone:
            say(f"job {self._link.job}: {why}; the program goes on without taking turns")
        self._was_alone = True
        self._parking.come_back()
        self.state.held = True

    def _turn_off(self, why: str) -> None:
        self.state.is_off = True
        self._parking.come_back()
        say(f"job {self._link.job} runs unmanaged: {why}")

    def detach(self, why: str) -> None:
        """Something is not understood: tell the daemon, and leave the program alone from now on."""
        try:
            if not self._link.is_up:
                self._link.connect(holding=False)
            self._link.send(m.Detach(reason=why))
        except PeerError:
            pass
        self._turn_off(why)

    def finish(self) -> None:
        """The interpreter ends: give the turn back now rather than when the last library is unloaded."""
        self._pauses.forget()
        if self.state.held and self._link.is_up:
            self._set_held(is_held=False)
            with suppress(LinkLostError):
                self._link.send(m.Return(steps=self._words[self._link.base + S_STEPS], wants_more=False))
        self._link.close_bell()
        self._link.let_be()
        self.state.is_off = True

    def after_fork(self) -> None:
        """In a forked child: the connection and the turn belong to the parent."""
        self._link.close()
        self._link.close_bell()
        self._link.base = 0
        self.state.held = False
        self.state.is_off = True
