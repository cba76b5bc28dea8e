"""Why a job leaves its device or is held back there, how it leaves, and how it comes back.

A job has a set of departures, and may have no turn while there is any. `TABLE` has a row for each reason: who sets
it, whether the job leaves or only waits, what ends it, what brings the job back, and its sentences. The order of the
rows is the order in which they are told. A new reason is a value of `Why`, its row, and the place that sets it.

Rules
  E1  A job with a departure gets no turn. At its next boundary it leaves the device, if a row says so.
  E2  A departure is set only by the modules its row names, and ends by the events its row names, or by the module
      that set it. A job that is over or takes no turns has none.
  E3  Of several departures the first in the order of the table is the one that is told.
  P1  Only a job that waits for a turn is told to park: its program is blocked at a boundary, so nothing touches its
      memory meanwhile. A holder is asked for its turn first.
  P2  A job's bytes leave its promise when it reports that they left the device, less what it reports to have stayed;
      they are promised again before it is told to come back (L6).
  P3  A job is told to park only if its bytes fit the host budget beside those parked already (L5).
  P4  A suspended job gets no turn and does not come back until it is resumed; one that cannot be parked stays where
      it is, with the reason, and is tried again later. Whoever was to leave for others and cannot goes on.
  P5  A move that fails loses nothing: the job is then where it was before.
  P6  A job whose user said so (`--no-park`) is never told to park, and nobody counts on it: suspended, it stops and
      keeps its memory; it goes on on no other device.

This module alone changes `Job.departures` and `Job.move`, and what a device knows of moves: its claimant, its quiet
times, and what copies took. What is deliberately not here: how bytes are moved (agent/parking), who has to leave for
whom (rotation.py, leavers.py, memory/waiting.py), and who gets a turn (turns/dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from carpool.core.kernel.ids import DeviceId, Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.effects import Effect, ParkJob
from carpool.core.node.events import (
    CheckpointAsked,
    HoldOrder,
    JobDetached,
    JobExited,
    JobParked,
    JobUnparked,
    MoveFailed,
    ResumeAsked,
    SuspendAsked,
)
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import AWAY, ENDED, FOR_CLAIMANT, PARKED, WAITING, Departure, Device, Job, JobState, Why
from carpool.core.node.node import Node, is_asked_away, is_leaving, leaves_for, note_wish
from carpool.core.node.words import reasons
from carpool.errors import InternalError
from carpool.units import format_bytes

FAILS_COUNTED = 6  # the time after which a job is asked to leave again doubles so often

ParkingEvent = HoldOrder | CheckpointAsked | JobParked | JobUnparked | MoveFailed
OVER: frozenset[type] = frozenset({JobExited, JobDetached})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One reason. The sentences take the job, this departure of it, and what they need to know beside."""

    set_by: tuple[str, ...]  # the modules of core/node that do
    stays: bool = False  # room does not bring it back, and it wants nothing meanwhile: somebody has to let it
    is_stop: bool = False  # `ps` shows the job as suspended
    ended_by: frozenset[type]  # events that end it; whoever set it may end it too
    comes_back: str  # when, in words: for the diagram and for people
    held: Callable[[Job, Departure], str]  # why its turn is asked back, and why it is told to park
    stuck: Callable[[Job, Departure, str, str], str]  # at a boundary, still here: with what, and what the trouble is
    away: Callable[[Job, Departure, str], str] | None = None  # away for so long; None: like any job without room
    queued: Callable[[Job], str] | None = None  # it has not started, and does not meanwhile; None: it starts
    asked: Callable[[Job, Departure], str] | None = None  # it still computes: what it is to do at its next boundary


def _cap(job: Job) -> str:
    return format_bytes(job.spec.cap_bytes or 0)


def _need(job: Job) -> str:
    return format_bytes(job.memory.needs.total_bytes if job.memory.needs is not None else 0)


