"""A job's life: the tables of legal moves, and the one place where a state or a lease changes.

A move is caused by an event (a fact about the job) or by an effect (an order of the scheduler). A pair that
is not in the table is illegal: an event is then rejected and leaves everything untouched; an effect is a bug.
Events that never move a job (ProgressSeen, NeedsMeasured on a settled job, CancelAsked on a live one) stand in
the table too, as moves to the same state, so that the table alone says what may arrive when. Where facts decide
between several targets, `OPEN_MOVES` has all of them. `docs/lease.md` shows the tables as diagrams (`make docs`).

A state change also updates what depends on it, so that nobody has to remember it: the fair levels of those who want
turns (A2), the row in which the wall time goes, the queue, and the marks of step times (A3). It touches the device if
bytes, or the wish for bytes, change hands with it.

Rules
  A4  A job's wall time is the sum of its rows, exactly; what it waited for a turn is told apart by who had it. A
      waiting job that may not run for want of memory waits for memory. One that is to leave the device is as good as
      parked. One whose limit lets it have no turn waits for nobody, up to the very moment when it does.
  A5  An account outlives the driver. What a job is known to have done without one, keep its turn or stay as it was,
      stands in that row. What nobody knows is a row of its own: also what a driver that was killed had not noted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from carpool.core.kernel.ids import SHARE_ONE, Nanos
from carpool.core.node import accounts
from carpool.core.node.effects import (
    Effect,
    GrantLease,
    ParkJob,
    RecallLease,
    RefuseJob,
    RevokeLease,
    StartJob,
    UnparkJob,
)
from carpool.core.node.events import (
    CancelAsked,
    CheckpointAsked,
    HoldOrder,
    JobDetached,
    JobExited,
    JobForgotten,
    JobParked,
    JobResized,
    JobUnparked,
    LeaseAsked,
    LeaseReturned,
    MigrateAsked,
    MoveFailed,
    NeedsMeasured,
    PersonsOrder,
    ProgramStarted,
    ProgressSeen,
    ResumeAsked,
    StartPutOff,
    SuspendAsked,
)
from carpool.core.node.memory import ledger
from carpool.core.node.model import (
    AWAY,
    BLOCKED,
    ENDED,
    ROWS,
    STARTING,
    WAITING,
    WANTING,
    Account,
    Device,
    Job,
    JobState,
    Lease,
    LeaseState,
    Order,
)
from carpool.core.node.node import Node, is_holding, is_leaving, note_wish, start_ns, was_given
from carpool.errors import InternalError
from carpool.units import MS

UNNOTED_NS = 500 * MS  # so old may be the last note of an account when its driver is killed
ORDERS_KEPT = 8  # of people about one job
ORDERED: dict[type, str] = {
    CancelAsked: "cancelled",
    JobResized: "resized",
    SuspendAsked: "suspended",
    ResumeAsked: "resumed",
    MigrateAsked: "moved",
    CheckpointAsked: "written to a file",
}

Standing = tuple[str | None, Nanos, tuple[Order, ...]]  # where a job's time goes, since when, and people's orders

_S = JobState
_L = LeaseState
_LIVE = [state for state in JobState if state not in ENDED and state is not JobState.QUEUED]
_MANAGED = [state for state in _LIVE if state is not JobState.UNMANAGED]

JOB_MOVES: dict[tuple[JobState, type], JobState] = {
    (_S.QUEUED, StartJob): _S.STARTING,
    (_S.QUEUED, RefuseJob): _S.FAILED,
    (_S.QUEUED, CancelAsked): _S.CANCELLED,
    (_S.QUEUED, JobExited): _S.FINISHED,
    (_S.STARTING, LeaseAsked): _S.WAITING,
    (_S.STARTING, StartPutOff): _S.QUEUED,
    (_S.IDLE, LeaseAsked): _S.WAITING,
    (_S.UNMANAGED, LeaseAsked): _S.WAITING,
    (_S.WAITING, GrantLease): _S.RUNNING,
    (_S.BLOCKED, GrantLease): _S.RUNNING,
    (_S.BLOCKED, LeaseAsked): _S.WAITING,
    (_S.BLOCKED, LeaseReturned): _S.WAITING,
    (_S.PROFILING, NeedsMeasured): _S.RUNNING,
    (_S.RUNNING, LeaseReturned): _S.WAITING,
    (_S.PROFILING, LeaseReturned): _S.WAITING,
    (_S.WAITING, LeaseReturned): _S.IDLE,
    # A return may cross a revocation on its way: the turn is gone, but the wish for the next one counts.
    (_S.IDLE, LeaseReturned): _S.WAITING,
    (_S.STARTING, LeaseReturned): _S.WAITING,
    (_S.RUNNING, RevokeLease): _S.IDLE,
    (_S.PROFILING, RevokeLease): _S.IDLE,
    (_S.WAITING, ParkJob): _S.PARKING,
    (_S.PARKING, JobParked): _S.PARKED,
    (_S.PARKING, MoveFailed): _S.WAITING,
    (_S.PARKED, JobParked): _S.PARKED,  # another process of it followed
    (_S.PARKED, UnparkJob): _S.UNPARKING,
    (_S.UNPARKING, JobUnparked): _S.WAITING,
    (_S.UNPARKING, MoveFailed): _S.PARKED,
    # A Ctrl-C reached its program: it took its bytes back by itself before it went on.
    **{(state, LeaseReturned): _S.IDLE for state in AWAY},
    **{(state, JobExited): _S.FINISHED for state in _LIVE},
    **{(state, JobDetached): _S.UNMANAGED for state in _MANAGED},
    **{(state, ProgressSeen): state for state in _LIVE},
    **{(state, ProgramStarted): state for state in _LIVE},  # its processes may have spoken first
    **{(state, CancelAsked): state for state in _LIVE},
    **{(state, CheckpointAsked): state for state in _LIVE},
    **{(state, JobResized): state for state in [_S.QUEUED, *_LIVE]},
    **{(state, order): state for state in [_S.QUEUED, *_MANAGED] for order in get_args(HoldOrder)},
    **{(state, MigrateAsked): state for state in _MANAGED},
    **{(state, NeedsMeasured): state for state in _MANAGED if state not in (_S.STARTING, _S.PROFILING)},
    **{(state, JobForgotten): state for state in ENDED},  # it is then in no state at all
}

# Moves that the facts decide: whether the job wants more, how its program ended, whether its needs are known, whether
# an allocation waits (the program then goes on only with the next turn), or whether it is parked already when it is
# taken back. The target in the table above is the usual one.
OPEN_MOVES: dict[tuple[JobState, type], frozenset[JobState]] = {
    **{(state, LeaseReturned): frozenset({_S.WAITING, _S.IDLE}) for state in _MANAGED},
    **{(state, JobExited): ENDED for state in [_S.QUEUED, *_LIVE]},
    **{(state, GrantLease): frozenset({_S.RUNNING, _S.PROFILING}) for state in (_S.WAITING, _S.BLOCKED)},
    **{(state, RevokeLease): frozenset({_S.IDLE, _S.BLOCKED}) for state in (_S.RUNNING, _S.PROFILING)},
    (_S.QUEUED, StartJob): frozenset({_S.STARTING, _S.PARKED}),
    (_S.BLOCKED, ProgressSeen): frozenset({_S.BLOCKED, _S.IDLE}),
}

# A lease exists from its grant to its return; None is "no lease".
LEASE_MOVES: dict[tuple[LeaseState | None, type], LeaseState | None] = {
    (None, GrantLease): _L.HELD,
    (_L.HELD, RecallLease): _L.RECALLED,
    (_L.HELD, LeaseReturned): None,
    (_L.RECALLED, LeaseReturned): None,
    (_L.HELD, RevokeLease): None,
    (_L.RECALLED, RevokeLease): None,
    (_L.HELD, JobExited): None,
    (_L.RECALLED, JobExited): None,
    (_L.HELD, JobDetached): None,
    (_L.RECALLED, JobDetached): None,
}


# States between which bytes, or the wish for them, change hands.
_ROOM = {state: "turns" for state in JobState} | {
    _S.QUEUED: "queue",
    _S.UNMANAGED: "outside",
    **dict.fromkeys(AWAY, "away"),
    **dict.fromkeys(ENDED, "over"),
}


def may_move(state: JobState, cause: type) -> bool:
    return (state, cause) in JOB_MOVES


def move(node: Node, job: Job, cause: type, *, now: Nanos, to: JobState | None = None) -> None:
    """Move a job by the table; `to` chooses where the table leaves a move open."""
    was = job.state
    target = JOB_MOVES.get((was, cause))
    if target is None or not (to is None or to is target or to in OPEN_MOVES.get((was, cause), ())):
        raise InternalError(f"job {job.id} cannot go from {was} by {cause.__name__}" + (f" to {to}" if to else ""))
    target = target if to is None else to
    is_between_turns = was in WANTING and target in WANTING  # most moves are, and little depends on them
    if not is_between_turns or cause is LeaseAsked or target is BLOCKED:
        _note_wishes(node, job, cause, target)
    is_at_boundary = cause is LeaseReturned or cause is LeaseAsked
    # Of others: what was seen of its own allocations in the turn is old, and the driver looks again first.
    is_pressed = is_at_boundary and (was is BLOCKED or node.is_pressed(node.device_of(job)))
    job.state, job.state_since_ns = target, now
    if not is_between_turns and job.device is not None:
        note_wish(node.devices[job.device], job)
    if target is WAITING and was not in AWAY:
        job.wanting_since_ns = now
    if was is not target and (was is _S.QUEUED or was is STARTING):
        _leave_queue(node, job, was, target, now=now)
    if not is_between_turns and _ROOM[was] != _ROOM[target]:
        for device in node.devices.values():
            ledger.touch(device)
    elif is_pressed:
        ledger.touch(node.device_of(job))  # now it may be parked for an allocation that waits (W5)
    set_row(node, job, now=now)


def _leave_queue(node: Node, job: Job, was: JobState, target: JobState, *, now: Nanos) -> None:
    """A job is let in, comes to its first turn, or goes back to its place in the queue."""
    if was is _S.QUEUED:
        node.queue.remove(job.id)
        if target is STARTING and node.settings.starts_max is not None:
            node.starts[job.id] = now
        return
    note_started(node, job)
    if target is _S.QUEUED:
        later = (at for at, other in enumerate(node.queue) if node.jobs[other].arrived_ns > job.arrived_ns)
        node.queue.insert(next(later, len(node.queue)), job.id)


def note_started(node: Node, job: Job) -> None:
    """Its program runs, or will not: another may be started (M6)."""
    if node.starts.pop(job.id, None) is not None and node.queue:
        for device in node.devices.values():
            ledger.touch(device)


def put_off_starts(node: Node, trouble: str, *, now: Nanos) -> None:
    """The machine can start nobody now; it is tried again soon (M7)."""
    node.starts_from_ns, node.start_trouble = now + node.settings.start_retry_ns, trouble


def review_starts(node: Node, *, now: Nanos) -> None:
    """Time passed: starts that take too long count no more, and those that were put off are tried again."""
    due = node.next_start_look()
    if due is None or due > now:
        return
    node.starts_from_ns, node.start_trouble = 0, ""
    late = [job_id for job_id, since in node.starts.items() if now - since >= node.settings.start_patience_ns]
    for job_id in late:
        del node.starts[job_id]
    for device in node.devices.values():
        ledger.touch(device)


def _note_wishes(node: Node, job: Job, cause: type, target: JobState) -> None:
    """Before the set of jobs that want turns changes: note its levels, and clamp a newcomer to them (A2)."""
    if job.device is None:
        return
    was_wanting, is_wanting = job.state in WANTING, target in WANTING
    if cause is LeaseAsked or (is_wanting and not was_wanting):
        # A job that was parked for others wanted turns all along: it keeps its level.
        slack = accounts.rotation_slack(node, job) if cause is JobUnparked else 0
        accounts.lift_newcomer(node, job, slack=slack)
    elif target is BLOCKED or (not is_wanting and (was_wanting or cause in (LeaseReturned, JobExited, JobDetached))):
        accounts.raise_floors(node, node.device_of(job))


def unblock(node: Node, job: Job, *, now: Nanos) -> None:
    """Its allocation waits no more: it goes on, and asks for a turn at its next point."""
    move(node, job, ProgressSeen, now=now, to=JobState.IDLE)


def begin_waiting(job: Job, *, now: Nanos) -> None:
    """A job that was away because somebody asked for it wants turns from now on."""
    job.wanting_since_ns = now


def enqueue(node: Node, job: Job) -> None:
    """Take in a new job."""
    node.jobs[job.id] = job
    node.queue.append(job.id)
    for device in node.devices.values():
        ledger.touch(device)


def forget(node: Node, job: Job) -> None:
    """Drop an ended job from the state; what was learnt of its program stays."""
    del node.jobs[job.id]


def note_reason(job: Job, reason: str) -> None:
    """Why it waits in the queue, runs unmanaged, or ended."""
    job.reason = reason


def order_end(job: Job, reason: str = "") -> None:
    """Somebody wants the job to end; of several reasons the first is told, unless a later one gives its own."""
    job.ending.is_asked = True
    job.ending.reason = reason or job.ending.reason


# --- leases -------------------------------------------------------------------------------------------------


def move_lease(node: Node, job: Job, cause: type, *, now: Nanos) -> None:
    """Move a job's lease by the table."""
    lease = job.lease
    before = lease.state if lease is not None else None
    try:
        after = LEASE_MOVES[(before, cause)]
    except KeyError:
        raise InternalError(f"the lease of {job.id} cannot go from {before} by {cause.__name__}") from None
    if after is None:
        _close_lease(node, job, cause, now=now)
    elif lease is None:
        lane = node.lane_of(job)
        if lane is None or lane.holder is not None:
            raise InternalError(f"job {job.id} is granted a lane that is not free")
        job.lease = Lease(state=after, lane=lane.id, granted_ns=now)
        lane.holder = job.id
        accounts.begin_turn(node, node.device_of(job), job, now=now)
    else:
        lease.state = after
        lease.recalled_ns = now if after is LeaseState.RECALLED else lease.recalled_ns


