"""The programs of jobs as the daemon sees them: watched from their start, and their ends told to the core.

A program's runner tells how it ended. One that cannot, being dead, stopped or frozen, must not keep the books
waiting: what the job had is free within 100 ms of its program's end, and how it ended is filled in if the runner
tells it after all. Decides nothing.
"""

from __future__ import annotations

import asyncio

from carpool.core.node.events import JobDetached, JobExited
from carpool.daemon import processes
from carpool.daemon.driver import Driver
from carpool.daemon.files import End
from carpool.daemon.jobs import LiveJob
from carpool.daemon.python_options import why_kept_out
from carpool.daemon.sentences import refusals
from carpool.devices.kinds import kind_named
from carpool.wire import messages as m

GRACE_SECONDS = 0.03  # a runner needs 2 ms to tell; on a crowded machine it may not get them at once
ROUND_SECONDS = 0.001  # the loop looks at its sockets once more
PATIENCE_SECONDS = 2.0  # for a program that took its leave: it holds nothing, and how it ended is worth waiting for
KILLED = "its runner was killed; exit code unknown"
UNTOLD = "its runner does not answer; exit code unknown"


class Programs:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def watch(self, live: LiveJob, pid: int) -> None:
        """It runs. One whose command line keeps carpool out takes no turns, and cannot say so itself."""
        live.file.child_pid, live.file.child_birth = pid, processes.birth_of(pid) or 0
        is_new = not live.file.detached and not live.members
        at_launches = kind_named(live.file.kind).has_turns_at_launches
        why = why_kept_out(live.file.argv, has_turns_at_launches=at_launches) if is_new else ""
        live.file.detached = live.file.detached or why  # no pid with it: `with carpool.turn()` may work there
        live.save_or_warn()
        if live.child_pidfd is None:
            live.child_pidfd = processes.open_pidfd(pid)
            if live.child_pidfd is not None:
                asyncio.get_running_loop().add_reader(live.child_pidfd, self._on_gone, live)
        if why:
            self._driver.tell(JobDetached(job=live.id, reason=why))

    def end_if_dead(self, live: LiveJob) -> None:
        """Its runner is gone: so is the job, if its program is."""
        self._end_if_dead(live, KILLED)

    def exited(self, live: LiveJob, message: m.Exited) -> None:
        """Its runner told how it ended."""
        self._told(live, End(code=message.code, signal=message.signal))

    def _told(self, live: LiveJob, end: End) -> None:
        how = f"ended by signal {end.signal}" if end.signal else f"exit code {end.code}"
        code = -end.signal if end.signal else end.code
        if self._driver.jobs.get(live.id) is live:
            reason = "; ".join(said for said in (how, refusals(live)) if said)
            self._driver.look_at(live)  # its last steps, which nobody asked about
            self._driver.tell(JobExited(job=live.id, code=code, reason=reason))
        elif live.is_untold:
            # Only what is shown of it: to the core it is over, and what it learns of a program that finished, as the
            # bytes it needs, is lost. A job ends once.
            live.is_untold = False
            self._driver.journal.fill_in(live.id, UNTOLD, how, is_finished=code == 0)

    def _on_gone(self, live: LiveJob) -> None:
        """It ended; its runner tells the exit code, perhaps when it has found this daemon, unless it is gone too."""
        live.unwatch_child()
        if live.runner is None and not processes.is_alive(live.file.runner_pid):
            self.end_if_dead(live)
        else:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._on_silence, live)

    def _on_silence(self, live: LiveJob) -> None:
        """A runner that can run gets as long again, and longer if the program was not killed. One that is stopped
        only a round of the loop: uvloop rings its timers before it looks at its sockets, and what the runner told may
        lie there."""
        if self._driver.jobs.get(live.id) is live:
            rest = GRACE_SECONDS if live.was_killed() else PATIENCE_SECONDS
            rest = ROUND_SECONDS if processes.is_stopped(live.file.runner_pid) else rest
            asyncio.get_running_loop().call_later(rest, self._end_if_dead, live, UNTOLD)

    def _end_if_dead(self, live: LiveJob, reason: str) -> None:
        if self._driver.jobs.get(live.id) is not live:
            return
        child = live.file.child_pid
        if child and processes.is_alive(child, live.file.child_birth):
            return
        if end := End.load(live.directory):  # what it wrote down and could not tell, or not yet
            self._told(live, end)
        else:
            live.is_untold = reason == UNTOLD
            self._driver.look_at(live)  # its last steps
            self._driver.tell(JobExited(job=live.id, code=None, reason=reason))
