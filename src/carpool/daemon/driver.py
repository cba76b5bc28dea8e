"""The driver in real time: facts in, effects out.

`tell` hands one fact to the core, performs the effects in their order, shows both to the observers (the journal is
the first), and arms the timers. For speed one module turns this order round: handovers.py says why that is safe.

Timers, all of them here. A daemon without jobs has none.
  Tick      when the core wants its next one, which it does only while some job waits
  idle      looks whether a holder for whom others wait pauses and sleeps, ever later as long as it computes
            (`SharedTurn.look_again_ns`); so does every Tick
  flush     hands what was noted to the journal's thread, FLUSH_SECONDS after it happened
  listen    looks at allocations that wait, every LISTEN_SECONDS while some do. They knock (knocks.py), but for
            those of a CUDA program with --wait-memory: the timer runs while such a job lives
  note      every NOTE_SECONDS while jobs live: looks at all pages, and notes that each job still does what it did;
            the daemon then also looks whether it can be reached (entrance.py) and its limits are kept (limits.py)
Pages are looked at by these timers and where a fact or an order needs it, never for a question (queries.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import assert_never

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import (
    CloseJob,
    DenyMemory,
    Effect,
    ExplainWait,
    GrantLease,
    MoveJob,
    NameHog,
    ParkJob,
    RecallLease,
    RefuseJob,
    RejectEvent,
    RememberJob,
    ResizeLane,
    RevokeLease,
    SetCap,
    SetCompute,
    StartJob,
    StopJob,
    TrimJob,
    UnparkJob,
)
from carpool.core.node.events import (
    Event,
    JobDetached,
    JobExited,
    JobForgotten,
    LeaseAsked,
    LeaseReturned,
    ProgressSeen,
    Tick,
)
from carpool.core.node.model import Account
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.words.views import JobPicture
from carpool.daemon import moments, parking, progress
from carpool.daemon.handovers import Handovers
from carpool.daemon.idle_turns import IdleTurns
from carpool.daemon.jobs import LiveJob, OverJobs
from carpool.daemon.observers import LastEvents, Observers
from carpool.daemon.sentences import refusals
from carpool.daemon.start_and_end import End
from carpool.daemon.starter import Starter
from carpool.daemon.translate import grant_from, log_line, picture_lost
from carpool.errors import InternalError
from carpool.journal.writer import FLUSH_SECONDS, Journal
from carpool.units import MS, SECOND
from carpool.wire import messages as m
from carpool.wire import page as pages
from carpool.wire.protocol import KNOCK_NS

log = logging.getLogger("carpool")
NOTE_SECONDS = 10.0  # at most so much of a job's account is unknown after a quiet daemon was killed
LOOK_EVERY_NS = 200_000_000  # reading /proc costs more than a tick; short quanta must not pay for it
ENDED_KEPT = 200  # ended jobs the core remembers for ps; older ones are in the journal


class Driver:
    def __init__(
        self, scheduler: Scheduler, journal: Journal, starter: Starter, give_up: Callable[[], object]
    ) -> None:
        self.scheduler = scheduler
        self.journal = journal
        self._last_events = LastEvents()
        self.observers = Observers([journal, self._last_events])
        self.jobs: dict[JobId, LiveJob] = {}
        self._starter = starter
        self._give_up = give_up
        self._events: deque[Event] = deque()
        self._is_telling = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0  # when the timer rings
        self._wanted_ns: int | None = None  # when the core wanted its next Tick after the newest event
        self._flusher: asyncio.TimerHandle | None = None
        self._listener: asyncio.TimerHandle | None = None
        self._noter: asyncio.TimerHandle | None = None
        self._may_listen = True  # more than turns came and went since it was last asked whose allocations wait
        self._ended: deque[JobId] = deque()
        self._over = OverJobs()
        self._looked_ns = self._accounted_ns = 0
        self._has_news = False  # something happened since the accounts were last noted
        self._passed: GrantLease | None = None
        self._told_ns = 0  # the time of what the core was told last
        self._unheard_ns: int | None = None  # when to find out whether a turn was passed on
        self._handovers = Handovers(starter.places.bells)
        self.idle = IdleTurns(scheduler, self.jobs, self._handovers, self.tell)
        self._cuts = pages.cuts()  # how many spoilt pages have been looked for
        self.on_note: list[Callable[[], object]] = []
        self.words: Callable[[str, int], str] = lambda sentence, _: sentence  # as this user may hear them

    def hear(self) -> None:
        """Learn what already happened without the daemon: turns that were passed on."""
        if self._handovers.has_used():
            self.collect()

    def collect(self) -> None:
        """Take every pass back before anything is decided."""
        if self._collect():
            self._after()

    def _collect(self) -> bool:
        """Tell the core of turns that went on meanwhile, as of then: it orders the grants that were rung (D5)."""
        all_used = self._handovers.take_back() if not self._is_telling else []
        for used in all_used:
            used.giver.turn.passed_on(used.member)
            self._passed = used.grant
            self.jobs[used.grant.job].turn.grant(grant_from(used.grant, used.serial))
            at_ns = min(max(self._told_ns, used.boundary_ns()), time.monotonic_ns())
            self._tell_now(used.giver.returned(wants_more=True), at_ns=at_ns)
        return bool(all_used)

    def pass_on(self, job: JobId) -> None:
        """A job gives its turn back: grant it to the successor at once. The caller then tells the core, which orders
        the very same grant (D5)."""
        self._passed = self.scheduler.successor(job) if not self._is_telling else None
        if self._passed is not None:
            self.jobs[self._passed.job].turn.grant(grant_from(self._passed))

    def tell(self, *events: Event) -> None:
        """Hand facts to the core; those that arise while effects are performed wait for their turn."""
        self._collect()
        if self._is_telling:
            self._events.extend(events)
        else:
            self._tell_now(*events)
            self._after()

    def _tell_now(self, *events: Event, at_ns: int | None = None) -> None:
        self._events.extend(events)
        self._is_telling = True
        try:
            while self._events:
                self._handle(self._events.popleft(), time.monotonic_ns() if at_ns is None else at_ns)
                at_ns = None  # what follows from it comes to pass now
        finally:
            self._is_telling = False

    def _handle(self, event: Event, now: int) -> None:
        self._told_ns = now
        if not isinstance(event, ProgressSeen | LeaseAsked | LeaseReturned | Tick) or (
            isinstance(event, ProgressSeen) and event.pending_bytes
        ):
            self._may_listen = True
        effects: list[Effect] = []
        try:
            effects = self.scheduler.handle(event, now=now)
            for effect in effects:
                self._carry_out(effect)
            if self._passed is not None:
                raise InternalError(f"a turn was passed on to {self._passed.job}, and then granted to somebody else")
        except Exception as error:
            if isinstance(error, InternalError):
                error.attach((*self._last_events.lines_of(event), f"{now} {event}"))
            # State that broke a rule is not used any further. The next daemon takes the jobs back from their pages.
            log.exception("core.broken event=%s", event)
            self._give_up()
            raise
        finally:
            self._has_news = True
            self.observers.note(now, event, effects)

    def _after(self) -> None:
        """Show holders who waits for them and who follows, and arm the timers."""
        if pages.cuts() != self._cuts:
            self._cuts = pages.cuts()
            self.judge_pages(self.jobs)
        self._unheard_ns = None
        for live in filter(None, map(self.jobs.get, self.scheduler.holders())):
            try:
                self._show_waiters(live)
            except InternalError:
                raise
            except Exception as error:
                log.exception("page.failed job=%s", live.id)
                self._let_go(live, "write into the page", error)
                return  # which came here again
        self._arm()
        self.idle.arm()
        self._arm_listener()
        self._arm_noter()
        if self._flusher is None and self.journal.is_dirty:
            self._flusher = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _show_waiters(self, live: LiveJob) -> None:
        waiters, following = self.scheduler.waiters(live.id), self.scheduler.successor(live.id)
        live.job_page.set_waiters(waiters)
        if following is not None:
            self._name_next(live, following, waiters)

    def _name_next(self, live: LiveJob, following: GrantLease, waiters: int) -> None:
        """Let a recalled holder pass its turn on. That it did is found out at the next event, or when the next job
        has had its quantum; until then nothing is to be decided (B6)."""
        taker, until = self.jobs[following.job], self.scheduler.unheard_until(live.id)
        if self._handovers.arm(live, taker, following, is_quiet=until is not None):
            taker.job_page.set_waiters(waiters)
            self._unheard_ns = until

    def _arm(self) -> None:
        """Arm the timer of the next Tick. It is never put off: looks and hand-overs that come more often than Ticks
        would keep them away for ever, and with them every lapse."""
        due = self._wanted_ns = min(filter(None, (self._unheard_ns, self.scheduler.next_wakeup())), default=None)
        if self._timer is not None:
            if due is not None and self._due_ns <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._due_ns = due
            delay_ms = max(0, -((time.monotonic_ns() - due) // MS))  # a loop that counts in milliseconds is not early
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = time.monotonic_ns()
        self.idle.take_all()
        if now - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = now
            self.tell(*self._looks(map(self._handovers.who_has, self.scheduler.watched())), Tick())
        elif self._wanted_ns is not None and self._wanted_ns <= now:
            self.tell(Tick())
        else:  # what happened since it was armed put it off
            self._arm()

    def _arm_listener(self) -> None:
        if not self._may_listen:
            return
        self._may_listen = False
        if self._listener is None and any(live.is_listened_to for live in self.jobs.values()):
            self._listener = asyncio.get_running_loop().call_later(KNOCK_NS / SECOND, self._listen)

    def listen(self) -> None:
        """Look for allocations that wait, now and again until none does; who knocks meanwhile is seen then."""
        if self._listener is None:
            self._listen()

    def _listen(self) -> None:
        self._listener, self._may_listen = None, True
        for live in list(self.jobs.values()):
            if live.job_page.pending_bytes() or live.last_look[2]:
                self.look_at(live)
        self._arm_listener()

    def _flush(self) -> None:
        """Have the journal written. What happens between two times is in the accounts FLUSH_SECONDS later at most."""
        self._flusher = None
        if self._has_news and self._account_in_seconds() <= 0:
            self.note_accounts()
        self.journal.flush()
        if self._has_news:
            pause = max(0.0, self._account_in_seconds())
            self._flusher = asyncio.get_running_loop().call_later(pause, self._flush)

    def _account_in_seconds(self) -> float:
        """How long it is until what happened since the accounts were last noted must be in them."""
        return FLUSH_SECONDS - (time.monotonic_ns() - self._accounted_ns) / 1e9

    def _arm_noter(self) -> None:
        if self._noter is None and self.jobs:
            self._noter = asyncio.get_running_loop().call_later(NOTE_SECONDS, self._note)

    def _note(self) -> None:
        """Look at every page, and note that each job still does what it did, though nothing may have happened: its
        account goes up to there if this daemon is killed. And look for allocations whose knocks were lost."""
        self._noter = None
        if self.jobs:
            self.look()
            self.note_accounts()
            self.journal.flush()
            self.listen()
            for look in self.on_note:
                look()
            self._arm_noter()

    def note_accounts(self) -> None:
        """Keep where the time of every job went, for the next daemon; a job that does what it did has nothing new."""
        self.hear()
        now = self._accounted_ns = time.monotonic_ns()
        self._has_news = False
        changed: dict[str, Account] = {}
        for job_id, live in self.jobs.items():
            row, since_ns, orders = self.scheduler.standing_of(job_id, now=now)
            if row == "turn" or (live.noted_ns, live.noted_orders) != (since_ns, orders):
                live.noted_ns, live.noted_orders = since_ns, orders
                changed[job_id] = self.scheduler.account_of(job_id, now=now)
        self.journal.note_accounts(changed, now=now, lent_ns=self.scheduler.lent(now=now))

    def book(self) -> None:
        """Have what happened until now in the accounts, unless that was done a moment ago."""
        if self._account_in_seconds() <= 0:
            self.note_accounts()

    def judge_pages(self, jobs: Iterable[JobId]) -> None:
        """A program that spoilt its page has spoilt it for its own job only: that one goes on outside the turns."""
        for live in [self.jobs[job] for job in jobs if job in self.jobs]:
            if live.job_page.is_spoilt():
                reason = (
                    "a program of it cut short or overwrote the page that it shares with the daemon; start it anew"
                )
                log.warning("job.page_spoilt job=%s path=%s", live.id, live.page_path)
                self._collect()
                live.lose_page(reason)
                self.tell(JobDetached(job=live.id, reason=reason))

    def look(self) -> None:
        """Report the progress of every live job."""
        self.tell(*self._looks(self.jobs))

    def look_at(self, live: LiveJob) -> None:
        self.judge_pages([live.id])
        seen = progress.look(live)
        if seen is not None:
            self.tell(seen)

    def _looks(self, jobs: Iterable[JobId]) -> list[ProgressSeen]:
        jobs = list(jobs)
        self.judge_pages(jobs)
        found = [progress.look(self.jobs[job_id]) for job_id in jobs if job_id in self.jobs]
        return [seen for seen in found if seen is not None]

    def _carry_out(self, effect: Effect) -> None:
        """Perform an effect. One that fails is the trouble of its own job, which goes on outside the turns."""
        try:
            self._perform(effect)
        except InternalError:
            raise
        except Exception as error:
            job = getattr(effect, "job", None)
            if job is None:
                raise
            log.exception("effect.failed job=%s effect=%s", job, effect)
            live = self.jobs.get(job)
            if live is not None:  # else it is over, and only what is left of it was to be cleared away
                self._let_go(live, f"carry out {type(effect).__name__}", error, is_over=isinstance(effect, StartJob))

    def _let_go(self, live: LiveJob, what: str, error: Exception, *, is_over: bool = False) -> None:
        """Something could not be done for one job: it goes on outside the turns, or ends if it never started."""
        reason = f"carpool could not {what} for it ({type(error).__name__}: {error}); see the daemon's log"
        live.job_page.close()
        live.lose_page(reason)
        ended, detached = JobExited(job=live.id, code=1, reason=reason), JobDetached(job=live.id, reason=reason)
        self.tell(ended if is_over else detached)

    # --- one short method an effect ----------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case GrantLease():
                log.debug("%s", effect)
                if effect == self._passed:
                    self._passed = None
                else:
                    self.jobs[effect.job].turn.grant(grant_from(effect))
            case RecallLease():
                log.debug("%s", effect)
                live = self.jobs[effect.job]
                live.turn.recall()
                if self.scheduler.waiters(live.id):  # else it leaves by itself, and is parked at its next boundary
                    self.idle.take(live)
            case SetCap():
                self.jobs[effect.job].job_page.set_cap(effect.cap_bytes)
            case SetCompute():
                self.jobs[effect.job].job_page.set_compute(effect.limit_milli)
            case DenyMemory():
                log.info("%s", log_line(effect))
                self.jobs[effect.job].job_page.deny(effect.reason)
            case _:
                log.info("%s", log_line(effect))
                self._may_listen = True
                self._perform_rare(effect)

    def _perform_rare(
        self,
        effect: StartJob
        | RefuseJob
        | RevokeLease
        | ParkJob
        | UnparkJob
        | MoveJob
        | TrimJob
        | StopJob
        | CloseJob
        | ExplainWait
        | RememberJob
        | NameHog
        | ResizeLane
        | RejectEvent,
    ) -> None:
        match effect:
            case StartJob():
                self._start(effect)
            case RefuseJob():
                self._refuse(effect)
            case RevokeLease():
                live = self.jobs[effect.job]
                live.turn.revoke()
                if live.turn.is_asking():  # a rank that stopped before the others; its wish counts again
                    self.tell(LeaseAsked(job=effect.job, is_paced=live.turn.is_paced()))
            case ParkJob() | UnparkJob() | MoveJob() | TrimJob():
                self._move(effect)
            case StopJob():
                self._starter.stop(self.jobs[effect.job])
            case CloseJob():
                self._close(effect)
            case ExplainWait():
                live = self.jobs[effect.job]
                if live.runner is not None:
                    live.runner.send(m.Wait(job=effect.job, reason=self.words(effect.reason, live.file.uid)))
            case RememberJob():
                self.journal.note_history(effect.fingerprint, effect.history)
            case NameHog() | ResizeLane() | RejectEvent():
                pass  # the log line and the journal are all there is to do
            case _:
                assert_never(effect)

    def _move(self, effect: ParkJob | UnparkJob | MoveJob | TrimJob) -> None:
        live = self.jobs[effect.job]
        if isinstance(effect, MoveJob):
            self._starter.moved(live, effect.device)
            return
        if isinstance(effect, TrimJob):
            parking.trim(live)
            return
        event = parking.park(live, effect.limit_bytes) if isinstance(effect, ParkJob) else parking.unpark(live)
        if event is not None:  # no process of the job could be told
            self.tell(event)

    def _start(self, effect: StartJob) -> None:
        trouble = self._starter.start(self.jobs[effect.job], effect.device)  # its end, or that it is put off
        if trouble is not None:
            self.tell(trouble)

    def _refuse(self, effect: RefuseJob) -> None:
        live = self.jobs.pop(effect.job)
        live.trouble = effect.reason
        self._note_end(live)
        if live.runner is not None:
            live.runner.send(m.Refuse(reason=self.words(effect.reason, live.file.uid)))
        live.close()
        self._over.remove(live, self.journal.flush)

    def _close(self, effect: CloseJob) -> None:
        live = self.jobs.pop(effect.job)
        self._note_end(live)
        self._starter.closed(live)
        live.close()
        self._over.remove(live, self.journal.flush)

    def stop(self, live: LiveJob) -> None:
        """End what is left of it: politely, then with force."""
        self._starter.stop(live)

    def note_lost(self, live: LiveJob, end: End | None) -> None:
        """Keep the end of a job that ended while no daemon ran, unless the last one had noted it."""
        noted = self.journal.find_ended(live.id)
        if noted is None or noted["id"] != live.id:
            self._note_job(live, picture_lost(live.file, end))
        self._over.remove(live, self.journal.flush)

    def _note_job(self, live: LiveJob, picture: JobPicture, **said: str) -> None:
        file = live.file
        self.journal.note_job(file.number, picture, file.argv, uid=file.uid, name=live.name, **said)

    def _note_end(self, live: LiveJob) -> None:
        """Keep the job's last picture in the journal; the core forgets old ones."""
        picture = self.scheduler.picture_job(live.id, now=time.monotonic_ns())
        if picture is not None:
            End(code=0, state=picture.state, reason=picture.reason).save(live.kept)
            moments.pass_by("ended")
            said = {"refusals": refusals(live), "start": live.how_it_started(), "container": live.file.container}
            self._note_job(live, picture, **said)
        self._ended.append(live.id)
        while len(self._ended) > ENDED_KEPT:
            self.tell(JobForgotten(job=self._ended.popleft()))
