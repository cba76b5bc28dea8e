"""Starting and ending the programs of jobs: pages, runners, signals.

The daemon never runs a user's program itself. A runner does: `carpool run` in the foreground, or for a submitted
job a background process that outlives the daemon. So a daemon that dies takes no program with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from carpool import __version__
from carpool.core.kernel.ids import DeviceId
from carpool.core.node.events import JobExited, StartPutOff
from carpool.daemon import moments, processes
from carpool.daemon.environment import check_cap, job_environment
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.settings_file import MachineSettings
from carpool.daemon.spawning import start_runner
from carpool.daemon.user_files import is_taken, make_directory
from carpool.devices.base import DeviceFacts
from carpool.errors import PeerError, UsageError
from carpool.wire import messages as m
from carpool.wire.places import Places

log = logging.getLogger("carpool")
KILL_AFTER_SECONDS = 10.0
AGAIN_SECONDS = 1.0  # between two attempts to watch a runner
LOGS_KEPT = 1000  # of ended jobs
LOOK_EVERY = 100  # submitted jobs
SHORTAGES = {  # what the machine may have again soon, with what helps
    errno.EMFILE: "the daemon's limit of descriptors: ulimit -n, then restart it",
    errno.ENFILE: "the machine's limit of descriptors: sysctl fs.file-max",
    errno.EAGAIN: "the limit of processes: ulimit -u, or that of the cgroup",
    errno.ENOMEM: "the machine's memory",
}


class Starter:
    def __init__(self, places: Places, devices: list[DeviceFacts], *, is_warm: bool = False) -> None:
        self.places = places
        self._is_warm = is_warm  # whether a job may start warm that does not say
        self._devices = {device.id: device for device in devices}
        self._runners: dict[str, subprocess.Popen[bytes]] = {}
        self._spawned = 0
        self._pruner = threading.Thread()  # the newest; that disk may hang
        self.on_runner_gone: Callable[[LiveJob], None] = lambda live: None

    def take_settings(self, settings: MachineSettings, _: str) -> None:
        """They were read again: what is started from now on goes by them."""
        self._is_warm = settings.daemon.warm

    def device_for(self, file: JobFile) -> str | None:
        """Where a job that runs already is counted: its device, or after a change of devices another of its kind."""
        if file.device in self._devices:
            return file.device
        return next((device.id for device in self._devices.values() if device.kind.name == file.kind), None)

    def capacity_of(self, device: str) -> int:
        return self._devices[device].capacity_bytes

    def log_path(self, job: str, owner: int | None = None) -> Path:
        """Of a submitted job of this user: on the machine each has a directory of his own."""
        return self.places.logs_of(owner) / f"{job}.log"

    def start(self, live: LiveJob, device: DeviceId) -> JobExited | StartPutOff | None:
        """Give the job its page and tell its runner; what went wrong comes back as the job's end, or that it has to
        wait."""
        facts = self._devices[device]
        live.file.device, live.file.kind = facts.id, facts.kind.name
        live.file.version, live.file.protocol = __version__, m.PROTOCOL
        try:
            check_cap(facts, live.file.spec, live.file.argv)
            self._make_page(live)
            live.save()
            if live.page is not None:
                self._environment(live, live.page.path)  # what cannot be kept is refused before a runner is started
            if live.runner is not None:
                self.send_start(live)
            elif live.file.environment is not None:
                self._spawn_runner(live)
        except OSError as error:
            if error.errno in SHORTAGES:
                live.job_page.close()
                live.file.device = live.file.kind = ""
                return StartPutOff(job=live.id, reason=f"{error.strerror} ({SHORTAGES[error.errno]})")
            reason = f"could not be started: {error.strerror} ({live.directory})"
            if live.runner is not None:
                live.runner.send(m.Refuse(reason=f"job {live.id} {reason}; free some space and try again"))
            return JobExited(job=live.id, code=1, reason=reason)
        except (PeerError, UsageError) as error:
            if live.runner is not None:
                live.runner.send(m.Refuse(reason=f"job {live.id} is not started: {error}"))
            return JobExited(job=live.id, code=1, reason=str(error))
        return None

    def moved(self, live: LiveJob, device: DeviceId) -> None:
        """The job is on another device now; a daemon that is started anew finds it there."""
        facts = self._devices[device]
        live.file.device, live.file.kind = facts.id, facts.kind.name
        live.job_page.set_capacity(facts.capacity_bytes, live.file.spec)
        try:
            live.save()
        except OSError as error:
            log.warning("job.unsaved job=%s reason=%s", live.id, error)

    def resized(self, live: LiveJob) -> None:
        """The user drew another cap; one that has not started gets it with its page."""
        if live.page is not None:
            live.job_page.set_capacity(self.capacity_of(live.file.device), live.file.spec)

    def _make_page(self, live: LiveJob) -> None:
        live.make_directories()  # somebody may have removed them while the job was queued
        live.job_page.make(live.directory)
        live.job_page.set_capacity(self.capacity_of(live.file.device), live.file.spec)

    def start_again(self, live: LiveJob) -> None:
        """Its runner comes again before it has started the program. If somebody removed the job's page meanwhile,
        there is another: no process has the first one."""
        try:
            if live.page is not None and not is_taken(live.page.path):
                self._make_page(live)
        except (OSError, PeerError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            reason = f"its page cannot be made: {why} ({live.directory}); free some space and submit it again"
            if live.runner is not None:
                live.runner.send(m.Refuse(reason=f"job {live.id} is not started: {reason}"))
            return
        self.send_start(live)

    def send_start(self, live: LiveJob) -> None:
        if live.runner is not None and live.page is not None:
            moments.pass_by("Start.before")
            live.runner.send(m.Start(job=live.id, environment=self._environment(live, live.page.path)))
            moments.pass_by("Start.after")

    def _environment(self, live: LiveJob, page: Path) -> dict[str, object]:
        if self.places.is_machine:
            make_directory(self.places.parked_of(live.file.uid), live.file.uid)
        device = self._devices[live.file.device]
        is_warm = self._is_warm if live.file.warm is None else live.file.warm
        return job_environment(self.places, device, live.file, page) | {"warm": is_warm}

    def _spawn_runner(self, live: LiveJob) -> None:
        """Start its runner, which opens the log itself: where that disk hangs, only this job waits for it."""
        if self._spawned % LOOK_EVERY == 0 and not self._pruner.is_alive():
            self._pruner = threading.Thread(target=self._prune_logs, name="logs", daemon=True)
            self._pruner.start()
        self._spawned += 1
        with processes.stepped_up():
            self._runners[live.id] = start_runner(live, self.log_path(live.id, live.file.uid), self.places)
        moments.pass_by("spawned")
        live.note_runner(self._runners[live.id].pid)
        if live.file.standing is None:
            processes.limit_anew(live.file.runner_pid)
        live.save_or_warn()  # it runs: what fails from here on is no reason to start another
        self.watch_runner(live)

    def _prune_logs(self) -> None:
        """Remove all but the newest logs of jobs that are over; those have no directory any more."""
        for directory in self.places.all_logs():
            ended = []
            for path in directory.glob("*.log"):
                with contextlib.suppress(OSError):
                    if not (self.places.kept_jobs / path.stem).exists():
                        ended.append((path.lstat().st_mtime_ns, path))
            for _, path in sorted(ended, reverse=True)[LOGS_KEPT:]:
                with contextlib.suppress(OSError):
                    path.unlink()

    def watch_runner(self, live: LiveJob) -> None:
        """Notice a background runner that dies before it ever spoke to this daemon."""
        try:
            pidfd = processes.open_pidfd(live.file.runner_pid)
        except OSError:  # no descriptor is left: it is looked at again
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._watch_again, live)
            return
        if pidfd is None:
            asyncio.get_running_loop().call_soon(self.on_runner_gone, live)
            return
        asyncio.get_running_loop().add_reader(pidfd, self._on_gone, live, pidfd)

    def _watch_again(self, live: LiveJob) -> None:
        if live.runner is None and live.page is not None:  # it has neither come nor ended
            self.watch_runner(live)

    def _on_gone(self, live: LiveJob, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        if live.runner is None:
            self.on_runner_gone(live)

    def stop(self, live: LiveJob) -> None:
        """End the job's program: politely, then with force."""
        live.is_stopping = True
        if live.ended is None and live.runner is not None:
            live.runner.send(m.Stop())
        elif live.file.child_pid:
            self._signal(live, signal.SIGTERM)
        elif live.id in self._runners:
            self._runners[live.id].terminate()  # it has not started the program yet
        asyncio.get_running_loop().call_later(KILL_AFTER_SECONDS, self._signal, live, signal.SIGKILL)

    def _signal(self, live: LiveJob, number: signal.Signals) -> None:
        if live.page is not None:  # else it ended meanwhile
            for pid in live.find_left():
                processes.send(pid, number, live.file.uid)

    def closed(self, live: LiveJob) -> None:
        """Let go of a submitted job's runner."""
        runner = self._runners.pop(live.id, None)
        if runner is not None:
            asyncio.get_running_loop().call_later(1.0, runner.poll)