TABLE: dict[Why, Row] = {
    Why.SUSPENDED: Row(
        set_by=("moves/departures",),
        stays=True,
        is_stop=True,
        queued=lambda job: f"suspended before it started; it waits in the queue again after: carpool resume {job.id}",
        asked=lambda _, __: "it is suspended at its next boundary",
        ended_by=OVER | {ResumeAsked},
        comes_back="when it is resumed",
        held=lambda job, _: f"{job.spec.name} was suspended",
        stuck=lambda _, __, held, trouble: f"suspended with {held}: {trouble}",
        away=lambda job, _, span: (
            f"suspended for {span}: {format_bytes(job.memory.parked_bytes)} is on the host,"
            f" {format_bytes(job.memory.promised_bytes)} stays on {job.device}; go on with: carpool resume {job.id}"
        ),
    ),
    Why.SENT_AWAY: Row(
        set_by=("turns/hogs",),
        is_stop=True,
        ended_by=OVER | {ResumeAsked} | {MoveFailed},
        comes_back="when nobody else wants the device, or when it is resumed",
        held=lambda job, _: f"{job.spec.name} kept others waiting too long",
        stuck=lambda _, __, held, trouble: f"suspended with {held}: {trouble}",
        away=lambda job, _, span: (
            f"suspended for {span} because it kept others waiting: {format_bytes(job.memory.parked_bytes)} is on the"
            f" host; it comes back when nobody else is here, or with: carpool resume {job.id}"
        ),
    ),
    Why.MIGRATES: Row(
        set_by=("moves/departures",),
        asked=lambda _, why: f"it moves to {why.to} at its next boundary",
        ended_by=OVER | {MoveFailed},
        comes_back="on the other device, at once",
        held=lambda job, why: f"{job.spec.name} moves to {why.to}",
        stuck=lambda job, why, _, __: (
            f"moves to {why.to}: {format_bytes(job.memory.promised_bytes)} is about to leave {job.device}"
        ),
    ),
    Why.LENT: Row(
        set_by=("moves/lending",),
        ended_by=OVER | {JobParked, MoveFailed},
        comes_back="when there is room that no tenant is owed, in the order of the policy",
        asked=lambda _, why: f"its memory is {reasons.lent(why.lender)}",
        held=lambda job, why: f"{job.spec.name} has memory {reasons.lent(why.lender)}",
        stuck=lambda job, why, held, trouble: (
            f"leaves for {why.whom} with {held}, {reasons.lent(why.lender)}: {trouble}"
        ),
    ),
    Why.ABOVE: Row(
        set_by=("moves/lending",),
        ended_by=OVER,
        comes_back="when its tenant's other jobs leave it room, or its tenant may have more",
        held=lambda job, _: f"{job.spec.name} {reasons.above(job)}",
        stuck=lambda job, _, held, trouble: f"{reasons.above(job)} with {held}: {trouble}",
        away=lambda job, _, span: f"parked for {span}: it {reasons.above(job)}, and comes back by itself",
    ),
    Why.MAKES_ROOM: Row(
        set_by=("moves/departures",),
        ended_by=OVER | {JobParked},
        comes_back="when there is room again, in the order of the policy",
        held=lambda job, why: f"{job.spec.name} makes room for {why.whom}",
        stuck=lambda job, why, held, trouble: f"makes room for {why.whom} with {held}: {trouble}",
    ),
    Why.GIVES_WAY: Row(
        set_by=("memory/waiting",),
        ended_by=OVER | {MoveFailed},
        comes_back="when no allocation waits any more and the device was quiet",
        held=lambda job, _: f"{job.spec.name} makes room for an allocation that waits",
        stuck=lambda _, __, held, trouble: f"stopped with {held}: {trouble}",
        away=lambda job, _, span: (
            f"parked for {span}: it makes room for an allocation that waits, and comes back by itself"
        ),
    ),
    Why.TOO_LARGE: Row(
        set_by=("memory/resize",),
        stays=True,
        asked=lambda job, _: f"it was resized to {_cap(job)} and gives back what it can at its next boundary",
        ended_by=OVER,
        comes_back="when its cap is raised",
        held=lambda job, _: f"{job.spec.name} was resized to {_cap(job)}",
        stuck=lambda _, __, held, trouble: f"stopped with {held}: {trouble}",
        away=lambda job, _, span: (
            f"parked for {span}: it was resized to {_cap(job)} and needs {_need(job)};"
            f" go on with: carpool resize {job.id} --memory SIZE"
        ),
    ),
    Why.SHRINKS: Row(
        set_by=("memory/resize", "adoption"),
        asked=lambda job, _: f"it was resized to {_cap(job)} and gives back what it can at its next boundary",
        ended_by=OVER,
        comes_back="when it was measured to keep its cap",
        held=lambda job, _: f"{job.spec.name} was resized to {_cap(job)}",
        stuck=lambda job, _, held, trouble: f"gives back what it can spare: it was resized to {_cap(job)}",
    ),
}


