"""Questions: what jobs, devices and the daemon are like now. They change nothing, and nothing is journalled for them.

An answer is the core's picture with what pages and processes say at this moment (steps, bytes, the newest boundary):
those are read, not told to the core. The driver looks at pages by its own timer (driver.py).

Rules
  I4  A question tells the core no fact of its own and adds no row to the journal, however often it is asked.
  I5  What an answer shows is no older than the question: a turn that went on without the daemon (B6) is heard first,
      as it would be before the next decision; steps and bytes are those of the pages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from carpool import __version__, calls
from carpool.core.kernel.ids import JobId
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.words.views import JobPicture
from carpool.daemon import processes, warm_parents
from carpool.daemon.authority import Authority
from carpool.daemon.jobs import LiveJob
from carpool.daemon.log_file import dropped_lines
from carpool.daemon.observers import Observers
from carpool.daemon.reload import InForce
from carpool.daemon.sentences import checkpoint_refusal
from carpool.daemon.starter import Starter
from carpool.daemon.store import kept_bytes
from carpool.daemon.tenancy import Tenancy
from carpool.daemon.translate import device_answer, ended_answer, job_answer, turn_answer
from carpool.devices.base import DeviceFacts
from carpool.errors import CarpoolError, RefusedError, UsageError
from carpool.journal.writer import Journal
from carpool.policies import Guarded

ENDED_SHOWN = 20


class Queries:
    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Mapping[JobId, LiveJob],
        journal: Journal,
        *,
        authority: Authority,
        tenancy: Tenancy,
        starter: Starter,
        in_force: InForce,
        policy: Guarded,
        devices: list[DeviceFacts],
        observers: Observers,
        hear: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._journal = journal
        self._authority = authority
        self._tenancy = tenancy
        self._starter = starter
        self._in_force = in_force
        self._policy = policy
        self._devices = devices
        self._observers = observers
        self._hear = hear  # what already happened and the core does not know: turns that were passed on
        self._began_ns = time.monotonic_ns()

    def answer(self, verb: str, arguments: Mapping[str, object], *, uid: int) -> calls.Answer | None:
        """The answer to this user; None if the verb is no question."""
        match verb:
            case "status":
                return self.status()
            case "tenants":
                return self._tenancy.show()
            case "ps":
                return self.ps(with_ended=bool(arguments.get("all")))
            case "job":
                return self.job(str(arguments.get("job", "")), uid=uid)
            case _:
                return None

    def status(self) -> calls.Status:
        self._hear()
        picture = self._scheduler.picture(now=time.monotonic_ns())
        times = os.times()
        titles = {device.id: (device.kind.name, device.title) for device in self._devices}
        shown = {job.id: self._shown(job) for job in picture.jobs if job.id in self._jobs}
        devices = []
        for device in picture.devices:
            kind, title = titles[device.id]
            facts = msgspec.structs.asdict(device_answer(device, picture.jobs, shown))
            devices.append(calls.DeviceStatus(**facts, kind=kind, title=title))
        return calls.Status(
            version=__version__,
            pid=os.getpid(),
            run=str(self._starter.places.run),
            state=str(self._starter.places.state),
            **self._in_force.config.facts(self._policy),
            host_bytes=picture.host_bytes,
            kept_bytes=self._kept_bytes(picture.jobs),
            uptime_ns=time.monotonic_ns() - self._began_ns,
            cpu_s=times.user + times.system,
            jobs=len(self._jobs),
            journal_bytes=self._journal.used_bytes,
            journal_waiting_rows=self._journal.waiting_rows,
            journal_dropped_rows=self._journal.dropped_rows,
            log_dropped_lines=dropped_lines(),
            descriptor_trouble=processes.descriptor_trouble(),
            journal_trouble=self._journal.trouble or self._observers.dropped.get(type(self._journal).__name__, ""),
            observers_dropped=dict(self._observers.dropped),
            policy_trouble=self._policy.trouble or self._policy.slowness,
            devices=devices,
            turns=[turn_answer(job) for job in picture.jobs if job.silent_ns is not None],
            warm_parents=warm_parents.find(self._starter.places.run),
        )

    def _kept_bytes(self, jobs: Iterable[JobPicture]) -> int:
        """What jobs that are not away keep of the store for their next move; on a disk they keep nothing."""
        if not self._in_force.config.park_to:
            return 0
        here = [self._jobs[job.id] for job in jobs if job.id in self._jobs and not job.parked_bytes]
        return kept_bytes(self._starter.places.parked, {pid for live in here for pid in live.pids()})

    def ps(self, *, with_ended: bool) -> calls.Node:
        self._hear()
        now = time.monotonic_ns()
        picture = self._scheduler.picture(now=now)
        live = {job.id: _listed(self._shown(job)) for job in picture.jobs if job.id in self._jobs}
        return calls.Node(
            policy=picture.policy,
            host_bytes=picture.host_bytes,
            host_bytes_max=picture.host_bytes_max,
            devices=[device_answer(device, picture.jobs, live) for device in picture.devices],
            jobs=[*(self._ended() if with_ended else ()), *live.values()],
            now_ns=now,
        )

    def _ended(self) -> list[calls.Job]:
        found = [ended_answer(body) for body in self._journal.ended_jobs(ENDED_SHOWN)]
        return [job for job in found if job is not None]

    def job(self, wanted: str, *, uid: int | None = None) -> calls.JobAnswer:
        """One job, live or ended; the newest of that name if there are several."""
        self._hear()
        live, policy = self.find_live(wanted, uid=uid), self._in_force.config.policy
        if live is not None:
            shown = self.live_job(live)
            if shown is not None:
                return calls.JobAnswer(
                    job=shown, log=str(self._starter.log_path(live, self._jobs[live].file.uid)), policy=policy
                )
        ended = self._find_ended(wanted, uid)
        if ended is not None:
            return calls.JobAnswer(job=ended, log=str(self._starter.log_path(ended.id, ended.uid)), policy=policy)
        raise UsageError(f"no job '{wanted}' is known; see: carpool ps --all")

    def live_job(self, job: JobId) -> calls.Job | None:
        picture = self._scheduler.picture_job(job, now=time.monotonic_ns())
        if picture is None:
            return None
        live, shown = self._jobs.get(job), self._shown(picture)
        return shown if live is None else msgspec.structs.replace(shown, unwritable=checkpoint_refusal(live))

    def find_live(self, wanted: str, *, uid: int | None = None) -> JobId | None:
        """The live job of this id, name or number; of jobs of one name, this user's own come first."""
        if wanted in self._jobs:
            return JobId(wanted)
        named = [job_id for job_id, live in self._jobs.items() if live.name == wanted]
        own = [job_id for job_id in named if self._jobs[job_id].file.uid == uid]
        if own or (uid is not None and not self._authority.sees_names(uid)):
            named = own
        if len(named) > 1:
            raise UsageError(f"{len(named)} jobs are named '{wanted}': {', '.join(named)}; use the id")
        numbered = [job_id for job_id in self._jobs if wanted.isdecimal() and job_id.endswith(f"-{wanted}")]
        return next(iter(named + numbered), None)

    def missing(self, wanted: str, *, uid: int | None = None) -> CarpoolError:
        """What to say of a job that nothing can be asked of."""
        ended = self._find_ended(wanted, uid)
        if ended is not None:
            return RefusedError(f"job {ended.id} is over ({ended.reason}); see: carpool ps --all")
        return UsageError(f"no job '{wanted}' is running or queued; see: carpool ps")

    def _find_ended(self, wanted: str, uid: int | None) -> calls.Job | None:
        knows_names = uid is None or self._authority.sees_names(uid)
        found = self._journal.find_ended(wanted, uid=uid, knows_names=knows_names)
        return ended_answer(found) if found is not None else None

    def _shown(self, picture: JobPicture) -> calls.Job:
        return job_answer(picture, self._jobs.get(picture.id), now=time.monotonic_ns())


def _listed(job: calls.Job) -> calls.Job:
    """A job in a list of all: one with megabytes of arguments must not make the list too long for everybody."""
    return msgspec.structs.replace(job, argv=calls.cut_arguments(job.argv))
