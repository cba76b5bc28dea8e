"""The questions and orders of the command line, one method a verb."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec

from carpool import __version__
from carpool.core.kernel.ids import SHARE_ONE, DeviceId, JobId
from carpool.core.node.events import CancelAsked, JobResized, JobSubmitted, MigrateAsked, ResumeAsked, SuspendAsked
from carpool.core.node.lifecycle import may_move
from carpool.core.node.model import JobState
from carpool.core.node.words.views import JobPicture
from carpool.daemon.config import DaemonConfig
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.starter import Starter
from carpool.daemon.store import kept_bytes
from carpool.daemon.translate import plain
from carpool.devices.base import DeviceFacts
from carpool.errors import CarpoolError, RefusedError, UsageError
from carpool.units import format_count, format_share
from carpool.wire import page as pages

if TYPE_CHECKING:
    from carpool.daemon.router import Router

ENDED_SHOWN = 20


class Submission(msgspec.Struct, kw_only=True):
    spec: dict[str, object]
    argv: list[str]
    cwd: str
    environment: dict[str, str]


Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Share = Annotated[int, msgspec.Meta(ge=0, le=SHARE_ONE)]


class Resize(msgspec.Struct, kw_only=True):
    """What `carpool resize` says; a thing that is not said stays as it is."""

    job: str
    cap_bytes: Positive | None = None
    weight_milli: Positive | None = None
    share_milli: tuple[Share, Share] | None = None
    may_end: bool = False


class Calls:
    def __init__(
        self,
        driver: Driver,
        starter: Starter,
        config: DaemonConfig,
        devices: list[DeviceFacts],
        stop: Callable[[], object],
    ) -> None:
        self._driver = driver
        self._starter = starter
        self._config = config
        self._devices = devices
        self._stop = stop
        self._began_ns = time.monotonic_ns()

    def answer(self, router: Router, verb: str, arguments: dict[str, object]) -> dict[str, object]:
        match verb:
            case "status":
                return self.status()
            case "ps":
                return self.ps(with_ended=bool(arguments.get("all")))
            case "submit":
                return self.submit(router, arguments)
            case "flush":
                self._driver.journal.flush()
                return {}
            case "stop":
                return self.stop(is_forced=bool(arguments.get("force")))
            case _:
                return self._answer_of_job(verb, str(arguments.get("job", "")), arguments)

    def _answer_of_job(self, verb: str, job: str, arguments: dict[str, object]) -> dict[str, object]:
        match verb:
            case "job":
                return self.job(job)
            case "cancel":
                return self.cancel(job, str(arguments.get("reason", "")), is_told=bool(arguments.get("is_told")))
            case "suspend" | "resume":
                return self.suspend(job, is_resumed=verb == "resume")
            case "resize":
                return self.resize(arguments)
            case "migrate":
                return self.migrate(job, str(arguments.get("device", "")))
            case "checkpoint":
                return self.checkpoint(job, str(arguments.get("file", "")), stop=bool(arguments.get("stop")))
            case _:
                raise UsageError(f"the daemon knows no '{verb}'")

    def status(self) -> dict[str, object]:
        self._driver.look()
        picture = self._driver.scheduler.picture(now=time.monotonic_ns())
        times = os.times()
        titles = {device.id: (device.kind, device.title) for device in self._devices}
        return {
            "version": __version__,
            "pid": os.getpid(),
            **self._config.facts(),
            "host_bytes": picture.host_bytes,
            "kept_bytes": self._kept_bytes(picture.jobs),
            "uptime_ns": time.monotonic_ns() - self._began_ns,
            "cpu_s": times.user + times.system,
            "jobs": len(self._driver.jobs),
            "journal_trouble": self._driver.journal.trouble,
            "devices": [
                {**plain(device), "kind": titles[device.id][0], "title": titles[device.id][1]}
                for device in picture.devices
            ],
        }

    def _kept_bytes(self, jobs: Iterable[JobPicture]) -> int:
        """What jobs that are not away keep of the store for their next move; on a disk they keep nothing."""
        if not self._config.park_to:
            return 0
        here = [self._driver.jobs[job.id] for job in jobs if job.id in self._driver.jobs and not job.parked_bytes]
        return kept_bytes(self._starter.places.parked, {pid for live in here for pid in live.pids()})

    def ps(self, *, with_ended: bool) -> dict[str, object]:
        self._driver.look()
        now = time.monotonic_ns()
        picture = self._driver.scheduler.picture(now=now)
        live = [self._shown(job) for job in picture.jobs if job.id in self._driver.jobs]
        self._driver.journal.flush(rows_max=0)
        ended = self._driver.journal.ended_jobs(ENDED_SHOWN) if with_ended else []
        return {**plain(picture), "jobs": ended + live, "now_ns": now}

    def job(self, wanted: str) -> dict[str, object]:
        """One job, live or ended; the newest of that name if there are several."""
        self._driver.look()
        live, policy = self._find_live(wanted), self._config.policy
        if live is not None:
            picture = self._driver.scheduler.picture_job(live, now=time.monotonic_ns())
            if picture is not None:
                return {"job": self._shown(picture), "log": str(self._starter.log_path(live)), "policy": policy}
        self._driver.journal.flush(rows_max=0)
        ended = self._driver.journal.find_ended(wanted)
        if ended is not None:
            return {"job": ended, "log": str(self._starter.log_path(str(ended["id"]))), "policy": policy}
        raise UsageError(f"no job '{wanted}' is known; see: carpool ps --all")

    def cancel(self, wanted: str, reason: str, *, is_told: bool) -> dict[str, object]:
        live = self._find_live(wanted)
        if live is None:
            raise self._missing(wanted)
        self._driver.look_at(self._driver.jobs[live])  # an allocation of it that waits is given up (W8)
        self._driver.tell(CancelAsked(job=live, is_told=is_told, reason=reason))
        return {"job": live}

    def suspend(self, wanted: str, *, is_resumed: bool) -> dict[str, object]:
        """Let a job leave the device until it is resumed, or let it come back."""
        job = self._find_live(wanted)
        picture = self._driver.scheduler.picture_job(job, now=time.monotonic_ns()) if job is not None else None
        if job is None or picture is None:
            raise self._missing(wanted)
        event = ResumeAsked(job=job) if is_resumed else SuspendAsked(job=job)
        if not may_move(picture.state, type(event)):
            raise RefusedError(f"job {job} cannot be {'resumed' if is_resumed else 'suspended'}: {picture.reason}")
        if is_resumed and not picture.is_suspended:
            raise RefusedError(f"job {job} is not suspended: {picture.reason}")
        live = self._driver.jobs[job]
        live.file.is_suspended = not is_resumed
        with contextlib.suppress(OSError):  # a full disk: only a daemon that dies now would forget it
            live.save()
        self._driver.tell(event)
        return self.job(job)

    def resize(self, arguments: dict[str, object]) -> dict[str, object]:
        """Give a live job more or less than before."""
        try:
            asked = msgspec.convert(arguments, Resize)
        except msgspec.ValidationError as error:
            raise UsageError(f"the new size cannot be read: {error}") from error
        job = self._find_live(asked.job)
        if job is None:
            raise self._missing(asked.job)
        live = self._driver.jobs[job]
        self._driver.look_at(live)
        if asked.share_milli is not None and not asked.share_milli[0] <= asked.share_milli[1] > 0:
            least, most = asked.share_milli
            raise UsageError(
                f"the share asks for at least {format_share(least)} and at most {format_share(most)}; the second must"
                " not be smaller than the first, nor 0"
            )
        event = JobResized(
            job=job,
            cap_bytes=asked.cap_bytes,
            weight_milli=asked.weight_milli,
            share_milli=asked.share_milli,
            may_end=asked.may_end,
        )
        reason = self._driver.scheduler.refusal_of(event)
        if reason is not None:
            raise RefusedError(reason)
        self._driver.tell(event)
        live.file.spec = self._driver.scheduler.spec_of(job)
        self._starter.resized(live)
        with contextlib.suppress(OSError):  # a full disk: only a daemon that dies now would forget it
            live.save()
        return self.job(job)

    def migrate(self, wanted: str, device: str) -> dict[str, object]:
        """Let a job go on on another device of this node."""
        job = self._find_live(wanted)
        picture = self._driver.scheduler.picture_job(job, now=time.monotonic_ns()) if job is not None else None
        if job is None or picture is None:
            raise self._missing(wanted)
        if not may_move(picture.state, MigrateAsked):
            raise RefusedError(f"job {job} cannot be moved: {picture.reason}")
        known = [each.id for each in self._driver.scheduler.picture(now=time.monotonic_ns()).devices]
        if device not in known:
            raise UsageError(
                f"job {job} cannot move to {device}: there is no such device; there are {', '.join(known)}"
            )
        self._check_kinds(job, picture.device, device)
        refusal = self._driver.scheduler.move_refusal(job, DeviceId(device))
        if refusal:
            raise RefusedError(refusal)
        self._driver.tell(MigrateAsked(job=job, device=DeviceId(device)))
        return self.job(job)

    def _check_kinds(self, job: JobId, source: str | None, target: str) -> None:
        """A process keeps the GPU it was started with, however long one waits: that is said before anything else."""
        if source == target or "cuda" not in {each.kind for each in self._devices if each.id in (source, target)}:
            return
        live = self._driver.jobs[job]
        there = f"end it and start it there: carpool run --device {target} -- {shlex.join(live.file.argv)}"
        if live.is_paced():
            there = f"what is not PyTorch cannot be written to a file: {there}"
        elif (live.directory / "checkpoint.ready").exists():
            there = "write it to a file and start it there: carpool checkpoint, then carpool run --from"
        raise RefusedError(
            f"job {job} cannot move from {source} to {target}: a process keeps the GPU it was started with; {there}"
        )

    def checkpoint(self, wanted: str, file: str, *, stop: bool) -> dict[str, object]:
        """Tell a job to write itself to a file; its answer appears in its directory."""
        job = self._find_live(wanted)
        if job is None:
            raise self._missing(wanted)
        live = self._driver.jobs[job]
        picture = self._driver.scheduler.picture_job(job, now=time.monotonic_ns())
        if live.page is None or picture is None or picture.state is JobState.QUEUED:
            raise RefusedError(f"job {job} has not started; there is nothing to write yet")
        if picture.is_suspended:
            raise RefusedError(f"job {job} is suspended; it is written at its next steps: carpool resume {job}")
        if live.is_paced():
            raise RefusedError(
                f"job {job} is no PyTorch program, and only those can be written to a file: let it save its own"
                f" state, and start it anew with: carpool run -- {shlex.join(live.file.argv)}"
            )
        if not (live.directory / "checkpoint.ready").exists():
            whom = "does not record its steps" if live.members else "has not come to a loop of torch"
            raise RefusedError(
                f"job {job} {whom}: only PyTorch programs that were started with --checkpointable can be written to a"
                f" file; if it is one, start it with: carpool run --checkpointable -- {shlex.join(live.file.argv)};"
                " any other must save its own state"
            )
        number = live.page.words[pages.H_CHECKPOINT] + 1
        draft = live.directory / "checkpoint.order.new"  # the job may be reading the last one
        draft.write_text(json.dumps({"number": number, "file": file, "stop": stop}))
        draft.replace(live.directory / "checkpoint.order")
        live.page.words[pages.H_CHECKPOINT] = number
        return {"job": job, "number": number, "directory": str(live.directory), "argv": live.file.argv}

    def submit(self, router: Router, arguments: dict[str, object]) -> dict[str, object]:
        try:
            asked = msgspec.convert(arguments, Submission)
        except msgspec.ValidationError as error:
            raise UsageError(f"the submission cannot be read: {error}") from error
        live = router.new_job(asked.spec, asked.argv, asked.cwd, environment=asked.environment)
        self._driver.tell(JobSubmitted(job=live.id, spec=live.file.spec))
        if live.trouble:
            raise RefusedError(live.trouble)
        picture = self._driver.scheduler.picture_job(live.id, now=time.monotonic_ns())
        if picture is None:
            raise UsageError(f"job {live.id} vanished")
        return {"job": self._shown(picture), "log": str(self._starter.log_path(live.id))}

    def stop(self, *, is_forced: bool) -> dict[str, object]:
        names, count = ", ".join(self._driver.jobs), len(self._driver.jobs)
        runs, whom = ("runs", "it") if count == 1 else ("run", "them")
        if names and not is_forced:
            raise RefusedError(
                f"{format_count(count, 'job')} still {runs} ({names}); cancel {whom} first, or stop with --force:"
                " programs then go on without taking turns"
            )
        self._stop()
        return {"pid": os.getpid()}

    def _missing(self, wanted: str) -> CarpoolError:
        """What to say of a job that nothing can be asked of."""
        self._driver.journal.flush(rows_max=0)
        ended = self._driver.journal.find_ended(wanted)
        if ended is not None:
            return RefusedError(f"job {ended['id']} is over ({ended['reason']}); see: carpool ps --all")
        return UsageError(f"no job '{wanted}' is running or queued; see: carpool ps")

    def _find_live(self, wanted: str) -> JobId | None:
        if wanted in self._driver.jobs:
            return JobId(wanted)
        named = [job_id for job_id, live in self._driver.jobs.items() if live.file.spec.name == wanted]
        if len(named) > 1:
            raise UsageError(f"{len(named)} jobs are named '{wanted}': {', '.join(named)}; use the id")
        numbered = [job_id for job_id in self._driver.jobs if wanted.isdecimal() and job_id.endswith(f"-{wanted}")]
        return next(iter(named + numbered), None)

    def _shown(self, job: JobPicture) -> dict[str, object]:
        live = self._driver.jobs.get(job.id)
        if live is None:
            return {**plain(job), "pids": [], "argv": [], "device_ns": 0, "processes": [], "gradient_bytes": None}
        shown = {"pids": sorted(live.pids()), "argv": live.file.argv, "silent_ns": _silent_ns(job, live)}
        gradients = sum(member.gradient_bytes for member in live.members.values())
        shown |= {"gradient_bytes": gradients or None}
        return {**plain(job), **shown, "device_ns": live.device_ns(), "processes": live.usage()}


def _silent_ns(job: JobPicture, live: LiveJob) -> int | None:
    """How long a holder has reached no boundary. The core counts from when it was told of the last one, and of a job
    that nobody waits for it is told only when somebody looks; the page has the moment itself."""
    reached_ns = live.boundary_ns()
    if job.silent_ns is None or not reached_ns:
        return job.silent_ns
    return max(job.silent_ns, min(job.state_ns, time.monotonic_ns() - reached_ns))