# --- the set of departures ----------------------------------------------------------------------------------


def add(node: Node, job: Job, why: Why, departure: Departure) -> None:
    """From now on the job has this reason to leave or to be held back (E1)."""
    job.departures[why] = departure
    _touch(node, job)


def drop(node: Node, job: Job, why: Why) -> None:
    """Whoever set it takes it back."""
    if job.departures.pop(why, None) is not None:
        _touch(node, job)


def end(node: Node, job: Job, cause: type, reason: str = "") -> None:
    """End what this event ends (E2); `reason`: why a move to another device came to nothing."""
    ended = [why for why in job.departures if cause in TABLE[why].ended_by]
    for why in ended:
        del job.departures[why]
        if why is Why.MIGRATES and cause is MoveFailed:
            job.move.refused = reason
    if ended:
        _touch(node, job)


def _touch(node: Node, job: Job) -> None:
    for device in node.devices.values() if job.device is None else (node.devices[job.device],):
        ledger.touch(device)
        note_wish(device, job)


def first(job: Job) -> tuple[Row, Departure] | None:
    """The departure that is told (E3)."""
    return next(((row, job.departures[why]) for why, row in TABLE.items() if why in job.departures), None)


def held_words(job: Job) -> str:
    """Why a job that is held back gets no turn, or is told to leave."""
    found = first(job)
    return found[0].held(job, found[1]) if found is not None else ""


def queued_words(job: Job) -> str:
    """Why a queued job is not started, whatever is free."""
    told = (TABLE[why].queued for why in TABLE if why in job.departures)
    return next((queued(job) for queued in told if queued is not None), "")


def asked_words(job: Job) -> str:
    """What a job that still computes is to do at its next boundary, as the end of a sentence."""
    told = [(TABLE[why].asked, job.departures[why]) for why in TABLE if why in job.departures]
    return "".join(f"; {asked(job, why)}" for asked, why in told if asked is not None)


def reasons_of(job: Job) -> tuple[Why, ...]:
    """All its departures, in the order in which they are told (E3)."""
    return tuple(why for why in TABLE if why in job.departures) if job.departures else ()


def stays_away(job: Job) -> bool:
    """Whether it does not come back by itself, whatever is free, and wants nothing meanwhile."""
    return any(TABLE[why].stays for why in job.departures)


def is_stopped(job: Job) -> bool:
    """Whether people are shown that it is suspended."""
    return any(TABLE[why].is_stop for why in job.departures)


# --- claims and quiet times (rotation.py decides them) ------------------------------------------------------


def claim(node: Node, device: Device, claimant: Job, leaving: Sequence[Job], why: Why, *, now: Nanos) -> None:
    """These jobs leave so that the claimant has room (R3)."""
    device.claimant = claimant.id
    for job in leaving:
        add(node, job, why, Departure(since_ns=now, whom=claimant.id, lender=claimant.spec.tenant))


def close_claim(node: Node, device: Device, *, now: Nanos) -> None:
    """The claimant has its room, or cannot get it: whoever is still to leave for it goes on (R5)."""
    claimant, device.claimant = device.claimant, None
    for job in node.jobs_on(device):
        if leaves_for(job) == claimant:
            drop(node, job, Why.MAKES_ROOM)
            drop(node, job, Why.LENT)
    if not node.is_moving(device):
        begin_quiet(node, device, now=now)


