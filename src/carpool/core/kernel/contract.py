"""The contract of drivers: which event answers which effect, of both schedulers; and what lies between the two.

A driver performs effects in their order. Where an effect has answers, exactly one of them comes, sooner or later, or
the job's end. Named by class; a test compares the table with the events and effects there are.

Between them: what the cluster's scheduler orders is told to a node's scheduler as an event, and what the node's
scheduler orders is told to the cluster's as an event. docs/design/0016-cluster-and-node.md says it in words.
"""

from __future__ import annotations

# --- which event answers which effect; empty: none --------------------------------------------------------------

NODE_ANSWERS: dict[str, tuple[str, ...]] = {
    "RefuseJob": (),
    "StartJob": ("ProgramStarted", "StartPutOff", "LeaseAsked", "JobDetached", "JobExited"),
    "SetCap": (),
    "SetCompute": (),
    "GrantLease": ("LeaseReturned", "JobExited"),
    "RecallLease": ("LeaseReturned", "JobExited"),
    "RevokeLease": (),
    "DenyMemory": (),
    "ParkJob": ("JobParked", "MoveFailed"),
    "UnparkJob": ("JobUnparked", "MoveFailed"),
    "MoveJob": (),
    "TrimJob": ("NeedsMeasured",),
    "StopJob": ("JobExited",),
    "CloseJob": (),
    "ExplainWait": (),
    "NameHog": (),
    "ResizeLane": (),
    "RememberJob": (),
    "RejectEvent": (),
}
CLUSTER_ANSWERS: dict[str, tuple[str, ...]] = {
    "PlaceJob": ("JobQueued", "JobStarted", "JobRefused", "JobLeft", "JobEnded"),
    "SuspendJob": ("JobSuspended", "JobEnded"),  # with `parks_at_once` none: it is done as it is ordered
    "RevokeJob": (),
    "JoinJob": ("RatesMeasured",),
    "LeaveJob": (),
    "RefuseJob": (),
    "ExplainWait": (),
    "RejectEvent": (),
}

# --- between the two --------------------------------------------------------------------------------------------

CLUSTER_TELLS_NODE: dict[str, str] = {
    "PlaceJob": "JobSubmitted",  # with the card as its device and the bytes asked for as its cap
    "SuspendJob": "SuspendAsked",
    "RevokeJob": "CancelAsked",
    "JoinJob": "JobSubmitted",  # on the device of its host
    "LeaveJob": "SuspendAsked",
}
NODE_TELLS_CLUSTER: dict[str, str] = {
    "StartJob": "JobStarted",  # if it was queued there before
    "ExplainWait": "JobQueued",
    "RefuseJob": "JobRefused",
    "CloseJob": "JobEnded",  # or JobLeft, if its work is not done
}
ANSWER_OF_NODE: dict[str, str] = {
    "JobParked": "JobSuspended",  # the driver tells both: the node that it is parked, the cluster that it has left
    "JobExited": "JobEnded",
}
