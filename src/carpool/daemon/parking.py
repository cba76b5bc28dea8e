"""Orders to park and unpark, told to the processes of a job; their answers, as one fact for the core.

A job is parked when every process of it that waits for a turn has moved its tensors; one that begins to wait later
follows. If one of them cannot, those that did come back, and the job stays where it was.
"""

from __future__ import annotations

from carpool.core.events import Event, JobParked, JobUnparked, MoveFailed
from carpool.core.model import JobState
from carpool.daemon.jobs import LiveJob, Member
from carpool.wire import messages as m

NO_LIMIT = 2**62  # a process that follows was counted when its job was parked


def park(live: LiveJob, limit_bytes: int) -> Event | None:
    """Tell every process that waits; the fact, if none can be told."""
    return _order(
        live, [member for member in live.members.values() if member.is_asking], m.Park(limit_bytes=limit_bytes)
    )


def unpark(live: LiveJob) -> Event | None:
    return _order(live, [member for member in live.members.values() if member.parked is not None], m.Unpark())


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
        live.moving.add(member.pid)
        member.peer.send(m.Park(limit_bytes=NO_LIMIT))
    return True


def answer(live: LiveJob, member: Member, message: m.Parked | m.Unparked, state: JobState | None) -> Event | None:
    """Take in a process's answer; the fact for the core once nobody is missing."""
    live.moving.discard(member.pid)
    live.move_trouble = live.move_trouble or message.reason
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


def _order(live: LiveJob, members: list[Member], message: m.Park | m.Unpark) -> Event | None:
    live.moving, live.move_trouble = set(), ""
    for member in members:
        if member.peer is not None:
            member.peer.send(message)
        elif isinstance(message, m.Park):
            continue
        live.moving.add(member.pid)  # one that is parked and comes back to a new daemon is told then
    if live.moving:
        return None
    return MoveFailed(job=live.id, reason="its process is not connected to the daemon")


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
        resident_bytes=live.live_bytes(),
        move_ns=move_ns,
    )
