"""What runners say: a new job, the runner of a known one, that its program runs, and how it ended."""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobSubmitted
from carpool.core.node.model import JobState
from carpool.daemon import callers, processes
from carpool.daemon.authority import Authority
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.peers import Connection
from carpool.daemon.programs import Programs
from carpool.daemon.registry import Registry
from carpool.daemon.starter import Starter
from carpool.errors import CarpoolError, InternalError, PeerError, RefusedError
from carpool.wire import messages as m


class Runners:
    def __init__(
        self, driver: Driver, starter: Starter, programs: Programs, registry: Registry, authority: Authority
    ) -> None:
        self._driver = driver
        self._starter = starter
        self._programs = programs
        self._registry = registry
        self._authority = authority

    def take(self, peer: Connection, message: m.Message) -> None:
        """Take in a message; from a connection that is no job's runner only the first counts."""
        match message:
            case m.Enter():
                self._enter(peer, message)
            case m.Started():
                if peer.job is not None and peer.job.runner is peer:
                    self._programs.watch(peer.job, _program_of(peer, peer.job, message.pid))
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
        try:
            pid = _runner_of(peer, message.pid)
            known = self._driver.jobs.get(JobId(message.job)) if message.job else self._find_unnamed(pid, peer.uid)
            if known is not None:
                self._authority.check_process(peer.uid, known)
                _check_alone(known, message, pid)
                self._take_runner_back(peer, known, message, pid)
            elif message.child_pid:
                raise RefusedError(f"the daemon does not know job {message.job} any more")
            else:
                self._enter_new(peer, message, pid)
        except (CarpoolError, OSError) as error:
            if isinstance(error, InternalError):
                raise
            peer.send(m.Refuse(reason=str(error)))

    def _enter_new(self, peer: Connection, message: m.Enter, pid: int) -> None:
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
        live.runner, peer.job = peer, live
        live.note_runner(pid)
        account = self._driver.journal.account_of(live.id) if message.job else None
        self._driver.tell(JobSubmitted(job=live.id, spec=live.file.spec, account=account))

    def _find_unnamed(self, pid: int, uid: int) -> LiveJob | None:
        """The job of a runner that was let in by a daemon which died before it could name the job."""
        jobs = self._driver.jobs.values()
        unheard = [live for live in jobs if live.runner is None and not live.file.child_pid and live.file.uid == uid]
        return next((live for live in unheard if live.file.environment is None and live.file.runner_pid == pid), None)

    def _take_runner_back(self, peer: Connection, live: LiveJob, message: m.Enter, pid: int) -> None:
        program = _program_of(peer, live, message.child_pid) if message.child_pid else 0
        live.runner, peer.job = peer, live
        live.note_runner(pid)
        if message.child_pid:
            self._programs.watch(live, program)
        elif self._driver.scheduler.state_of(live.id) is not JobState.QUEUED:
            self._starter.start_again(live)


def _program_of(peer: Connection, live: LiveJob, claimed: int) -> int:
    """The pid of a job's program as this daemon numbers it; its runner says the number that it has for it. PeerError
    if that is no process of the runner's: it may never end, and it would be ended with the job (I33). A program that
    is over already is believed, and so is a runner whose numbers nobody here can read. A warm parent's fork is no
    child of the runner, but has the job's page."""
    runner = peer.process()
    if runner <= 0:
        return _own(claimed, live.file.uid)
    pid = processes.everyone.find(claimed, processes.namespace_of(runner))
    if pid <= 0:
        return claimed if processes.inner_pid(runner) == runner else 0
    if not processes.descends_from(pid, runner) and processes.page_of(pid) != live.page_path:
        raise PeerError(f"process {runner} says that it started process {pid}, which is not its child")
    return pid


def _own(claimed: int, uid: int) -> int:
    """What a runner says of whom nobody here can see; but no living process that is another user's."""
    return 0 if processes.is_alive(claimed) and not processes.is_of(claimed, uid) else claimed


def _runner_of(peer: Connection, claimed: int) -> int:
    """The pid of a runner as this daemon numbers it. It says who it is by the number that it has for itself;
    RefusedError if the kernel says that it is somebody else (I33)."""
    connected = peer.process()
    if connected == processes.UNSEEN:
        return _own(claimed, peer.uid)
    if not connected or claimed != processes.inner_pid(connected):
        raise RefusedError(f"process {connected} says that it is process {claimed}; a runner speaks for itself only")
    return connected


def _check_alone(live: LiveJob, message: m.Enter, pid: int) -> None:
    """RefusedError for a runner that comes too late: a daemon died between its start and the note of it, and the next
    one started another. A program runs once."""
    is_there = live.runner is not None and live.file.runner_pid != pid
    if not message.child_pid and (is_there or live.file.child_pid):
        raise RefusedError(f"job {message.job} has a runner already")
