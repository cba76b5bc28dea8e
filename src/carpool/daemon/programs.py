"""The programs of jobs as the daemon sees them: watched from their start, and their ends told to the core.

A program's runner tells how it ended. One that cannot, being dead, stopped or frozen, must not keep the books
waiting: what the job had is free within 100 ms of its last process's end, and how it ended is filled in if the
runner tells it after all. Decides nothing.

A job lives until its last process. Its first one may end before others: a launcher that was killed, a program that
detaches. Those others are its orphans; they keep what they have, also their turns, until they end or are ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import replace

from carpool.core.node.events import JobDetached, JobExited, ProgramStarted
from carpool.daemon import processes
from carpool.daemon.driver import Driver
from carpool.daemon.exits import exit_status
from carpool.daemon.jobs import LiveJob, has_runner
from carpool.daemon.limits import Limits
from carpool.daemon.python_options import why_kept_out
from carpool.daemon.sentences import refusals
from carpool.daemon.start_and_end import End
from carpool.daemon.start_ups import StartUps
from carpool.devices.kinds import kind_named
from carpool.wire import messages as m

log = logging.getLogger("carpool")
GRACE_SECONDS = 0.03  # a runner needs 2 ms to tell; on a crowded machine it may not get them at once
ROUND_SECONDS = 0.001  # the loop looks at its sockets once more
PATIENCE_SECONDS = 2.0  # for a program that took its leave: it holds nothing, and how it ended is worth waiting for
AGAIN_SECONDS = 0.1  # where none of them can be watched: they ended just now, or descriptors are short
KILLED = "its runner was killed; exit code unknown"
UNTOLD = "its runner does not answer; exit code unknown"


class Programs:
    def __init__(self, driver: Driver, limits: Limits) -> None:
        self._driver = driver
        self._limits = limits
        self._start_ups = StartUps(driver)

    def watch(self, live: LiveJob, pid: int) -> None:
        """It runs. One whose command line keeps carpool out takes no turns, and cannot say so itself."""
        if pid != live.file.child_pid:
            live.file.child_pid, live.file.child_birth = pid, processes.birth_of(pid) or 0
            live.learn_start()  # how it started
        is_new = not live.file.detached and not live.members and not live.file.is_joined
        kind = kind_named(live.file.kind)
        why = why_kept_out(live.file.argv, has_turns_at_launches=kind.has_turns_at_launches) if is_new else ""
        live.file.detached = live.file.detached or why  # no pid with it: `with carpool.turn()` may work there
        live.save_or_warn()
        self._limits.look_soon()
        if live.child_pidfd is None:
            self._watch_first(live)
        if self._driver.jobs.get(live.id) is live:
            if why:
                self._driver.tell(JobDetached(job=live.id, reason=why))
            elif kind.starts_compute:
                self._start_ups.begin(live)
            else:
                self._driver.tell(ProgramStarted(job=live.id))

    def _watch_first(self, live: LiveJob) -> None:
        """Notice the end of its first process; that it is gone already, by the next round of the loop."""
        first, birth = live.file.child_pid, live.file.child_birth
        if self._driver.jobs.get(live.id) is not live or live.child_pidfd is not None:
            return
        try:
            live.child_pidfd = processes.open_pidfd(first) if processes.is_alive(first, birth) else None
        except OSError:  # no descriptor is left: it is looked at again
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._watch_first, live)
            return
        if live.child_pidfd is not None:
            asyncio.get_running_loop().add_reader(live.child_pidfd, self._on_gone, live)
        else:
            asyncio.get_running_loop().call_soon(self._on_gone, live)

    def end_if_dead(self, live: LiveJob) -> None:
        """Its runner is gone: so is the job, if its program is."""
        self._end_if_dead(live, KILLED)

    def exited(self, live: LiveJob, message: m.Exited) -> None:
        """Its runner told how it ended."""
        self._told(live, End(code=message.code, signal=message.signal))

    def _told(self, live: LiveJob, end: End) -> None:
        how = end.how()
        code = -end.signal if end.signal else end.code
        if self._driver.jobs.get(live.id) is live:
            self._end(live, JobExited(job=live.id, code=code, reason=how))
        elif live.is_untold:
            # Only what is shown of it: to the core it is over, and what it learns of a program that finished, as the
            # bytes it needs, is lost. A job ends once.
            live.is_untold = False
            self._driver.journal.fill_in(live.id, UNTOLD, how, is_finished=code == 0)

    def _on_gone(self, live: LiveJob) -> None:
        """It ended; its runner tells the exit code, perhaps when it has found this daemon, unless it is gone too."""
        if live.file.is_joined:
            live.exit_status = exit_status(live.file.child_pid, live.child_pidfd)
        live.unwatch_child()
        if live.runner is None and not has_runner(live.file):
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
        if live.ended is not None or self._is_underway(live):
            return
        if end := live.learn_end():  # what it wrote down and could not tell, or not yet
            self._told(live, end)
        elif live.file.is_joined:
            self._end(live, ended_by_itself(live))
        else:
            live.is_untold = reason == UNTOLD
            self._end(live, JobExited(job=live.id, code=None, reason=reason))

    def _is_underway(self, live: LiveJob) -> bool:
        """Whether its program runs, or a runner may still start it; also one that no daemon has heard of."""
        known = live.file.child_pid
        live.learn_start()
        child = live.file.child_pid
        if child and child != known:
            self.watch(live, child)
        if child:
            return processes.is_alive(child, live.file.child_birth)
        return live.runner is None and has_runner(live.file)

    # --- what its first process leaves behind --------------------------------------------------------------

    def _end(self, live: LiveJob, ended: JobExited) -> None:
        """Its first process has ended. The job ends with the last of its processes, and with the first one's code."""
        is_known, before = live.ended is not None, live.orphans
        live.ended, live.orphans = ended, live.find_left()
        if not live.orphans:
            self._driver.look_at(live)  # its last steps, which nobody asked about
            reason = "; ".join(filter(None, (ended.reason, refusals(live))))
            self._driver.tell(replace(ended, reason=reason))
            return
        if not live.orphans <= before:
            log.info("job.orphaned job=%s pids=%s", live.id, ",".join(map(str, sorted(live.orphans))))
            if live.is_stopping or live.file.on_orphans == "end":
                self._driver.stop(live)
        if not is_known:
            self._watch_orphan(live)

    def _watch_orphan(self, live: LiveJob) -> None:
        """Notice the end of one of them, whichever; then it is looked who is left."""
        live.unwatch_child()
        with contextlib.suppress(OSError):  # no descriptor is left
            opened = filter(None, map(processes.open_pidfd, sorted(live.orphans)))
            live.child_pidfd = next(opened, None)
        if live.child_pidfd is not None:
            asyncio.get_running_loop().add_reader(live.child_pidfd, self._on_orphan_gone, live)
        else:
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._on_orphan_gone, live)

    def _on_orphan_gone(self, live: LiveJob) -> None:
        live.unwatch_child()
        if self._driver.jobs.get(live.id) is live and live.ended is not None:
            self._end(live, live.ended)
            if live.orphans:
                self._watch_orphan(live)


def ended_by_itself(live: LiveJob) -> JobExited:
    """How the first process of a joined job ended, of which nobody of carpool's is the parent."""
    status = live.exit_status
    if status is None:
        return JobExited(job=live.id, code=0, reason="ended; its exit code is not known")
    code = os.waitstatus_to_exitcode(status)
    return JobExited(job=live.id, code=code, reason=End(code=max(0, code), signal=max(0, -code)).how())