def begin_quiet(node: Node, device: Device, *, now: Nanos) -> None:
    """The moves for a claimant are over: from now on the device is left to those who are there (R4)."""
    percent = node.settings.move_percent
    if device.moved_ns and percent:
        device.quiet_ns = max(node.settings.quiet_ns_min, device.moved_ns * (100 - percent) // percent)
        device.quiet_until_ns = now + device.quiet_ns
        device.moved_ns = 0


def _note_copy(device: Device, count: int, took_ns: Nanos) -> None:
    device.moved_ns += took_ns
    device.moves_bytes += count
    device.moves_ns += took_ns


# --- facts --------------------------------------------------------------------------------------------------


def take(node: Node, job: Job, event: ParkingEvent, *, now: Nanos) -> None:
    """Take in a fact; what follows from it is settled and dispatched afterwards."""
    match event:
        case CheckpointAsked():
            lifecycle.note_order(job, event, now=now)
            return  # it leaves by itself, if it was told to stop
        case SuspendAsked():
            lifecycle.note_order(job, event, now=now)
            _hold(node, job, Why.SUSPENDED, now=now)
        case ResumeAsked():
            lifecycle.note_order(job, event, now=now)
            _let_go(node, job, ResumeAsked, now=now)
        case JobParked():
            _left(node, job, event)
        case JobUnparked():
            _note_copy(node.device_of(job), job.memory.parked_bytes, event.move_ns)
            job.move.took_ns, job.move.trouble, job.move.came_ns = event.move_ns, "", now
            ledger.reserve_host(job, 0)
        case MoveFailed():
            _stayed(node, job, event.reason, now=now)
        case _:
            assert_never(event)
    lifecycle.move(node, job, type(event), now=now)
    _touch(node, job)
    device = node.devices[job.device] if job.device is not None else None
    if device is not None and device.claimant is None and not node.is_moving(device):
        begin_quiet(node, device, now=now)  # that was the last move for a claimant


def _hold(node: Node, job: Job, why: Why, *, now: Nanos) -> None:
    """Somebody asked that it leaves; asked twice, it has left since the first time."""
    add(node, job, why, job.departures.get(why) or Departure(since_ns=now))
    retry_now(job)


def _let_go(node: Node, job: Job, cause: type, *, now: Nanos) -> None:
    """Somebody asked that it comes back: if that ends a reason, it wants turns like a newcomer from now on."""
    if job.state in AWAY and any(cause in TABLE[why].ended_by for why in job.departures):
        accounts.lift_newcomer(node, job)
        lifecycle.begin_waiting(job, now=now)
    end(node, job, cause)
    retry_now(job)
    job.move.trouble = ""


def _left(node: Node, job: Job, event: JobParked) -> None:
    device = node.device_of(job)
    ledger.remove(device, job)
    before = job.memory.parked_bytes if job.state is PARKED else 0  # a process that follows brings only its own
    _note_copy(device, max(0, event.parked_bytes - before), event.move_ns)
    ledger.reserve_host(job, event.parked_bytes)
    job.move.took_ns, job.move.trouble, job.move.fails, job.move.kept = event.move_ns, "", 0, event.kept
    end(node, job, JobParked)
    ledger.note_stayed(device, job, event.resident_bytes)


def _stayed(node: Node, job: Job, reason: str, *, now: Nanos) -> None:
    """The job is where it was before (P5)."""
    device = node.device_of(job)
    job.move.trouble = reason
    if job.state is JobState.PARKING:
        end(node, job, MoveFailed, reason)
        _ask_later(node, job, now=now)
        ledger.reserve_host(job, 0)
        return
    job.move.retry_ns = now + node.settings.move_retry_ns
    ledger.remove(device, job)
    # It was promised what it needs, perhaps less than had stayed; others may have the difference by now (L1).
    ledger.note_stayed(device, job, job.memory.stayed_bytes)


def _ask_later(node: Node, job: Job, *, now: Nanos) -> None:
    """Not to be asked to leave again for a while, which also ends the claim for which it was (rotation.py)."""
    is_asked_for = is_asked_away(job)  # somebody waits for it, and is told each time why it stays
    times = 0 if is_asked_for else min(job.move.fails, FAILS_COUNTED)
    job.move.retry_ns = now + (node.settings.move_retry_ns << times)
    if not is_asked_for:  # one whose obstacle is there to stay is not asked again and again
        job.move.fails += 1


def retry_now(job: Job) -> None:
    """Somebody asked for it: what failed before may be tried again at once."""
    job.move.retry_ns = 0


def arrive(job: Job, *, now: Nanos) -> None:
    """Its memory is complete on the device: it asks for its first turn."""
    job.move.came_ns = now


def came_back_alone(node: Node, job: Job) -> None:
    """The program was interrupted while it was away and took its bytes back: they are facts, covered later (M5)."""
    device = node.device_of(job)
    ledger.reserve_host(job, 0)
    if job.lane is None:
        admission.squeeze_in(node, device, job, admission.returning_needs(node, job, device))


# --- to another device (migration.py) -----------------------------------------------------------------------


def begin_move(node: Node, job: Job, to: DeviceId, *, now: Nanos) -> None:
    add(node, job, Why.MIGRATES, Departure(since_ns=now, to=to))
    job.move.refused = ""
    retry_now(job)


def give_up_move(node: Node, job: Job, reason: str) -> None:
    """A job that was to go on on another device stays on its own, and is not tried again."""
    drop(node, job, Why.MIGRATES)
    job.move.refused = reason


def count_on_target(node: Node, job: Job, source: DeviceId | None) -> None:
    """It is counted on its target. Its room on the source is kept until it has arrived (V2); None: it needs none."""
    drop(node, job, Why.MIGRATES)
    job.move.source = source


def leave_device(node: Node, device: Device, job: Job) -> None:
    """A parked job is not counted there any more; on the next device it stands like a newcomer (V4)."""
    accounts.raise_floors(node, device)
    ledger.release(device, job)
    accounts.forget_level(job)


def close_move(job: Job) -> None:
    """It has arrived, or is over."""
    job.move.source = None


def undo_move(job: Job) -> None:
    """The copy to the target failed: it comes back to where it was at once."""
    move = job.move
    move.source, move.refused, move.trouble, move.retry_ns = None, move.trouble, "", 0


# --- leaving and coming back --------------------------------------------------------------------------------


def park_leaving(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Tell the jobs that are to leave and wait at a boundary to go (P1, P3)."""
    effects: list[Effect] = []
    for job in node.jobs_on(device):
        if job.departures and job.state is WAITING and now >= job.move.retry_ns and is_leaving(job):
            effects += _park(node, job, now=now)
    return effects


def _park(node: Node, job: Job, *, now: Nanos) -> list[Effect]:
    if not job.spec.may_park:
        job.move.trouble = reasons.NEVER_PARKED
        end(node, job, MoveFailed, reasons.NEVER_PARKED)
        return []
    wanted = admission.bytes_to_move(job)
    if not node.has_host_room(wanted):
        if not job.departures.keys().isdisjoint({*FOR_CLAIMANT, Why.GIVES_WAY}):
            _ask_later(node, job, now=now)
        job.move.trouble = reasons.host_full(wanted, node.host_bytes(), node.settings.host_bytes_max or 0)
        end(node, job, MoveFailed, job.move.trouble)
        return []
    reason = held_words(job)
    ledger.reserve_host(job, wanted)
    lifecycle.move(node, job, ParkJob, now=now)
    return [ParkJob(job=job.id, limit_bytes=wanted, reason=reason)]


def check_departures(node: Node) -> None:
    """Assert E2, L5 and P6; a failure is a bug."""
    for job in node.jobs.values():
        if job.memory.parked_bytes and job.state not in AWAY:
            raise InternalError(
                f"L5 broken: {job.state} job {job.id} has {job.memory.parked_bytes} bytes on the host"
            )
        if not job.spec.may_park and (job.state is JobState.PARKING or Why.MAKES_ROOM in job.departures):
            raise InternalError(f"P6 broken: {job.state} job {job.id} must not be parked")
        if job.state in ENDED and job.departures or job.state is JobState.UNMANAGED and is_leaving(job):
            raise InternalError(f"E2 broken: {job.state} job {job.id} has {list(job.departures)}")
