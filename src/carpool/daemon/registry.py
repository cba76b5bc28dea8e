"""Which jobs there are: new ones get a number, an id and a directory; those of a daemon that died are taken back.

Decides nothing: the core is told, and says what becomes of them.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from carpool.calls import Inherited, Spec
from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobDetached, JobSubmitted
from carpool.core.node.model import HOLDING, JobSpec, JobState
from carpool.daemon import processes
from carpool.daemon.allowances import Allowances
from carpool.daemon.authority import Authority
from carpool.daemon.driver import Driver
from carpool.daemon.files import JobFile, load_file
from carpool.daemon.jobs import LiveJob, forks_of, is_parked, is_underway
from carpool.daemon.people import Caller, user_of
from carpool.daemon.programs import Programs
from carpool.daemon.progress import adopted
from carpool.daemon.sentences import started_by, unwritten
from carpool.daemon.standing import standing_of
from carpool.daemon.start_and_end import End
from carpool.daemon.starter import Starter
from carpool.daemon.tenancy import Tenancy
from carpool.daemon.translate import spec_from, spec_said
from carpool.daemon.user_files import is_taken, remove_aside
from carpool.errors import PeerError, RefusedError, UsageError
from carpool.wire.protocol import PROTOCOL

log = logging.getLogger("carpool")
_ENDS_IN_NUMBER = re.compile(r"-([0-9]{1,15})$")
_IS_ID = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}")


class Registry:
    def __init__(
        self,
        driver: Driver,
        starter: Starter,
        programs: Programs,
        authority: Authority,
        tenancy: Tenancy,
        allowances: Allowances | None = None,
    ) -> None:
        self._driver = driver
        self._starter = starter
        self._programs = programs
        self._authority = authority
        self._tenancy = tenancy
        self._allowances = allowances  # of the users of a machine; None: it serves one user
        self.on_unentered: Callable[[LiveJob], None] = lambda live: None  # a joined job that nobody is in yet
        self._places = starter.places
        self._awaited: dict[str, int] = {}  # ids of queued jobs whose runners come back, and whose they are
        self._number = driver.journal.last_number()
        if not self._places.is_machine:
            self._number = max(self._number, last_logged(self._places.logs))

    def new_job(
        self,
        spec_body: dict[str, object],
        argv: list[str],
        cwd: str,
        *,
        caller: Caller,
        environment: dict[str, str] | None,
        inherited: Inherited | None = None,
        wanted_id: str = "",
    ) -> LiveJob:
        """Make the directory of a new job of this caller; whoever asks for it tells the core."""
        if self._places.is_machine and not self._comes_back(wanted_id, caller.uid):
            wanted_id = ""
        if self._allowances is not None and not wanted_id:  # else it was let in before
            self._allowances.check_new_job(caller.uid, self._driver.jobs.values(), self._state_of)
        said = spec_said(spec_body)
        spec = self._spec_of(said, caller)
        is_private = self._authority.is_private
        job_id = JobId(wanted_id or self._new_id("job" if is_private else spec.name))
        if not _IS_ID.fullmatch(job_id):
            raise UsageError(f"'{job_id}' cannot be the id of a job")
        name, spec = (spec.name, replace(spec, name=job_id)) if is_private else ("", spec)
        is_for_others = environment is not None and self._places.is_machine
        standing = standing_of(caller) if is_for_others else None
        directory, kept = self._directories(job_id)
        file = JobFile(
            job=job_id,
            number=self._number,
            spec=spec,
            name=name,
            uid=caller.uid,
            argv=argv,
            cwd=cwd,
            environment=environment,
            inherited=inherited,
            standing=standing,
            on_orphans=said.on_orphans,
            warm=said.warm,
        )
        live = LiveJob(id=job_id, directory=directory, kept=kept, file=file)
        _write_new(live)
        self._driver.jobs[job_id] = live
        return live

    def _new_id(self, name: str) -> str:
        while True:
            self._number += 1
            found = f"{_slug(name)}-{self._number}"
            if found not in self._driver.jobs:  # a runner that came back may have named one of another daemon's
                return found

    def _comes_back(self, wanted_id: str, user: int) -> bool:
        """Whether a runner of this user may have this id: an earlier daemon gave it to him. On a machine nobody gets
        an id by naming it, or he could keep somebody else's job from coming back."""
        is_his = bool(wanted_id) and self._awaited.get(wanted_id) == user
        if is_his:
            del self._awaited[wanted_id]
        return is_his

    def _spec_of(self, said: Spec, caller: Caller) -> JobSpec:
        """What is said of a job, as far as its user may say it."""
        user, spec = user_of(caller.uid), spec_from(said)
        tenant = self._tenancy.choose(user, said.tenant)
        guaranteed_milli = spec.guaranteed_milli
        if not self._authority.is_admin(caller.uid):
            guaranteed_milli = self._tenancy.guarantee_milli(tenant, guaranteed_milli)
        fingerprint = spec.fingerprint
        if fingerprint and self._places.is_machine:
            fingerprint = f"{caller.uid}:{fingerprint}"  # else one user could say what another's program needs
        return replace(
            spec, user=user.name, tenant=tenant, guaranteed_milli=guaranteed_milli, fingerprint=fingerprint
        )

    def _directories(self, job_id: str) -> tuple[Path, Path]:
        """Where its user writes, and where the daemon keeps what others are not to see (I44)."""
        return self._places.jobs / job_id, self._places.kept_jobs / job_id

    def _state_of(self, live: LiveJob) -> JobState | None:
        return self._driver.scheduler.state_of(live.id)

    def restore(self) -> None:
        """Somebody removed the directories of jobs: make them and their files again. A page that was removed stays
        with the processes that have it; those that start later run without."""
        for live in self._driver.jobs.values():
            if not (is_taken(live.directory) and is_taken(live.kept)):
                log.warning("job.files_removed job=%s", live.id)
                live.make_directories()
                live.save_or_warn()

    def adopt(self, *, is_after_boot: bool = False) -> None:
        """Take back the jobs of a daemon that died: they are where their files and pages say.

        After a boot none of them runs, though other processes may have their pids.
        """
        files = [(path, load_file(path)) for path in self._places.kept_jobs.iterdir() if path.is_dir()]
        self._number = max(self._number, last_numbered(path.name for path, _ in files))
        for path in [path for path, file in files if file is None and not (path / "job.json").exists()]:
            shutil.rmtree(path, ignore_errors=True)  # the last daemon was about to
        self._remove_left()
        # Parked ones last: they come back at once if there is room, so those that are resident must be known.
        known = [
            LiveJob(id=JobId(file.job), directory=self._directories(file.job)[0], kept=kept, file=file)
            for kept, file in files
            if file is not None and file.job == kept.name
        ]
        known.sort(key=lambda live: (is_parked(live.directory, live.file.uid), live.file.number))
        inside = processes.by_pages({live.file.uid for live in known})
        for live in known:
            file = live.file
            self._number = max(self._number, file.number)
            was_started, end = live.learn_start(), live.learn_end()
            may_run = file.device and not is_after_boot and not _is_closed(end)
            if may_run and is_underway(file, inside[file.uid].get(live.page_path) or forks_of(live)):
                self._adopt_running(live)
            elif was_started or end is not None:
                if end is None and file.is_joined:  # nobody writes down how it ended
                    end = End(code=0, reason="it ended while no daemon ran; its exit code is not known")
                self._driver.note_lost(live, end)  # never again: a program runs once
            elif file.environment is not None:
                file.device = ""
                self._driver.jobs[live.id] = live
                account = self._driver.journal.account_of(live.id)
                self._driver.tell(JobSubmitted(job=live.id, spec=file.spec, account=account))
            else:
                self._awaited[live.id] = file.uid
                live.remove()  # at once: the runner of a queued job comes back with this very id

    def _remove_left(self) -> None:
        """Directories of users for jobs of which the daemon keeps nothing."""
        if self._places.kept_jobs != self._places.jobs:
            for path in self._places.jobs.iterdir():
                if not (self._places.kept_jobs / path.name).exists():
                    remove_aside(path)

    def _adopt_running(self, live: LiveJob) -> None:
        try:
            live.job_page.open(live.directory)
        except PeerError as error:  # it is in the books, and takes no turns
            log.warning("job.page_unusable job=%s reason=%s", live.id, error)
            live.file.detached = live.refusal = str(error)
        device = self._starter.device_for(live.file)
        if device is None:
            log.warning("job.lost job=%s reason=device %s is not here", live.id, live.file.device)
            return
        live.file.device = device
        live.job_page.set_capacity(self._starter.capacity_of(device), live.file.spec)
        live.find_members()
        if live.file.protocol not in (0, PROTOCOL):
            live.leave_turns(started_by(live.file.version, live.file.protocol))
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
        elif live.file.is_joined:
            self.on_unentered(live)
        else:
            self._starter.watch_runner(live)


def _write_new(live: LiveJob) -> None:
    """Make its directories and its file, or none of them; RefusedError where the disk does not take them."""
    try:
        live.make_directories()
        live.save()
    except BaseException as error:
        live.remove()
        if isinstance(error, OSError):
            raise RefusedError(unwritten(f"the files of job {live.id}", live.kept.parent, error)) from error
        raise


def last_logged(logs: Path) -> int:
    """The highest number in a name of a log: a journal that was lost must not give it to another job."""
    return last_numbered(path.stem for path in logs.glob("*.log"))


def last_numbered(ids: Iterable[str]) -> int:
    found = map(_ENDS_IN_NUMBER.search, ids)
    return max((int(number[1]) for number in found if number is not None), default=0)


def _is_closed(end: End | None) -> bool:
    """Whether a daemon had said what became of the job, and not only its runner."""
    return end is not None and bool(end.state)


def _slug(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", Path(name).name).strip("-.")[:40] or "job"
