"""What runners say: a new job, the runner of a known one, that its program runs, and how it ended."""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobSubmitted
from carpool.core.node.model import JobState
from carpool.daemon import callers, processes
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.peers import Connection
from carpool.daemon.programs import Programs
from carpool.daemon.registry import Registry
from carpool.daemon.starter import Starter
from carpool.errors import CarpoolError, PeerError
from carpool.wire import messages as m


class Runners:
    def __init__(self, driver: Driver, starter: Starter, programs: Programs, registry: Registry) -> None:
        self._driver = driver
        self._starter = starter
        self._programs = programs
        self._registry = registry

    def take(self, peer: Connection, message: m.Message) -> None:
        """Take in a message; from a connection that is no job's runner only the first counts."""
        match message:
            case m.Enter():
                self._enter(peer, message)
            case m.Started():
                if peer.job is not None and peer.job.runner is peer:
                    _check_program(peer, peer.job, message.pid)
                    self._programs.watch(peer.job, message.pid)
            case m.Exited():
                if peer.job is not None and peer.job.runner is peer:
                    self._programs.exited(peer.job, message)
            case _:
                raise PeerError(f"a daemon does not take {type(message).__name__} from a runner")

    def drop(self, live: LiveJob) -> None:
        """Its runner's connection is gone."""
        live.runner = None
        self._programs.end_if_dead(live)
        if self._driver.jobs.get(live.id) is live and not live.file.child_pid:
            self._starter.watch_runner(live)  # it comes back, or is about to be gone

    def _enter(self, peer: Connection, message: m.Enter) -> None:
        known = self._driver.jobs.get(JobId(message.job)) if message.job else self._find_unnamed(message.pid)
        if known is not None and known.file.uid != peer.uid:
            peer.send(m.Refuse(reason=f"job {message.job} is another user's"))
            return
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
            if not message.job:  # else a runner comes back to a daemon that has forgotten the job
                callers.check_start(callers.job_around(self._driver.jobs.values(), peer.process()))
            live = self._registry.new_job(
                message.spec,
                message.argv,
                message.cwd,
                caller=peer.caller,
                environment=None,
                wanted_id=message.job,
            )
        except (CarpoolError, OSError) as error:
            peer.send(m.Refuse(reason=str(error)))
            return
        live.runner, peer.job = peer, live
        live.note_runner(message.pid)
        account = self._driver.journal.account_of(live.id) if message.job else None
        self._driver.tell(JobSubmitted(job=live.id, spec=live.file.spec, account=account))

    def _find_unnamed(self, pid: int) -> LiveJob | None:
        """The job of a runner that was let in by a daemon which died before it could name the job."""
        jobs = self._driver.jobs.values()
        unheard = [live for live in jobs if live.runner is None and not live.file.child_pid]
        return next((live for live in unheard if live.file.environment is None and live.file.runner_pid == pid), None)

    def _take_runner_back(self, peer: Connection, live: LiveJob, message: m.Enter) -> None:
        if message.child_pid:
            _check_program(peer, live, message.child_pid)
        live.runner, peer.job = peer, live
        live.note_runner(message.pid)
        if message.child_pid:
            self._programs.watch(live, message.child_pid)
        elif self._driver.scheduler.state_of(live.id) is not JobState.QUEUED:
            self._starter.start_again(live)


def _check_program(peer: Connection, live: LiveJob, pid: int) -> None:
    """PeerError if a runner says of a process that is not its own that it is the job's: that one may never end. One
    that is over already is believed, and so is a runner whose numbers are not ours. A warm parent's fork is no child
    of the runner, but has the job's page."""
    runner = peer.process()
    is_seen = runner > 0 and processes.inner_pid(runner) == runner
    if not is_seen or not processes.is_alive(pid) or processes.descends_from(pid, runner):
        return
    if processes.page_of(pid) != str(live.directory / "page"):
        raise PeerError(f"process {runner} says that it started process {pid}, which is not its child")


def _has_other_runner(live: LiveJob, message: m.Enter) -> bool:
    """Whether a runner comes too late: a daemon died between its start and the note of it, and the next one started
    another. A program runs once."""
    if message.child_pid:
        return False
    is_there = live.runner is not None and live.file.runner_pid != message.pid
    return is_there or bool(live.file.child_pid)