def recall(node: Node, job: Job, reason: str, *, now: Nanos) -> list[Effect]:
    """Recall a held turn; does nothing if it is recalled already."""
    if job.lease is None or job.lease.state is not LeaseState.HELD:
        return []
    move_lease(node, job, RecallLease, now=now)
    return [RecallLease(job=job.id, reason=reason)]


def revoke(node: Node, job: Job, reason: str, *, now: Nanos, to: JobState = JobState.IDLE) -> list[Effect]:
    """Take a turn: its job stopped computing, or an allocation of it waits."""
    move_lease(node, job, RevokeLease, now=now)
    accounts.note_end(job, wants_more=to is not JobState.IDLE)
    move(node, job, RevokeLease, now=now, to=to)
    return [RevokeLease(job=job.id, reason=reason)]


def _close_lease(node: Node, job: Job, cause: type, *, now: Nanos) -> None:
    device, lane = node.device_of(job), node.lane_of(job)
    job.lease = None
    if lane is not None and lane.holder == job.id:
        lane.holder = None
    if job.memory.is_given or was_given(job):
        ledger.end_loan(device, job)
    if len(device.lanes) > 1:
        accounts.reset_marks(node, device)
        # A lane that is free for a moment may be merged to let somebody in.
        if cause is LeaseReturned and (node.queue or node.outgrown_on(device) or node.awaits_return(device, now=now)):
            ledger.touch(device)


