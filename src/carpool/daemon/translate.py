"""Converts between what travels or is kept and core types, field by field: specs, needs, grants, pictures, log lines.

Other modules of the daemon dispatch messages and events and may know both; none builds a body from core fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from carpool import calls
from carpool.core.kernel.ids import DeviceId, JobId, TenantId
from carpool.core.node.effects import Effect, GrantLease
from carpool.core.node.events import NeedsMeasured
from carpool.core.node.model import ENDED, JobSpec, JobState, Needs, Why
from carpool.core.node.words.views import DevicePicture, JobPicture
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.sentences import limit_loss, orphanage
from carpool.daemon.start_and_end import End
from carpool.errors import UsageError
from carpool.units import format_bytes, printable
from carpool.wire import messages as m

Said = TypeVar("Said")


def read_as(kind: type[Said], body: Mapping[str, object], *, what: str) -> Said:
    """What somebody sent as the type that it should be; a UsageError says what of it cannot be read."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} cannot be read: {error}") from error
    except UnicodeEncodeError as error:  # msgspec's own, of a text where a number or a choice should be
        half = ascii(error.object[error.start : error.end])
        raise UsageError(f"{what} cannot be read: {half} is half a character") from error


def spec_said(body: Mapping[str, object]) -> calls.Spec:
    """A spec as it travels; a UsageError names what cannot be read."""
    return read_as(calls.Spec, body, what="the job's options")


def spec_from(said: calls.Spec) -> JobSpec:
    """Check and convert a spec; a UsageError names what is wrong."""
    if said.weight_milli < 1:
        raise UsageError(f"the weight {said.weight_milli / 1000} is not above 0")
    for name, value in (
        ("memory cap", said.cap_bytes),
        ("wait for memory", said.wait_memory_ns),
        ("number of steps", said.steps),
    ):
        if value is not None and value < 1:
            raise UsageError(f"the {name} {value} is not above 0")
    return JobSpec(
        name=printable(said.name),
        tenant=TenantId(printable(said.tenant)),
        weight_milli=said.weight_milli,
        priority=said.priority,
        cap_bytes=said.cap_bytes,
        wait_memory_ns=said.wait_memory_ns,
        on_hog=said.on_hog,
        may_park=said.may_park,
        may_oversubscribe=said.may_oversubscribe,
        guaranteed_milli=min(said.guaranteed_milli, said.limit_milli),
        limit_milli=said.limit_milli,
        steps=said.steps,
        device=DeviceId(printable(said.device)) if said.device else None,
        fingerprint=printable(said.fingerprint),
    )


def needs_from(job: JobId, measured: Sequence[m.Measured], *, step_ns: int) -> NeedsMeasured:
    """What the processes of a job need together: they hold their memory, and compute, at the same time."""
    return NeedsMeasured(
        job=job,
        needs=Needs(
            persistent_bytes=sum(each.persistent_bytes for each in measured),
            ephemeral_bytes=sum(each.ephemeral_bytes for each in measured),
            overhead_bytes=sum(each.overhead_bytes for each in measured),
        ),
        step_ns=step_ns or None,
        steps_total=max((each.steps_total for each in measured), default=0) or None,
    )


def picture_lost(file: JobFile, end: End | None) -> JobPicture:
    """A job that ended while no daemon ran, as far as its files tell."""
    how = ""
    if end is not None and end.state in ENDED:
        state = JobState(end.state)
    elif end is None:
        state, how = JobState.FAILED, "exit code unknown"
    else:
        state, how = JobState.FAILED if end.code or end.signal else JobState.FINISHED, end.how()
    return JobPicture(
        id=JobId(file.job),
        name=file.spec.name,
        tenant=file.spec.tenant,
        state=state,
        device=DeviceId(file.device) if file.device else None,
        lane=None,
        priority=file.spec.priority,
        weight_milli=file.spec.weight_milli,
        steps=0,
        steps_declared=file.spec.steps,
        step_ns=None,
        remaining_ns=None,
        arrived_ns=0,
        state_ns=0,
        served_ns=0,
        waited_ns=0,
        spent_ns={},
        waited_for_ns={},
        silent_ns=None,
        is_hog=False,
        needs=file.needs,
        promised_bytes=0,
        live_bytes=0,
        pending_bytes=0,
        cap_bytes=file.spec.cap_bytes,
        guaranteed_milli=file.spec.guaranteed_milli,
        limit_milli=file.spec.limit_milli,
        is_suspended=Why.SUSPENDED in file.held_for,
        is_shrinking=False,
        leaving_for=None,
        parked_bytes=0,
        move_ns=0,
        move_trouble="",
        reason=f"it ended while no daemon ran; {how}" if how else end.reason if end is not None else "",
        user=file.spec.user,
    )


def grant_from(effect: GrantLease, serial: int = 0) -> m.Grant:
    return m.Grant(lane_bytes=effect.lane_bytes, is_shared=effect.is_shared, serial=serial)


