"""Converts between what travels or is kept and core types, field by field: specs, needs, grants, pictures, log lines.

Other modules of the daemon dispatch messages and events and may know both; none builds a body from core fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from carpool.core.kernel.ids import SHARE_ONE, DeviceId, JobId, TenantId
from carpool.core.node.effects import Effect, GrantLease
from carpool.core.node.events import NeedsMeasured
from carpool.core.node.model import JobSpec, JobState, Needs
from carpool.core.node.words.views import JobPicture
from carpool.daemon.files import End, JobFile
from carpool.errors import UsageError
from carpool.units import format_bytes
from carpool.wire import messages as m

# What fits a word of the page and of the journal, whatever a peer sends.
Count = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class SpecBody(msgspec.Struct, kw_only=True):
    """The user's words about a job, as they travel."""

    name: str
    tenant: str = "default"
    weight_milli: Count = 1000
    priority: Count = 0
    cap_bytes: Count | None = None
    wait_memory_ns: Count | None = None
    on_hog: Literal["warn", "suspend", "kill"] = "suspend"
    may_oversubscribe: bool = False
    guaranteed_milli: Annotated[int, msgspec.Meta(ge=0, le=SHARE_ONE)] = 0
    limit_milli: Annotated[int, msgspec.Meta(ge=1, le=SHARE_ONE)] = SHARE_ONE
    steps: Count | None = None
    device: str | None = None
    fingerprint: str = ""


def spec_from(body: dict[str, object]) -> JobSpec:
    """Check and convert a spec; a UsageError names what is wrong."""
    try:
        said = msgspec.convert(body, SpecBody)
    except msgspec.ValidationError as error:
        raise UsageError(f"the job's options cannot be read: {error}") from error
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
        name=_printable(said.name),
        tenant=TenantId(_printable(said.tenant)),
        weight_milli=said.weight_milli,
        priority=said.priority,
        cap_bytes=said.cap_bytes,
        wait_memory_ns=said.wait_memory_ns,
        on_hog=said.on_hog,
        may_oversubscribe=said.may_oversubscribe,
        guaranteed_milli=min(said.guaranteed_milli, said.limit_milli),
        limit_milli=said.limit_milli,
        steps=said.steps,
        device=DeviceId(_printable(said.device)) if said.device else None,
        fingerprint=_printable(said.fingerprint),
    )


def _printable(text: str) -> str:
    """Bytes of a command line that are no text, as text."""
    return text.encode(errors="backslashreplace").decode()


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
    )


def picture_lost(file: JobFile, end: End | None) -> JobPicture:
    """A job that ended while no daemon ran, as far as its files tell."""
    if end is None:
        state, how = JobState.FAILED, "exit code unknown"
    elif end.signal:
        state, how = JobState.FAILED, f"ended by signal {end.signal}"
    else:
        state, how = (JobState.FAILED if end.code else JobState.FINISHED), f"exit code {end.code}"
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
        is_suspended=file.is_suspended,
        is_shrinking=False,
        leaving_for=None,
        parked_bytes=0,
        move_ns=0,
        move_trouble="",
        reason=f"it ended while no daemon ran; {how}",
    )


def grant_from(effect: GrantLease, serial: int = 0) -> m.Grant:
    return m.Grant(lane_bytes=effect.lane_bytes, is_shared=effect.is_shared, serial=serial)


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
