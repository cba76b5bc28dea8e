"""The tables of legal moves. `docs/lease.md` shows them as diagrams, drawn from here by `make docs`.

A move is caused by an event (a fact about the job) or by an effect (an order of the scheduler). A pair that
is not in the table is illegal: an event is then rejected and leaves everything untouched; an effect is a bug.
Events that never move a job (ProgressSeen, NeedsMeasured on a settled job, CancelAsked on a live one) stand in
the table too, as moves to the same state, so that the table alone says what may arrive when.
"""

from __future__ import annotations

from carpool.core.node.effects import GrantLease, ParkJob, RecallLease, RefuseJob, RevokeLease, StartJob, UnparkJob
from carpool.core.node.events import (
    CancelAsked,
    JobDetached,
    JobExited,
    JobParked,
    JobResized,
    JobUnparked,
    LeaseAsked,
    LeaseReturned,
    MigrateAsked,
    MoveFailed,
    NeedsMeasured,
    ProgressSeen,
    ResumeAsked,
    SuspendAsked,
)
from carpool.core.node.model import AWAY, ENDED, JobState, LeaseState

_S = JobState
_L = LeaseState
_LIVE = [state for state in JobState if state not in ENDED and state is not JobState.QUEUED]
_MANAGED = [state for state in _LIVE if state is not JobState.UNMANAGED]

# JobExited is FINISHED here; the scheduler turns it into FAILED or CANCELLED by the exit's facts.
JOB_MOVES: dict[tuple[JobState, type], JobState] = {
    (_S.QUEUED, StartJob): _S.STARTING,
    (_S.QUEUED, RefuseJob): _S.FAILED,
    (_S.QUEUED, CancelAsked): _S.CANCELLED,
    (_S.QUEUED, JobExited): _S.FINISHED,
    (_S.STARTING, LeaseAsked): _S.WAITING,
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
    # BLOCKED where an allocation waits for memory: the program then goes on only with the next turn.
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
    **{(state, CancelAsked): state for state in _LIVE},
    **{(state, JobResized): state for state in [_S.QUEUED, *_LIVE]},
    **{(state, SuspendAsked): state for state in [_S.QUEUED, *_MANAGED]},
    **{(state, ResumeAsked): state for state in [_S.QUEUED, *_MANAGED]},
    **{(state, MigrateAsked): state for state in _MANAGED},
    **{(state, NeedsMeasured): state for state in _MANAGED if state not in (_S.STARTING, _S.PROFILING)},
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


def may_move(state: JobState, cause: type) -> bool:
    return (state, cause) in JOB_MOVES
