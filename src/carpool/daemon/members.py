"""What the processes of jobs say: they attach, ask for turns, give them back, answer orders to move, and go.

Each message becomes facts for the core; nothing is decided here.

Rules
  I7  A process takes turns for itself only. Who it is, the kernel says: the process at the other end of its
      connection, or a child of it; and it is no process of another job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import Event, JobDetached, LeaseAsked, LeaseReturned
from carpool.core.node.model import AWAY, JobState
from carpool.daemon import bells, parking, processes, progress
from carpool.daemon.authority import Authority
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.peers import Connection
from carpool.daemon.sentences import started_by
from carpool.daemon.start_and_end import SENTENCE_MAX
from carpool.daemon.translate import needs_from
from carpool.daemon.turns import Member
from carpool.errors import PeerError, RefusedError
from carpool.units import printable
from carpool.wire import messages as m
from carpool.wire.page import FIRST_LENT, LAPSED, SLOTS
from carpool.wire.places import Places

log = logging.getLogger("carpool")
PID_MAX = (1 << 22) - 1  # no pid is larger
UNSEEN = processes.UNSEEN


def identify(live: LiveJob, connected: int, claimed: int) -> int:
    """Who attaches to a job: its pid as this daemon numbers it, or UNSEEN. It says who it is by the number that it
    has for itself. RefusedError if the kernel says that it is somebody else, or of another job (I7)."""
    if not 0 < claimed <= PID_MAX:
        raise RefusedError(f"{claimed} is not the pid of a process")
    if connected == UNSEEN:
        return UNSEEN
    pid = connected if claimed == processes.inner_pid(connected) else _find_child(live, connected, claimed)
    if not pid:
        raise RefusedError(f"process {connected} says that it is process {claimed}; each takes turns for itself only")
    job = processes.job_of(pid)
    if job is not None and job != live.id and (job or not has_joined(live, pid)):
        whose = f"of job {job}" if job else "of no job"
        raise RefusedError(f"process {pid} is {whose}; it takes no turns of job {live.id}")
    processes.everyone.note(pid, claimed, processes.namespace_of(pid))
    return pid


def has_joined(live: LiveJob, pid: int) -> bool:
    """Whether a process whose environment names no job is of this one, which it joined: it, or who started or forked
    it (X11)."""
    first = live.file.child_pid
    if not live.file.is_joined or not pid:
        return False
    return pid == first or processes.descends_from(pid, first) or processes.maps(pid, live.page_path)


def _find_child(live: LiveJob, connected: int, claimed: int) -> int:
    """The child that uses the connection which its parent in the job made; 0 if it is none."""
    if processes.job_of(connected) not in (live.id, None):
        return 0
    pid = processes.everyone.find(claimed, processes.namespace_of(connected))
    return pid if pid > 0 and processes.descends_from(pid, connected) else 0


class Members:
    def __init__(self, driver: Driver, places: Places, authority: Authority) -> None:
        self._driver = driver
        self._authority = authority
        self._places = places
        self.on_first: Callable[[LiveJob], object] = lambda live: None  # somebody is in a job that nobody was in yet

    def attach(self, peer: Connection, message: m.Attach) -> None:
        """A process says to which job it belongs; it gets a slot of the job's page."""
        try:
            live, member = self._find(peer, message)
        except RefusedError as error:
            log.warning("member.refused job=%s reason=%s", message.job, error)
            peer.send(m.Refuse(reason=str(error)))
            return
        slot, pid = member.slot, member.pid
        if live.page is not None:
            live.page.clear_pass(slot)
        member.peer = peer
        peer.job, peer.member = live, member
        if message.holding and not member.is_holding:
            live.turn.set_recall(member, LAPSED)
        elif member.is_holding and not message.holding:
            self._return(live, member, wants_more=False)  # its own return went to a daemon that was dead
        self._welcome(peer, m.Attached(slot=slot, pid=max(0, pid)))
        if live.file.is_joined and not live.file.child_pid:
            self.on_first(live)

    def _welcome(self, peer: Connection, answer: m.Attached) -> None:
        """With its bell, if it can be rung."""
        bell = bells.hang(self._places.bells, answer.pid) if answer.pid else None
        peer.send(answer, bell)
        if bell is not None:
            bell.close()

    def refused(self, peer: Connection, message: m.Attach) -> None:
        """A process of another version was refused: it goes on outside the turns, though it may hold one."""
        try:
            live, member = self._find(peer, message)
        except RefusedError as error:
            log.warning("member.refused job=%s reason=%s", message.job, error)
            return
        self._detach(live, member, m.Detach(reason=started_by(message.version, message.protocol)))
        live.members.pop(member.pid, None)

    def _find(self, peer: Connection, message: m.Attach) -> tuple[LiveJob, Member]:
        """The job to which a process attaches, and its seat there; RefusedError if it has none."""
        live = self._driver.jobs.get(JobId(message.job))
        if live is not None:
            self._authority.check_process(peer.uid, live)
            self._driver.judge_pages([live.id])
        if live is not None and live.refusal:
            raise RefusedError(live.refusal)
        if live is None or live.page is None:
            raise RefusedError(f"the daemon does not know job {message.job}")
        self._driver.collect()
        pid = identify(live, peer.process(), message.pid)
        slot = self._seat(live, pid, message)
        pid = -slot if pid == UNSEEN else pid
        member = live.members.setdefault(pid, Member(peer=None, pid=pid, slot=slot))
        member.slot = slot
        return live, member

    def _seat(self, live: LiveJob, pid: int, message: m.Attach) -> int:
        """The slot of a process that attaches; RefusedError if it names one that is another's, or none is free."""
        assert live.page is not None
        namespace = processes.NOWHERE if pid == UNSEEN else processes.namespace_of(pid)
        if message.slot:
            slot = live.page.slot(message.slot) if 0 < message.slot < SLOTS else None
            if slot is None or slot.pid != message.pid or (pid != UNSEEN and slot.namespace not in (0, namespace)):
                raise RefusedError(f"slot {message.slot} of job {live.id} is not of process {message.pid}")
            return message.slot
        if pid in live.members:
            return live.members[pid].slot
        living = live.job_page.owners()
        for number in live.page.pids():
            if number >= FIRST_LENT and number not in living:
                live.page.clear_slot(number)
        lent = live.page.lend_slot(message.pid, namespace)
        if lent is None:
            raise RefusedError(f"job {live.id} has more than {SLOTS - FIRST_LENT} processes that take turns")
        return lent

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
        self._driver.look_at(live)  # a program that learns anew may have counted anew
        measured = [progress.measured(live, each) for each in live.members.values()]
        event = needs_from(live.id, measured, step_ns=message.step_ns)
        live.file.needs = event.needs
        live.save_or_warn()
        self._driver.tell(event)

    def _detach(self, live: LiveJob, member: Member, message: m.Detach) -> None:
        if not live.speaks_for_all(member):
            return  # a helper that never took a turn: for the others nothing changes
        reason = printable(message.reason, SENTENCE_MAX)
        live.detach(member, reason)
        live.save_or_warn()
        self._driver.tell(JobDetached(job=live.id, reason=reason))
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
            self._driver.idle.take_beside(live)
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
            self._driver.tell(live.returned(wants_more=still_asking))
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
        is_gone = member.pid < 0 or not processes.is_alive(member.pid)
        if is_gone and live.page is not None and member.slot >= FIRST_LENT:
            live.page.clear_slot(member.slot)
        bells.take_down(self._places.bells, member.pid)  # if it comes again, it gets another one

    def _state_of(self, live: LiveJob) -> JobState | None:
        return self._driver.scheduler.state_of(live.id)

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._driver.tell(event)
