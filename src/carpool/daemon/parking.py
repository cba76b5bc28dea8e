"""Orders to park and unpark, told to the processes of a job; their answers, as one fact for the core.

A job is parked when every process of it that waits for a turn has moved its tensors; one that begins to wait later
follows. If one of them cannot, those that did come back, and the job stays where it was. What was reserved on the
host for the job (L5) is divided among its processes by what they hold: those that are told together share all of it,
those that follow what is left.
"""

from __future__ import annotations

from carpool.core.node.events import Event, JobParked, JobUnparked, MoveFailed
from carpool.core.node.model import JobState
from carpool.daemon.jobs import LiveJob
from carpool.daemon.start_and_end import SENTENCE_MAX
from carpool.daemon.turns import Member
from carpool.units import printable
from carpool.wire import messages as m

NO_LIMIT = 2**62  # for a process that follows a job which an earlier daemon parked


def park(live: LiveJob, limit_bytes: int) -> Event | None:
    """Tell every process that waits; the fact, if none can be told."""
    live.moving, live.move_trouble, live.park_bytes = set(), "", limit_bytes
    told = [member for member in live.members.values() if member.is_asking and member.peer is not None]
    parts = [_part(live, member, told) for member in told]
    for member, part in zip(told, parts, strict=True):
        _tell_to_park(live, member, part)
    return None if told else _not_connected(live)


def unpark(live: LiveJob) -> Event | None:
    live.moving, live.move_trouble = set(), ""
    for member in live.members.values():
        if member.parked is not None:
            live.moving.add(member.pid)  # one that is parked and comes back to a new daemon is told then
            if member.peer is not None:
                member.peer.send(m.Unpark())
    return None if live.moving else _not_connected(live)


def trim(live: LiveJob) -> None:
    """Tell every process that waits to give back what it can; one that is not there is told when it comes again."""
    for member in live.members.values():
        if member.is_asking and member.peer is not None:
            member.peer.send(m.Trim())


def follow(live: LiveJob, member: Member, state: JobState | None) -> bool:
    """A process begins to wait while its job is away: it goes too. False if the job is not."""
    if member.peer is None:
        return False
    if state is JobState.UNPARKING and member.parked is not None:
        member.peer.send(m.Unpark())  # the order was given before it was connected again
        return True
    if state not in (JobState.PARKING, JobState.PARKED):
        return False
    if member.parked is None:
        live.moving.discard(member.pid)  # it may have been told and asks again, having lost its connection
        to_come = [each for each in live.members.values() if not _is_told(live, each)]
        _tell_to_park(live, member, _part(live, member, to_come) if live.park_bytes is not None else NO_LIMIT)
    return True


def _is_told(live: LiveJob, member: Member) -> bool:
    return member.parked is not None or member.pid in live.moving


def _part(live: LiveJob, member: Member, among: list[Member]) -> int:
    """A process's part of what is left of the reserved bytes, beside those who are told now or will be."""
    told = [each for each in live.members.values() if _is_told(live, each)]
    taken = sum(each.parked.moved_bytes if each.parked is not None else each.park_bytes for each in told)
    left = max(0, (live.park_bytes or 0) - taken)
    held = {each.pid: live.job_page.live_bytes_of(each.slot) for each in among}
    total = sum(held.values())
    return left * held[member.pid] // total if total else left // len(among)


def _tell_to_park(live: LiveJob, member: Member, limit_bytes: int) -> None:
    live.moving.add(member.pid)
    member.park_bytes = limit_bytes
    if member.peer is not None:
        member.peer.send(m.Park(limit_bytes=limit_bytes))


def _not_connected(live: LiveJob) -> Event:
    return MoveFailed(job=live.id, reason="its process is not connected to the daemon")


def answer(live: LiveJob, member: Member, message: m.Parked | m.Unparked, state: JobState | None) -> Event | None:
    """Take in a process's answer; the fact for the core once nobody is missing."""
    live.moving.discard(member.pid)
    live.move_trouble = live.move_trouble or printable(message.reason, SENTENCE_MAX)
    if isinstance(message, m.Parked):
        member.parked = message if not message.reason else None
    elif not message.reason:
        member.parked = None
    return _finish(live, state, message.move_ns)


def dropped(live: LiveJob, member: Member, state: JobState | None) -> Event | None:
    """A process that was to move is gone."""
    if member.pid not in live.moving:
        return None
    live.moving.discard(member.pid)
    return _finish(live, state, 0)


def _finish(live: LiveJob, state: JobState | None, move_ns: int) -> Event | None:
    if live.moving or state not in (JobState.PARKING, JobState.PARKED, JobState.UNPARKING):
        return None
    trouble, live.move_trouble = live.move_trouble, ""
    away = [member for member in live.members.values() if member.parked is not None]
    if state is JobState.UNPARKING:
        return MoveFailed(job=live.id, reason=trouble) if trouble else JobUnparked(job=live.id, move_ns=move_ns)
    if state is JobState.PARKING and (trouble or not away):
        for member in away:
            if member.peer is not None:
                member.peer.send(m.Unpark())
        return MoveFailed(job=live.id, reason=trouble or "its process is gone")
    if not away:
        return None
    return JobParked(
        job=live.id,
        parked_bytes=sum(member.parked.moved_bytes for member in away if member.parked is not None),
        resident_bytes=live.job_page.live_bytes(),
        move_ns=move_ns,
        kept=next((member.parked.kept for member in away if member.parked is not None and member.parked.kept), ""),
    )