# --- where wall time goes -----------------------------------------------------------------------------------


def set_row(node: Node, job: Job, *, now: Nanos) -> None:
    """Note where the job's time goes from now on (A4)."""
    state = job.state
    if state is not WAITING and state is not BLOCKED:
        row = ROWS.get(state)
    elif node.may_run(job):
        row = "limit" if start_ns(job) > now else "turn"
    else:
        row = "parked" if state is WAITING and is_leaving(job) else "memory"
    if row != job.wall.row:
        begin_row(job, row, since=now)


def sort_rows(node: Node, *, now: Nanos) -> None:
    """Bytes or shares changed hands: who waits for memory may wait for a turn now, or the other way round."""
    for job in node.jobs.values():
        if job.state is WAITING or job.state is BLOCKED:
            set_row(node, job, now=now)


def end_limits(node: Node, device: Device, *, now: Nanos) -> None:
    """Whose limit let it have a turn before now has waited for one since then (A4)."""
    for job in node.lively_on(device):
        row, since = row_at(job, now)
        if row != job.wall.row:
            begin_row(job, row, since=since)
        elif row == "turn" and start_ns(job) > now:
            begin_row(job, "limit", since=now)  # its tenant's other jobs have had what it may have


def begin_row(job: Job, row: str | None, *, since: Nanos) -> None:
    """Book what the job did until then; from then on its time goes elsewhere."""
    wall = job.wall
    if wall.row is not None and since > wall.row_since_ns:
        wall.spent_ns[wall.row] = wall.spent_ns.get(wall.row, 0) + since - wall.row_since_ns
    wall.row, wall.row_since_ns = row, since


