"""Which jobs there are: new ones get a number, an id and a directory; those of a daemon that died are taken back.

Decides nothing: the core is told, and says what becomes of them.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobDetached, JobSubmitted
from carpool.core.node.model import HOLDING
from carpool.daemon.driver import Driver
from carpool.daemon.files import End, JobFile, load_file
from carpool.daemon.jobs import LiveJob, is_parked, is_underway
from carpool.daemon.programs import Programs
from carpool.daemon.progress import adopted
from carpool.daemon.starter import Starter
from carpool.daemon.translate import spec_from
from carpool.errors import PeerError, UsageError
from carpool.wire.places import make_private

log = logging.getLogger("carpool")
_IS_ID = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}")


class Registry:
    def __init__(self, driver: Driver, starter: Starter, programs: Programs) -> None:
        self._driver = driver
        self._starter = starter
        self._programs = programs
        self._jobs = starter.places.jobs
        self._number = driver.journal.last_number()

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
        directory = self._jobs / job_id
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
        files = [(path, load_file(path)) for path in self._jobs.iterdir() if path.is_dir()]
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
            live.job_page.open(live.directory)
        except PeerError as error:
            log.warning("job.lost job=%s reason=%s", live.id, error)
            return
        device = self._starter.device_for(live.file)
        if device is None:
            log.warning("job.lost job=%s reason=device %s is not here", live.id, live.file.device)
            return
        live.file.device = device
        live.job_page.set_capacity(self._starter.capacity_of(device), live.file.spec)
        live.find_members()
        self._driver.jobs[live.id] = live
        event = adopted(live, self._driver.journal.account_of(live.id))
        self._driver.tell(event)
        state = self._driver.scheduler.state_of(live.id)
        if state is None:
            del self._driver.jobs[live.id]
            return
        live.turn.take_up(is_granted=state in HOLDING)
        if live.is_detached:
            self._driver.tell(JobDetached(job=live.id, reason=live.file.detached))
        if live.file.child_pid:
            self._programs.watch(live, live.file.child_pid)
        else:
            self._starter.watch_runner(live)


def _number(file: JobFile | None) -> int:
    return file.number if file is not None else 0


def _slug(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", Path(name).name).strip("-.")[:40] or "job"
