"""Programs that somebody else starts become jobs: they join (Slurm, Ray, Jupyter, containers, debuggers).

A joined job has no runner. Its first process is the one that joined, or one for which somebody else joined
(`carpool adopt --pid`), or the first that is found with the variables of the job. From then on it is a job like any
other, with the same page and the same turns. Whoever joins is answered when the job is let onto its device; a word
why it waits may come before that. Decides nothing: the core lets it in.

Rules
  X10 Who joins, the kernel says. A process joins for itself, or for another one of the same user that it sees.
  X11 A process is in one job at most. It stays in it, with all that it starts or forks.
  X12 A joined job ends with its last process: those that joined, their forks, all that has the job's variables, in
      whatever namespace. How it ended is what the kernel says of the first one; nobody of carpool's waits for it.
  X13 A job that nobody is in yet waits for its first process as long as was asked for, and is cancelled then.
  X14 The next daemon takes a joined job back by its first process, or by whoever has its variables or its page.
  X15 Whoever waits to be let in and goes away does not join.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from carpool import calls
from carpool.core.node.events import CancelAsked, JobExited, JobSubmitted
from carpool.daemon import callers, processes
from carpool.daemon.containers import container_of
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.peers import Connection
from carpool.daemon.people import ROOT, Caller
from carpool.daemon.programs import Programs
from carpool.daemon.registry import Registry
from carpool.daemon.translate import read_as
from carpool.errors import RefusedError
from carpool.wire import messages as m

log = logging.getLogger("carpool")
LOOK_SECONDS = 0.5  # between two looks for the first process of a job that nobody is in yet
GONE = "whoever wanted to join it went away"


class Joiner:
    """In the place of a runner while the job is queued: what a runner is told becomes an answer."""

    def __init__(self, joining: Joining, peer: Connection, live: LiveJob, pid: int) -> None:
        self._joining = joining
        self._live = live
        self.peer = peer
        self.pid = pid  # the first process; 0: nobody yet, UNSEEN: the one at the other end

    def send(self, message: m.Message) -> None:
        match message:
            case m.Start():
                self._joining.let_in(self, self._live, message.environment)
            case m.Wait():
                self.answer(calls.Joined(job=self._live.id, reason=message.reason))
            case m.Refuse():
                self.peer.send(m.Reply(answer={}, error=message.reason, code=RefusedError.exit_code))
            case m.Stop():
                said = f"job {self._live.id} was cancelled before it was let in"
                self.peer.send(m.Reply(answer={}, error=said, code=RefusedError.exit_code))

    def answer(self, answer: calls.Joined) -> None:
        self.peer.send(m.Reply(answer=calls.as_dict(answer), error="", code=0))

    def close(self) -> None:
        self.peer.close()


class Joining:
    def __init__(self, driver: Driver, programs: Programs, registry: Registry) -> None:
        self._driver = driver
        self._programs = programs
        self._registry = registry
        self._queued: dict[Connection, LiveJob] = {}
        self._unseen: dict[Connection, LiveJob] = {}  # those who joined, are not seen here, and keep the connection

    def join(self, peer: Connection, arguments: Mapping[str, object]) -> None:
        """Somebody joins: a new job, queued like any other. The answers come when there is something to say."""
        asked = read_as(calls.Join, arguments, what="the wish to join")
        caller = peer.caller
        pid = who_joins(caller, asked.pid)
        jobs = self._driver.jobs.values()
        around = callers.job_around(jobs, pid) if pid > 0 else None
        if around is not None:
            raise RefusedError(f"process {pid} is in job {around.id} already, and stays in it (X11)")
        callers.check_start(callers.job_around(jobs, caller.pid))
        owner = whose_job(caller, pid)
        live = self._registry.new_job(asked.spec, asked.argv, asked.cwd, caller=owner, environment=None)
        live.file.is_joined = True
        live.file.joins_until_ns = _now_ns() + asked.patience_ns if not pid else 0
        live.runner = Joiner(self, peer, live, pid)
        self._queued[peer] = live
        self._driver.tell(JobSubmitted(job=live.id, spec=live.file.spec))
        if live.trouble:
            self._queued.pop(peer, None)

    def let_in(self, joiner: Joiner, live: LiveJob, environment: dict[str, object]) -> None:
        """The core let it onto its device: its first process may go on."""
        self._queued.pop(joiner.peer, None)
        live.runner = None
        if joiner.pid > 0 and not processes.is_alive(joiner.pid):
            self._driver.tell(JobExited(job=live.id, code=0, reason="it ended before it was let in"))
            return
        page = str(live.page.path) if live.page is not None else ""
        is_unseen = joiner.pid == processes.UNSEEN
        joiner.answer(calls.Joined(job=live.id, page=page, environment=environment, keeps=is_unseen))
        log.info("job.joined job=%s pid=%d", live.id, joiner.pid)
        if joiner.pid > 0:
            self._found(live, joiner.pid)
            return
        if is_unseen:
            self._unseen[joiner.peer] = live
        live.save_or_warn()
        self.wait_first(live)

    def drop(self, peer: Connection) -> None:
        """A connection is gone, perhaps of somebody who joins."""
        queued, unseen = self._queued.pop(peer, None), self._unseen.pop(peer, None)
        if queued is not None and self._driver.jobs.get(queued.id) is queued:
            queued.runner = None
            self._driver.tell(CancelAsked(job=queued.id, reason=GONE))
        if unseen is not None:
            self.look(unseen)

    # --- jobs that nobody is in who can be seen ----------------------------------------------------------------

    def wait_first(self, live: LiveJob) -> None:
        """Look for its first process until it is there."""
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again, live)

    def _look_again(self, live: LiveJob) -> None:
        if self.look(live):
            self.wait_first(live)

    def look(self, live: LiveJob) -> bool:
        """Look for the first process of a job; whether there is a reason to look again."""
        if self._driver.jobs.get(live.id) is not live or live.file.child_pid or live.ended is not None:
            return False
        born = {pid: birth for pid in live.find_left() if (birth := processes.birth_of(pid)) is not None}
        if born:
            self._found(live, min(born, key=lambda pid: (born[pid], pid)))
            return False
        if live in self._unseen.values() or any(each.peer is not None for each in live.members.values()):
            live.file.joins_until_ns = 0  # somebody came; the job ends with the last of them
        elif not live.file.joins_until_ns:
            self._driver.tell(JobExited(job=live.id, code=0, reason="ended; its exit code is not known"))
            return False
        elif live.is_stopping or _now_ns() > live.file.joins_until_ns:
            reason = "" if live.is_stopping else "no process joined it in time"
            self._driver.tell(
                CancelAsked(job=live.id, is_told=True, reason=reason),
                JobExited(job=live.id, code=None, reason=reason or "cancelled"),
            )
            return False
        return True

    def _found(self, live: LiveJob, pid: int) -> None:
        live.file.joins_until_ns = 0
        live.file.container = container_of(pid)
        self._programs.watch(live, pid)


def who_joins(caller: Caller, claimed: int) -> int:
    """The process that joins, by its number here; 0 if it is still to come, UNSEEN if it cannot be seen from here.
    RefusedError if it is nobody's, or not the caller's (X10)."""
    if not claimed or caller.pid == processes.UNSEEN:
        return caller.pid if claimed else 0
    if claimed == processes.inner_pid(caller.pid):
        return caller.pid
    pid = processes.everyone.find(claimed, processes.namespace_of(caller.pid))
    if pid <= 0:
        raise RefusedError(f"there is no process {claimed}; nothing was joined")
    whose, _ = processes.acts_as(pid)
    if caller.uid not in (ROOT, whose):
        raise RefusedError(
            f"process {claimed} is of user {whose}, and this is user {caller.uid}; each joins for his own only"
        )
    return pid


def whose_job(caller: Caller, pid: int) -> Caller:
    """Whose job it is: root joins for others, too (a prolog)."""
    uid, gid = processes.acts_as(pid) if pid > 0 and pid != caller.pid else (caller.uid, caller.gid)
    return caller if uid in (caller.uid, -1) else Caller(uid=uid, gid=gid, pid=pid)


def _now_ns() -> int:
    """By the clock that goes on while the machine sleeps, and that the next daemon has too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
