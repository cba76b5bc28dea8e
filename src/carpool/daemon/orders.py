"""Orders of people to the daemon, one method a verb: checked here, told to the core, answered with the job as it is.

The core decides; what it would reject is refused here with its own reason, so that nothing is journalled for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping

from carpool import calls
from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.events import (
    CancelAsked,
    CheckpointAsked,
    HoldOrder,
    JobResized,
    JobSubmitted,
    MigrateAsked,
    ResumeAsked,
    SuspendAsked,
)
from carpool.core.node.lifecycle import may_move
from carpool.core.node.model import ASKED_FOR, JobState
from carpool.core.node.words.views import JobPicture
from carpool.daemon import callers, containers
from carpool.daemon.authority import Authority
from carpool.daemon.driver import Driver
from carpool.daemon.jobs import LiveJob
from carpool.daemon.people import Caller, user_of
from carpool.daemon.queries import Queries
from carpool.daemon.registry import Registry
from carpool.daemon.reload import Reload
from carpool.daemon.sentences import checkpoint_refusal, unwritten
from carpool.daemon.start_and_end import SENTENCE_MAX
from carpool.daemon.starter import Starter
from carpool.daemon.tenancy import Tenancy
from carpool.daemon.translate import read_as
from carpool.daemon.user_files import is_there, replace_file
from carpool.devices.base import DeviceFacts
from carpool.errors import RefusedError, UsageError
from carpool.units import format_count, format_share, printable


class Orders:
    def __init__(
        self,
        driver: Driver,
        *,
        authority: Authority,
        queries: Queries,
        registry: Registry,
        starter: Starter,
        devices: list[DeviceFacts],
        reload: Reload,
        tenancy: Tenancy,
        stop: Callable[[], object],
    ) -> None:
        self._driver = driver
        self._authority = authority
        self._queries = queries
        self._registry = registry
        self._starter = starter
        self._devices = devices
        self._reload = reload
        self._tenancy = tenancy
        self._stop = stop

    def carry_out(self, verb: str, arguments: Mapping[str, object], *, caller: Caller) -> calls.Answer:
        job, by = str(arguments.get("job", "")), self._authority.by(caller.uid)
        containers.check_call(verb, caller.pid)
        match verb:
            case "submit":
                callers.check_start(callers.job_around(self._driver.jobs.values(), caller.pid))
                return self.submit(arguments, caller=caller)
            case "cancel":
                reason = printable(str(arguments.get("reason", "")), SENTENCE_MAX)
                return self.cancel(job, reason, is_told=bool(arguments.get("is_told")), by=by)
            case "suspend" | "resume":
                return self.suspend(job, is_resumed=verb == "resume", by=by)
            case "resize":
                around = callers.job_around(self._driver.jobs.values(), caller.pid)
                is_admin = self._authority.is_admin(caller.uid)
                return self.resize(arguments, around=around, by=by, is_admin=is_admin)
            case "migrate":
                return self.migrate(job, str(arguments.get("device", "")), by=by)
            case "checkpoint":
                return self.checkpoint(job, str(arguments.get("file", "")), stop=bool(arguments.get("stop")), by=by)
            case "tenant":
                return self._tenancy.change(arguments, by=user_of(caller.uid).name)
            case "reload":
                return self._reload.read_again(by=user_of(caller.uid).name)
            case "stop":
                return self.stop(is_forced=bool(arguments.get("force")))
            case _:
                raise UsageError(f"the daemon knows no '{verb}'")

    def cancel(self, wanted: str, reason: str, *, is_told: bool, by: str = "") -> calls.Cancelled:
        live = self._queries.find_live(wanted)
        if live is None:
            raise self._queries.missing(wanted)
        self._driver.look_at(self._driver.jobs[live])  # an allocation of it that waits is given up (W8)
        self._driver.jobs[live].is_stopping = True
        if by and by != self._driver.jobs[live].file.spec.user:
            reason = ", ".join(filter(None, (reason, f"ordered by {by}")))
        self._driver.tell(CancelAsked(job=live, is_told=is_told, reason=reason, by=by))
        return calls.Cancelled(job=live)

    def suspend(self, wanted: str, *, is_resumed: bool, by: str = "") -> calls.JobAnswer:
        """Let a job leave the device until it is resumed, or let it come back."""
        picture = self._picture(wanted)
        if is_resumed and may_move(picture.state, ResumeAsked) and not picture.is_suspended:
            raise RefusedError(f"job {picture.id} is not suspended: {picture.reason}")
        kind, verb = (ResumeAsked, "resumed") if is_resumed else (SuspendAsked, "suspended")
        return self._hold(picture, kind(job=picture.id, by=by), verb)

    def _picture(self, wanted: str) -> JobPicture:
        """The live job of this id, name or number, as it is now."""
        job = self._queries.find_live(wanted)
        picture = self._driver.scheduler.picture_job(job, now=time.monotonic_ns()) if job is not None else None
        if picture is None:
            raise self._queries.missing(wanted)
        return picture

    def _hold(self, picture: JobPicture, event: HoldOrder, verb: str) -> calls.JobAnswer:
        """Tell the core an order that holds a job back or lets it go on. Its file keeps it for the next daemon."""
        job = picture.id
        if not may_move(picture.state, type(event)):
            raise RefusedError(f"job {job} cannot be {verb}: {picture.reason}")
        self._driver.tell(event)
        told, live = self._driver.scheduler.picture_job(job, now=time.monotonic_ns()), self._driver.jobs[job]
        live.file.held_for = [why for why in told.departures if why in ASKED_FOR] if told is not None else []
        with contextlib.suppress(OSError):  # a full disk: only a daemon that dies now would forget it
            live.save()
        return self._queries.job(job)

    def resize(
        self, arguments: Mapping[str, object], *, around: LiveJob | None = None, by: str = "", is_admin: bool = True
    ) -> calls.JobAnswer:
        """Give a live job more or less than before; `around` is the job inside which somebody asks."""
        asked = read_as(calls.Resize, arguments, what="the new size")
        picture = self._picture(asked.job)
        job, live = picture.id, self._driver.jobs[picture.id]
        if not may_move(picture.state, JobResized):
            raise RefusedError(f"job {job} cannot be resized: {picture.reason}")
        callers.check_resize(around, live, asked)
        self._driver.look_at(live)
        if asked.share_milli is not None and not asked.share_milli[0] <= asked.share_milli[1] > 0:
            least, most = asked.share_milli
            raise UsageError(
                f"the share asks for at least {format_share(least)} and at most {format_share(most)}; the second must"
                " not be smaller than the first, nor 0"
            )
        share_milli = asked.share_milli
        if share_milli is not None and not is_admin:
            least = self._tenancy.guarantee_milli(live.file.spec.tenant, share_milli[0], beside=job)
            share_milli = (least, share_milli[1])
        event = JobResized(
            job=job,
            cap_bytes=asked.cap_bytes,
            weight_milli=asked.weight_milli,
            share_milli=share_milli,
            may_end=asked.may_end,
            by=by,
        )
        reason = self._driver.scheduler.refusal_of(event)
        if reason is not None:
            raise RefusedError(reason)
        self._driver.tell(event)
        live.file.spec = self._driver.scheduler.spec_of(job)
        self._starter.resized(live)
        with contextlib.suppress(OSError):  # a full disk: only a daemon that dies now would forget it
            live.save()
        return self._queries.job(job)

    def migrate(self, wanted: str, device: str, *, by: str = "") -> calls.JobAnswer:
        """Let a job go on on another device of this node."""
        picture = self._picture(wanted)
        job = picture.id
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
        self._driver.tell(MigrateAsked(job=job, device=DeviceId(device), by=by))
        return self._queries.job(job)

    def _check_kinds(self, job: JobId, source: str | None, target: str) -> None:
        """A process keeps the GPU it was started with, however long one waits: that is said before anything else."""
        both = [each for each in self._devices if each.id in (source, target)]
        if source == target or all(each.kind.can_move_jobs for each in both):
            return
        live = self._driver.jobs[job]
        there = f"end it and start it there: carpool run --device {target} -- {shlex.join(live.file.argv)}"
        if live.turn.is_paced():
            there = f"what is not PyTorch cannot be written to a file: {there}"
        elif is_there(live.directory / "checkpoint.ready", live.file.uid):
            there = "write it to a file and start it there: carpool checkpoint, then carpool run --from"
        raise RefusedError(
            f"job {job} cannot move from {source} to {target}: a process keeps the GPU it was started with; {there}"
        )

    def checkpoint(self, wanted: str, file: str, *, stop: bool, by: str = "") -> calls.CheckpointOrder:
        """Tell a job to write itself to a file; its answer appears in its directory."""
        job = self._queries.find_live(wanted)
        if job is None:
            raise self._queries.missing(wanted)
        live = self._driver.jobs[job]
        picture = self._driver.scheduler.picture_job(job, now=time.monotonic_ns())
        if live.page is None or picture is None or picture.state is JobState.QUEUED:
            raise RefusedError(f"job {job} has not started; there is nothing to write yet")
        if picture.is_suspended:
            raise RefusedError(f"job {job} is suspended; it is written at its next steps: carpool resume {job}")
        if live.turn.is_paced():
            raise RefusedError(
                f"job {job} is no PyTorch program, and only those can be written to a file: let it save its own"
                f" state, and start it anew with: carpool run -- {shlex.join(live.file.argv)}"
            )
        if not is_there(live.directory / "checkpoint.ready", live.file.uid):
            whom = "does not record its steps" if live.members else "has not come to a loop of torch"
            raise RefusedError(
                f"job {job} {whom}: only PyTorch programs that were started with --checkpointable can be written to a"
                f" file; if it is one, start it with: carpool run --checkpointable -- {shlex.join(live.file.argv)};"
                " any other must save its own state"
            )
        refusal = checkpoint_refusal(live)
        if refusal:
            raise RefusedError(f"job {job} cannot be written to a file: {refusal}")
        number = live.page.header.checkpoint + 1
        draft = live.directory / "checkpoint.order.new"  # the job may be reading the last one
        order = json.dumps({"number": number, "file": file, "stop": stop}).encode()
        try:
            replace_file(live.directory / "checkpoint.order", order, draft, live.file.uid)
        except OSError as error:
            raise RefusedError(unwritten(f"the order to job {job}", live.directory, error)) from error
        live.page.header.checkpoint = number
        self._driver.tell(CheckpointAsked(job=job, by=by))
        return calls.CheckpointOrder(job=job, number=number, directory=str(live.directory), argv=live.file.argv)

    def submit(self, arguments: Mapping[str, object], *, caller: Caller) -> calls.Submitted:
        asked = read_as(calls.Submission, arguments, what="the submission")
        live = self._registry.new_job(
            asked.spec,
            asked.argv,
            asked.cwd,
            caller=caller,
            environment=asked.environment,
            inherited=asked.inherited,
        )
        self._driver.tell(JobSubmitted(job=live.id, spec=live.file.spec))
        if live.trouble:
            raise RefusedError(live.trouble)
        job = self._queries.live_job(live.id)
        if job is None:
            raise UsageError(f"job {live.id} vanished")
        return calls.Submitted(job=job, log=str(self._starter.log_path(live.id, caller.uid)))

    def stop(self, *, is_forced: bool) -> calls.Stopped:
        names, count = ", ".join(self._driver.jobs), len(self._driver.jobs)
        runs, whom = ("runs", "it") if count == 1 else ("run", "them")
        if names and not is_forced:
            raise RefusedError(
                f"{format_count(count, 'job')} still {runs} ({names}); cancel {whom} first, or stop with --force:"
                " programs then go on without taking turns"
            )
        self._stop()
        return calls.Stopped(pid=os.getpid())