def row_at(job: Job, now: Nanos) -> tuple[str | None, Nanos]:
    """Where the job's time goes, and since when: who was kept from a turn by its limit waits for one from the moment
    when it is not, and that is no event."""
    if job.wall.row == "limit" and start_ns(job) <= now:
        return "turn", start_ns(job)
    return job.wall.row, job.wall.row_since_ns


def standing_of(job: Job, now: Nanos) -> Standing:
    return *row_at(job, now), job.wall.orders


def spent_until(job: Job, now: Nanos) -> dict[str, Nanos]:
    """The job's wall time since it arrived, by row; adds up exactly (A4)."""
    spent = dict(job.wall.spent_ns)
    row, since = row_at(job, now)
    for each, span in ((job.wall.row, since - job.wall.row_since_ns), (row, now - since)):
        if each is not None and span:
            spent[each] = spent.get(each, 0) + span
    return spent


def rows_of(job: Job, *, now: Nanos) -> dict[str, Nanos]:
    """A job's wall time by row; its own input, and what it did not use of its turns, are rows of their own."""
    rows = spent_until(job, now)
    service = job.service
    for row, span, to in (
        ("run", service.waits.stall_held_ns, "input"),
        ("idle", service.waits.stall_ns - service.waits.stall_held_ns, "input"),
        ("run", service.waits.pause_ns, "unused"),
    ):
        moved = max(0, min(span, rows.get(row, 0)))
        if moved:
            rows[row] -= moved
            rows[to] = rows.get(to, 0) + moved
    return rows