def job_answer(picture: JobPicture, live: LiveJob | None, *, now: int) -> calls.Job:
    """A job as people see it: the core's picture, with what its page and its processes say at this moment."""
    facts = plain(picture)
    if live is not None:
        facts |= {"name": live.name, "argv": live.file.argv, "uid": live.file.uid}
    if live is not None and not live.is_unstarted:
        gradients = sum(member.gradient_bytes for member in live.members.values())
        facts |= {
            "steps": live.turn.steps() or picture.steps,
            "live_bytes": live.job_page.live_bytes() if live.page is not None else picture.live_bytes,
            "silent_ns": _silent_ns(picture, live, now=now),
            "remaining_ns": _remaining_ns(picture, live),
            "pids": sorted(live.pids()),
            "gradient_bytes": gradients or None,
            "device_ns": live.job_page.device_ns(),
            "processes": live.job_page.usage(),
            "orphans": live.living_orphans(),
            "limit_loss": limit_loss(live),
            "start": live.how_it_started(),
            "container": live.file.container,
            "reason": "; ".join(filter(None, (orphanage(live), picture.reason))),
        }
    return msgspec.convert(facts, calls.Job)


def _silent_ns(picture: JobPicture, live: LiveJob, *, now: int) -> int | None:
    """How long a holder has reached no boundary. The core counts from when it was told of the last one, and of a job
    that nobody waits for it is told now and then, up to ten seconds late; the page has the moment itself."""
    reached_ns = live.turn.boundary_ns()
    if picture.silent_ns is None or not reached_ns:
        return picture.silent_ns
    return min(picture.state_ns, now - reached_ns)


def _remaining_ns(picture: JobPicture, live: LiveJob) -> int | None:
    """What is left of declared steps once those are taken off that the core has not heard of."""
    unheard = max(0, live.turn.steps() - picture.steps)
    if picture.remaining_ns is None or picture.steps_declared is None or picture.step_ns is None:
        return picture.remaining_ns
    return max(0, picture.remaining_ns - unheard * picture.step_ns)


def ended_answer(body: dict[str, object]) -> calls.Job | None:
    """A job that is over, as the journal kept it; None for what cannot be read, of another version for one."""
    try:
        return msgspec.convert({"refusals": "", **body}, calls.Job)
    except msgspec.ValidationError:
        return None


def device_answer(
    picture: DevicePicture, jobs: Iterable[JobPicture], shown: Mapping[JobId, calls.Job]
) -> calls.Device:
    """A device as people see it, with the bytes that its jobs hold at this moment."""
    here = [job for job in jobs if job.device == picture.id and job.id in shown]
    newer = sum(shown[job.id].live_bytes - job.live_bytes for job in here)
    return msgspec.convert(plain(picture) | {"live_bytes": picture.live_bytes + newer}, calls.Device)


def turn_answer(picture: JobPicture) -> calls.Turn:
    """The turn that a job holds."""
    return calls.Turn(
        job=picture.id,
        device=picture.device or "",
        quantum_ns=picture.quantum_ns or 0,
        change_ns=picture.change_ns,
        why=picture.quantum_why,
    )


def plain(value: object) -> dict[str, object]:
    """A picture as it travels and is kept: plain lists, dictionaries, words and numbers."""
    result = msgspec.to_builtins(value)
    assert isinstance(result, dict)
    return result


_LOG_NAMES = {
    "GrantLease": "lease.granted",
    "RecallLease": "lease.recalled",
    "RevokeLease": "lease.revoked",
    "StartJob": "job.started",
    "RefuseJob": "job.refused",
    "DenyMemory": "job.denied",
    "ParkJob": "job.parking",
    "UnparkJob": "job.unparking",
    "MoveJob": "job.moved",
    "TrimJob": "job.trimming",
    "StopJob": "job.stopped",
    "CloseJob": "job.ended",
    "ExplainWait": "job.waits",
    "NameHog": "job.hog",
    "SetCap": "job.cap",
    "SetCompute": "job.compute",
    "ResizeLane": "lane.resized",
    "RememberJob": "job.remembered",
    "RejectEvent": "event.rejected",
}


def log_line(effect: Effect) -> str:
    """One line an effect: its name, then facts with units."""
    facts = []
    for key, value in msgspec.to_builtins(effect).items():
        if key.endswith("_bytes"):
            name = "bytes" if key == "lane_bytes" else key.removesuffix("_bytes")
            facts.append(f"{name}={format_bytes(value).replace(' ', '')}")
        elif isinstance(value, list | tuple):
            facts.append(f"{key}={','.join(value) or 'none'}")
        elif isinstance(value, str) and " " in value:
            facts.append(f'{key}="{value}"')
        elif not isinstance(value, dict):
            facts.append(f"{key}={value}")
    return f"{_LOG_NAMES[type(effect).__name__]} {' '.join(facts)}"
