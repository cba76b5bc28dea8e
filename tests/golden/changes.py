"""Answers that are meant to differ from the logs, each with its reason. `make golden` makes them part of the logs.

Keep a change as narrow as it is: one event, one kind of answer. A replay counts how often each was met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.golden.under_test import CLUSTER, NODE, RAISED, Plain


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One record: what the log has, and what came now. Events and effects are lists: a name, then the fields."""

    scheduler: str
    policy: str
    event: list[Plain]
    before: list[list[Plain]]
    now: list[list[Plain]]
    wakeups: tuple[int | None, int | None] = (None, None)  # in the log, and now


@dataclass(frozen=True, kw_only=True)
class Change:
    name: str
    why: str
    is_this: Callable[[Answers], bool]
    ends_session: bool = False  # from here on the scheduler's state differs: the rest of the session is not compared


def _is_rejected_instead_of_raised(answers: Answers) -> bool:
    before, now = [each[0] for each in answers.before], [each[0] for each in answers.now]
    return answers.scheduler == CLUSTER and before == [RAISED] and now == ["RejectEvent"]


def _is_looked_at(answers: Answers) -> bool:
    is_return = answers.event[0] == "LeaseReturned" and answers.before == answers.now
    return answers.scheduler == NODE and is_return and answers.wakeups[0] is None and answers.wakeups[1] is not None


def _is_share_given_later(answers: Answers) -> bool:
    before = [each for each in answers.before if each[0] == RAISED]
    return answers.event[0] == "ShareGiven" and "before the first job" in str(before)


def _is_rejected_instead_of_ignored(answers: Answers) -> bool:
    is_rejected = [each[0] for each in answers.now] == ["RejectEvent"]
    return answers.event[0] == "JobForgotten" and not answers.before and is_rejected


def _is_moved_as_it_is(answers: Answers) -> bool:
    is_order = answers.scheduler == NODE and answers.event[0] == "MigrateAsked"
    before, now = {each[0] for each in answers.before}, {each[0] for each in answers.now}
    return is_order and "UnparkJob" in before and now == {"MoveJob"}


CHANGES = (
    Change(
        name="moved as it is",
        why="a job parked as too large was brought back to be migrated; now it moves like one that is suspended",
        is_this=_is_moved_as_it_is,
        ends_session=True,
    ),
    Change(
        name="looked at after its turn",
        why="an allocation that waited as its job gave its turn back was looked at only when something else happened",
        is_this=_is_looked_at,
        ends_session=True,
    ),
    Change(
        name="shares at any time",
        why="shares of the cluster are given, changed and withdrawn while jobs are there",
        is_this=_is_share_given_later,
        ends_session=True,
    ),
    Change(
        name="rejected instead of ignored",
        why="forgetting a job was a call, which did nothing for a job that is live or not there; now it is an event",
        is_this=_is_rejected_instead_of_ignored,
    ),
    Change(
        name="rejected instead of raised",
        why="the cluster's scheduler answers what comes twice or late with RejectEvent, not with an exception",
        is_this=_is_rejected_instead_of_raised,
    ),
)


def meant(answers: Answers) -> Change | None:
    """The change that explains this difference; None if nobody meant it."""
    return next((change for change in CHANGES if change.is_this(answers)), None)
