"""Answers that are meant to differ from the logs, each with its reason. `make golden` makes them part of the logs.

Keep a change as narrow as it is: one event, one kind of answer. A replay counts how often each was met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.golden.under_test import CLUSTER, RAISED, Plain


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One record: what the log has, and what came now. Events and effects are lists: a name, then the fields."""

    scheduler: str
    policy: str
    event: list[Plain]
    before: list[list[Plain]]
    now: list[list[Plain]]


@dataclass(frozen=True, kw_only=True)
class Change:
    name: str
    why: str
    is_this: Callable[[Answers], bool]
    ends_session: bool = False  # from here on the scheduler's state differs: the rest of the session is not compared


def _is_rejected_instead_of_raised(answers: Answers) -> bool:
    before, now = [each[0] for each in answers.before], [each[0] for each in answers.now]
    return answers.scheduler == CLUSTER and before == [RAISED] and now == ["RejectEvent"]


CHANGES = (
    Change(
        name="rejected instead of raised",
        why="the cluster's scheduler answers what comes twice or late with RejectEvent, not with an exception",
        is_this=_is_rejected_instead_of_raised,
    ),
)


def meant(answers: Answers) -> Change | None:
    """The change that explains this difference; None if nobody meant it."""
    return next((change for change in CHANGES if change.is_this(answers)), None)
