"""Receives every message: members take turns, runners report programs, command lines ask.

Knows which connection speaks for which job and turns messages into facts for the core; decides nothing.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from carpool import __version__
from carpool.core.kernel.ids import JobId
from carpool.core.node.events import Event, JobDetached, JobSubmitted, LeaseAsked, LeaseReturned
from carpool.core.node.model import AWAY, HOLDING, JobState
from carpool.daemon import parking, processes
from carpool.daemon.calls import Calls
from carpool.daemon.driver import Driver
from carpool.daemon.files import End, JobFile, load_file
from carpool.daemon.jobs import LiveJob, Member, is_parked, is_underway
from carpool.daemon.peers import Connection
from carpool.daemon.programs import Programs
from carpool.daemon.starter import Starter
from carpool.daemon.translate import needs_from, spec_from
from carpool.errors import CarpoolError, PeerError, UsageError
from carpool.wire import messages as m
from carpool.wire import page as pages
from carpool.wire.places import Places, make_private

log = logging.getLogger("carpool")


class Router:
    def __init__(self, driver: Driver, starter: Starter, places: Places, calls: Calls) -> None:
        self._driver = driver
        self._starter = starter
        self._places = places
        self._calls = calls
        self._programs = Programs(driver)
        starter.on_runner_gone = self._programs.end_if_dead
        self._number = driver.journal.last_number()

    # --- connections --------------------------------------------------------------------------------------

    def connect(self) -> Connection:
        return Connection(self.on_message, self.on_lost)

    def on_message(self, peer: Connection, message: m.Message) -> None:
        match message:
            case m.Ask() | m.Return() | m.Measured() | m.Gradients() | m.Parked() | m.Unparked() | m.Detach():
                self._on_member(peer, message)
            case m.Attach():
                self._on_attach(peer, message)
            case m.Enter():
                self._on_enter(peer, message)
            case m.Started():
                self._on_started(peer, message)
            case m.Exited():
                self._on_exited(peer, message)
            case m.Call():
                self._on_call(peer, message)
            case _:
                raise PeerError(f"a daemon does not take {type(message).__name__}")

    def on_lost(self, peer: Connection) -> None:
        self._driver.collect()
        live, member = peer.job, peer.member
        peer.job = peer.member = None
        if live is None or self._driver.jobs.get(live.id) is not live:
            return
        if member is not None:
            if member.peer is peer:
                self._drop_member(live, member)
        elif live.runner is peer:
            live.runner = None
            self._programs.end_if_dead(live)

    def _speaks_this_version(self, peer: Connection, version: str, protocol: int) -> bool:
        if protocol == m.PROTOCOL and version == __version__:
            return True
        reason = (
            f"the daemon is carpool {__version__} (protocol {m.PROTOCOL}), this is {version} (protocol {protocol});"
            " restart it: carpool daemon stop, then carpool daemon start"
        )
        peer.send(m.Refuse(reason=reason))
        return False

    # --- members ------------------------------------------------------------------------------------------

    def _on_attach(self, peer: Connection, message: m.Attach) -> None:
        live = self._driver.jobs.get(JobId(message.job))
        if live is None or live.page is None:
            peer.send(m.Refuse(reason=f"the daemon does not know job {message.job}"))
            return
        if not self._speaks_this_version(peer, message.version, message.protocol):
            return
        self._driver.collect()
        member = live.members.get(message.pid)
        slot = message.slot or (member.slot if member is not None else self._lend_slot(live.page, message.pid))
        if not 0 < slot < pages.SLOTS:
            most = pages.SLOTS - pages.FIRST_LENT
            peer.send(m.Refuse(reason=f"job {live.id} has more than {most} processes that take turns"))
            return
        if member is None:
            member = Member(peer=peer, pid=message.pid, slot=slot)
            live.members[message.pid] = member
        member.peer, member.slot = peer, slot
        live.page.clear_pass(slot)
        peer.job, peer.member = live, member
        if message.holding and not member.is_holding:
            live.set_recall(member, pages.LAPSED)
        elif member.is_holding and not message.holding:
            self._return(live, member, wants_more=False)  # its own return went to a daemon that was dead
        peer.send(m.Attached(slot=slot))

    def _lend_slot(self, page: pages.Page, pid: int) -> int:
        """A free slot of the page, 0 if there is none; those of processes that died without a word are free."""
        for slot, owner in page.pids().items():
            if slot >= pages.FIRST_LENT and not processes.is_alive(owner):
                page.clear_slot(slot)
        return page.lend_slot(pid) or 0

    def _on_member(
        self,
        peer: Connection,
        message: m.Ask | m.Return | m.Measured | m.Gradients | m.Parked | m.Unparked | m.Detach,
    ) -> None:
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
                member.measured = message
                measured = [live.measured(each) for each in live.members.values()]
                event = needs_from(live.id, measured, step_ns=message.step_ns)
                live.file.needs = event.needs
                live.save_or_warn()
                self._driver.tell(event)
            case m.Gradients():
                member.gradient_bytes = message.gradient_bytes
            case m.Parked() | m.Unparked():
                self._tell(parking.answer(live, member, message, self._state_of(live)))
            case m.Detach() if live.speaks_for_all(member):
                live.detach(member, message.reason)
                live.save_or_warn()
                self._driver.tell(JobDetached(job=live.id, reason=message.reason))
                if live.is_asking():  # the other ranks still take turns
                    self._driver.tell(LeaseAsked(job=live.id, is_paced=live.is_paced()))

    def _ask(self, live: LiveJob, member: Member) -> None:
        is_first = not live.is_asking()
        member.is_asking, member.is_holding = True, False
        if parking.follow(live, member, self._state_of(live)):
            return
        if live.lets_through(member):
            live.grant_member(member, m.Grant(lane_bytes=0, is_shared=True))
        elif not live.is_granted and is_first:
            if live.file.needs is None:  # what it holds before its first turn says what it will hold in it
                self._driver.look_at(live)
            self._driver.take_idle_beside(live)
            self._driver.tell(LeaseAsked(job=live.id, is_paced=live.is_paced()))

    def _return(self, live: LiveJob, member: Member, *, wants_more: bool) -> None:
        was_holding, was_asking = member.is_holding, member.is_asking
        if not was_holding and wants_more:
            self._ask(live, member)
            return
        member.is_holding, member.is_asking = False, wants_more
        if any(other.is_holding for other in live.members.values()):
            return
        still_asking = live.is_asking()
        if was_holding:
            live.is_granted = live.is_recalled = False
            self._driver.pass_on(live.id)
            self._driver.tell(LeaseReturned(job=live.id, wants_more=still_asking, steps=live.steps()))
        elif was_asking and not still_asking and self._state_of(live) in AWAY | {JobState.WAITING}:
            self._driver.tell(LeaseReturned(job=live.id, wants_more=False, steps=live.steps()))

    def _drop_member(self, live: LiveJob, member: Member) -> None:
        """A member's connection is gone: what it held is free at once."""
        self._driver.look_at(live)  # its last words in the page
        self._tell(parking.dropped(live, member, self._state_of(live)))
        if member.is_holding or member.is_asking:
            self._return(live, member, wants_more=False)
        if live.members.get(member.pid) is member:
            del live.members[member.pid]
        live.set_recall(member, pages.LAPSED)  # if only the connection broke: it looks here and asks anew
        if not processes.is_alive(member.pid):
            if live.page is not None and member.slot >= pages.FIRST_LENT:
                live.page.clear_slot(member.slot)
            (self._places.bells / str(member.pid)).unlink(missing_ok=True)

    def _state_of(self, live: LiveJob) -> JobState | None:
        return self._driver.scheduler.state_of(live.id)

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._driver.tell(event)

    # --- runners ------------------------------------------------------------------------------------------

    def _on_enter(self, peer: Connection, message: m.Enter) -> None:
        if not self._speaks_this_version(peer, message.version, message.protocol):
            return
        known = self._driver.jobs.get(JobId(message.job)) if message.job else None
        if known is not None and _has_other_runner(known, message):
            peer.send(m.Refuse(reason=f"job {message.job} has a runner already"))
            return
        if known is not None:
            self._take_runner_back(peer, known, message)
            return
        if message.child_pid:
            peer.send(m.Refuse(reason=f"the daemon does not know job {message.job} any more"))
            return
        try:
            live = self.new_job(message.spec, message.argv, message.cwd, environment=None, wanted_id=message.job)
        except (CarpoolError, OSError) as error:
            peer.send(m.Refuse(reason=str(error)))
            return
        live.runner, live.file.runner_pid = peer, message.pid
        peer.job = live
        account = self._driver.journal.account_of(live.id) if message.job else None
        self._driver.tell(JobSubmitted(job=live.id, spec=live.file.spec, account=account))

    def _take_runner_back(self, peer: Connection, live: LiveJob, message: m.Enter) -> None:
        live.runner, live.file.runner_pid = peer, message.pid
        peer.job = live
        if message.child_pid:
            self._programs.watch(live, message.child_pid)
        elif self._driver.scheduler.state_of(live.id) is not JobState.QUEUED:
            self._starter.send_start(live)

    def _on_started(self, peer: Connection, message: m.Started) -> None:
        if peer.job is not None and peer.job.runner is peer:
            self._programs.watch(peer.job, message.pid)

    def _on_exited(self, peer: Connection, message: m.Exited) -> None:
        if peer.job is not None and peer.job.runner is peer:
            self._programs.exited(peer.job, message)

    # --- new and old jobs ---------------------------------------------------------------------------------

    def new_job(
        self,
        spec_body: dict[str, object],
        argv: list[str],
        cwd: str,
        *,
        environment: dict[str, str] | None,
        wanted_id: str = "",
    ) -> LiveJob:
        """Make the directory of a new job; the caller tells the core."""
        spec = spec_from(spec_body)
        self._number += 1
        job_id = JobId(wanted_id or f"{_slug(spec.name)}-{self._number}")
        if not _IS_ID.fullmatch(job_id):
            raise UsageError(f"'{job_id}' cannot be the id of a job")
        directory = self._places.jobs / job_id
        make_private(directory)
        file = JobFile(job=job_id, number=self._number, spec=spec, argv=argv, cwd=cwd, environment=environment)
        live = LiveJob(id=job_id, directory=directory, file=file)
        try:
            live.save()
        except BaseException:
            live.remove()
            raise
        self._driver.jobs[job_id] = live
        return live

    def adopt(self) -> None:
        """Take back the jobs of a daemon that died: they are where their files and pages say."""
        files = [(path, load_file(path)) for path in self._places.jobs.iterdir() if path.is_dir()]
        # Parked ones last: they come back at once if there is room, so those that are resident must be known.
        known = sorted(
            (each for each in files if each[1] is not None), key=lambda each: (is_parked(each[0]), _number(each[1]))
        )
        for directory, file in known:
            if file is None:
                continue
            self._number = max(self._number, file.number)
            live = LiveJob(id=JobId(file.job), directory=directory, file=file)
            if file.device and is_underway(file):
                self._adopt_running(live)
            elif not file.child_pid and file.environment is not None:
                file.device = ""
                self._driver.jobs[live.id] = live
                account = self._driver.journal.account_of(live.id)
                self._driver.tell(JobSubmitted(job=live.id, spec=file.spec, account=account))
            else:
                if file.child_pid:
                    self._driver.note_lost(live, End.load(directory))
                live.remove()  # at once: the runner of a queued job comes back with this very id

    def _adopt_running(self, live: LiveJob) -> None:
        try:
            live.page = pages.Page.open(live.directory / "page")
        except PeerError as error:
            log.warning("job.lost job=%s reason=%s", live.id, error)
            return
        device = self._starter.device_for(live.file)
        if device is None:
            log.warning("job.lost job=%s reason=device %s is not here", live.id, live.file.device)
            return
        live.file.device = device
        live.set_capacity(self._starter.capacity_of(device))
        live.find_members()
        self._driver.jobs[live.id] = live
        event = live.adopted(self._driver.journal.account_of(live.id))
        self._driver.tell(event)
        state = self._driver.scheduler.state_of(live.id)
        if state is None:
            del self._driver.jobs[live.id]
            return
        live.is_granted = state in HOLDING
        if live.is_detached:
            self._driver.tell(JobDetached(job=live.id, reason=live.file.detached))
        if live.file.child_pid:
            self._programs.watch(live, live.file.child_pid)
        else:
            self._starter.watch_runner(live)

    # --- the command line ---------------------------------------------------------------------------------

    def _on_call(self, peer: Connection, message: m.Call) -> None:
        if message.verb != "stop" and not self._speaks_this_version(peer, message.version, message.protocol):
            return
        try:
            answer = self._calls.answer(self, message.verb, message.arguments)
        except CarpoolError as error:
            peer.send(m.Reply(answer={}, error=str(error), code=error.exit_code))
            return
        except OSError as error:
            peer.send(m.Reply(answer={}, error=f"{error.strerror}: {error.filename}", code=1))
            return
        peer.send(m.Reply(answer=answer, error="", code=0))


def _has_other_runner(live: LiveJob, message: m.Enter) -> bool:
    """Whether a runner comes too late: a daemon died between its start and the note of it, and the next one started
    another. A program runs once."""
    if message.child_pid:
        return False
    is_there = live.runner is not None and live.file.runner_pid != message.pid
    return is_there or bool(live.file.child_pid)


def _number(file: JobFile | None) -> int:
    return file.number if file is not None else 0


_IS_ID = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}")


def _slug(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", Path(name).name).strip("-.")[:40] or "job"