def account_of(job: Job, *, now: Nanos) -> Account:
    row, since = row_at(job, now)
    return Account(
        arrived_ns=job.arrived_ns,
        at_ns=now,
        row=row,
        row_since_ns=since,
        spent_ns=spent_until(job, now),
        waited_for_ns=dict(job.service.waited_for_ns),
        served_ns=job.service.served_ns + (now - job.service.charged_ns if is_holding(job) else 0),
        steps=job.service.steps,
        orders=job.wall.orders,
        borrowed_ns=job.share.borrowed // SHARE_ONE,
    )


def note_order(job: Job, event: PersonsOrder, *, now: Nanos) -> None:
    """Keep who gave an order, the newest ORDERS_KEPT; nobody is named where only one user is served."""
    if not event.by:
        return
    order = Order(verb=ORDERED[type(event)], by=event.by, after_ns=now - job.arrived_ns)
    job.wall.orders = (*job.wall.orders[1 - ORDERS_KEPT :], order)


def carry_on(account: Account, at_ns: Nanos) -> Account:
    """The account of a job that went on with what it did until then."""
    span = at_ns - account.at_ns
    if span <= 0 or account.row is None:
        return account
    spent = {**account.spent_ns, account.row: account.spent_ns.get(account.row, 0) + span}
    served_ns = account.served_ns + (span if account.row == "run" else 0)
    return replace(account, at_ns=at_ns, spent_ns=spent, served_ns=served_ns)


def restore(job: Job, account: Account, row: str | None, *, now: Nanos) -> None:
    """Go on with the account of a job that comes back (A5). `row` is what it is known to have done while there was no
    driver; None if nobody knows."""
    job.wall.orders = account.orders
    gap = now - account.at_ns
    if gap < 0 or account.arrived_ns > account.at_ns:
        return  # of another boot of the machine
    unknown = gap if row is None else 0 if row == account.row else min(gap, UNNOTED_NS)
    job.arrived_ns = account.arrived_ns
    accounts.restore(job, account.waited_for_ns, account.served_ns + (gap - unknown if row == "run" else 0))
    spent = dict(account.spent_ns)
    for each, span in (("away", unknown), (row, gap - unknown)):
        if each is not None and span:
            spent[each] = spent.get(each, 0) + span
    job.wall.spent_ns = spent
