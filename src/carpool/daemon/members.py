"""What the processes of jobs say: they attach, ask for turns, give them back, answer orders to move, and go.

Each message becomes facts for the core; nothing is decided here.
"""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import Event, JobDetached, LeaseAsked, LeaseReturned
from carpool.core.node.model import AWAY, JobState
from carpool.daemon import parking, processes, progress
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.peers import Connection
from carpool.daemon.translate import needs_from
from carpool.daemon.turns import Member
from carpool.errors import PeerError
from carpool.wire import messages as m
from carpool.wire.page import FIRST_LENT, LAPSED, SLOTS, Page
from carpool.wire.places import Places


class Members:
    def __init__(self, driver: Driver, places: Places) -> None:
        self._driver = driver
        self._places = places

    def attach(self, peer: Connection, message: m.Attach) -> None:
        """A process says to which job it belongs; it gets a slot of the job's page."""
        live = self._driver.jobs.get(JobId(message.job))
        if live is None or live.page is None:
            peer.send(m.Refuse(reason=f"the daemon does not know job {message.job}"))
            return
        self._driver.collect()
        member = live.members.get(message.pid)
        slot = message.slot or (member.slot if member is not None else self._lend_slot(live.page, message.pid))
        if not 0 < slot < SLOTS:
            most = SLOTS - FIRST_LENT
            peer.send(m.Refuse(reason=f"job {live.id} has more than {most} processes that take turns"))
            return
        if member is None:
            member = Member(peer=peer, pid=message.pid, slot=slot)
            live.members[message.pid] = member
        member.peer, member.slot = peer, slot
        live.page.clear_pass(slot)
        peer.job, peer.member = live, member
        if message.holding and not member.is_holding:
            live.turn.set_recall(member, LAPSED)
        elif member.is_holding and not message.holding:
            self._return(live, member, wants_more=False)  # its own return went to a daemon that was dead
        peer.send(m.Attached(slot=slot))

    def _lend_slot(self, page: Page, pid: int) -> int:
        """A free slot of the page, 0 if there is none; those of processes that died without a word are free."""
        for slot, owner in page.pids().items():
            if slot >= FIRST_LENT and not processes.is_alive(owner):
                page.clear_slot(slot)
        return page.lend_slot(pid) or 0

    def take(self, peer: Connection, message: m.Message) -> None:
        """Take in a message of a process that attached."""
        live, member = peer.job, peer.member
        if live is None or member is None:
            raise PeerError(f"{type(message).__name__} from a process that did not attach")
        if self._driver.jobs.get(live.id) is not live:
            return  # the job is over; its last words change nothing
        self._driver.collect()
        match message:
            case m.Ask():
                self._ask(live, member)
            case m.Return():
                if not message.passed:  # else it was collected
                    self._return(live, member, wants_more=message.wants_more)
            case m.Measured():
                self._measured(live, member, message)
            case m.Gradients():
                member.gradient_bytes = message.gradient_bytes
            case m.Parked() | m.Unparked():
                self._tell(parking.answer(live, member, message, self._state_of(live)))
            case m.Detach():
                self._detach(live, member, message)
            case _:
                raise PeerError(f"a daemon does not take {type(message).__name__} from a job")

    def _measured(self, live: LiveJob, member: Member, message: m.Measured) -> None:
        """A job needs what all its processes need together."""
        member.measured = message
        measured = [progress.measured(live, each) for each in live.members.values()]
        event = needs_from(live.id, measured, step_ns=message.step_ns)
        live.file.needs = event.needs
        live.save_or_warn()
        self._driver.tell(event)

    def _detach(self, live: LiveJob, member: Member, message: m.Detach) -> None:
        if not live.speaks_for_all(member):
            return  # a helper that never took a turn: for the others nothing changes
        live.detach(member, message.reason)
        live.save_or_warn()
        self._driver.tell(JobDetached(job=live.id, reason=message.reason))
        if live.turn.is_asking():  # the other ranks still take turns
            self._driver.tell(LeaseAsked(job=live.id, is_paced=live.turn.is_paced()))

    def _ask(self, live: LiveJob, member: Member) -> None:
        is_first = not live.turn.is_asking()
        member.is_asking, member.is_holding = True, False
        if parking.follow(live, member, self._state_of(live)):
            return
        if live.turn.lets_through(member):
            live.turn.grant_member(member, m.Grant(lane_bytes=0, is_shared=True))
        elif not live.turn.is_granted and is_first:
            if live.file.needs is None:  # what it holds before its first turn says what it will hold in it
                self._driver.look_at(live)
            self._driver.take_idle_beside(live)
            self._driver.tell(LeaseAsked(job=live.id, is_paced=live.turn.is_paced()))

    def _return(self, live: LiveJob, member: Member, *, wants_more: bool) -> None:
        was_holding, was_asking = member.is_holding, member.is_asking
        if not was_holding and wants_more:
            self._ask(live, member)
            return
        member.is_holding, member.is_asking = False, wants_more
        if live.turn.is_holding():
            return
        still_asking = live.turn.is_asking()
        if was_holding:
            live.turn.gave_back()
            self._driver.pass_on(live.id)
            self._driver.tell(LeaseReturned(job=live.id, wants_more=still_asking, steps=live.turn.steps()))
        elif was_asking and not still_asking and self._state_of(live) in AWAY | {JobState.WAITING}:
            self._driver.tell(LeaseReturned(job=live.id, wants_more=False, steps=live.turn.steps()))

    def drop(self, live: LiveJob, member: Member) -> None:
        """A member's connection is gone: what it held is free at once."""
        self._driver.look_at(live)  # its last words in the page
        self._tell(parking.dropped(live, member, self._state_of(live)))
        if member.is_holding or member.is_asking:
            self._return(live, member, wants_more=False)
        if live.members.get(member.pid) is member:
            del live.members[member.pid]
        live.turn.set_recall(member, LAPSED)  # if only the connection broke: it looks here and asks anew
        if not processes.is_alive(member.pid):
            if live.page is not None and member.slot >= FIRST_LENT:
                live.page.clear_slot(member.slot)
            (self._places.bells / str(member.pid)).unlink(missing_ok=True)

    def _state_of(self, live: LiveJob) -> JobState | None:
        return self._driver.scheduler.state_of(live.id)

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._driver.tell(event)
