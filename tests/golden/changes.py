"""Answers that are meant to differ from the logs, each with its reason. `make golden` makes them part of the logs.

Keep a change as narrow as it is: one event, one kind of answer. A replay counts how often each was met.
"""

from __future__ import annotations

import re
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
    has_idled: bool = False  # a job of the session waited for its input in its turn
    has_early: bool = False  # one wanted no more when its turn ended, or it was taken


@dataclass(frozen=True, kw_only=True)
class Change:
    name: str
    why: str
    is_this: Callable[[Answers], bool]
    is_said: Callable[[str, str, list[str]], bool] | None = None  # of a picture's lines that differ: only sentences
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


def _is_between_equals(answers: Answers) -> bool:
    """Under priority a turn goes to another, or is recalled for one. As many other orders are given as before, if
    perhaps in the order in which equals have waited."""
    turns = {"GrantLease", "RecallLease", "ExplainWait"}
    before, now = (
        sorted(each[0] for each in effects if each[0] not in turns) for effects in (answers.before, answers.now)
    )
    return answers.scheduler == NODE and answers.policy == "priority" and before == now


def _says_who_of_equals(scheduler: str, policy: str, lines: list[str]) -> bool:
    return scheduler == NODE and policy == "priority" and all("both have priority" in line for line in lines)


def _is_judged_when_measured(answers: Answers) -> bool:
    """Under srtf with a quantum of its own: the same orders, but the next look comes sooner."""
    before, now = answers.wakeups
    is_sooner = before is not None and now is not None and now < before
    is_srtf = answers.scheduler == NODE and answers.policy in ("srtf", "srsf")
    return is_srtf and is_sooner and answers.before == answers.now


def _is_early_first(answers: Answers) -> bool:
    """A turn is recalled, looked at or given sooner, for a job that wanted no more when its last one ended."""
    turns = {"GrantLease", "RecallLease", "ExplainWait"}
    before, now = ([each for each in effects if each[0] not in turns] for effects in (answers.before, answers.now))
    return answers.scheduler == NODE and answers.has_early and before == now


def _is_uncharged(answers: Answers) -> bool:
    return answers.scheduler == NODE and answers.has_idled


CHANGES = (
    Change(
        name="judged when measured",
        why="under srtf a job was measured and kept its turn for all of a long quantum; now it is compared at once",
        is_this=_is_judged_when_measured,
        ends_session=True,
    ),
    Change(
        name="early goes first",
        why="a job that wanted no more when its last turn ended waits for nobody's quantum when it asks again (D7)",
        is_this=_is_early_first,
        ends_session=True,
    ),
    Change(
        name="an idle turn is not charged",
        why="a wait for input with the turn held was charged; time with a turn and nothing done is not (A6)",
        is_this=_is_uncharged,
        ends_session=True,
    ),
    Change(
        name="equals take turns",
        why="under priority the older of two equals had the device until it ended; now they take turns of 100 ms",
        is_this=_is_between_equals,
        ends_session=True,
        is_said=_says_who_of_equals,
    ),
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


# Sentences that say more than in the logs: what was added is cut off before they are compared.
SAID_MORE = (
    # A job on its way to the host said that it moves, and now also why.
    re.compile(r"^(its memory has been moving to the host for [^:;]*)[:;] .*$"),
    # A job on its way back says what it was asked meanwhile.
    re.compile(r"^(its memory has been moving back from the host for [^;]*); .*$"),
)


def as_in_log(sentence: str) -> str:
    """The sentence without what was added to it on purpose."""
    for said in SAID_MORE:
        sentence = said.sub(r"\1", sentence)
    return sentence


def meant(answers: Answers) -> Change | None:
    """The change that explains this difference; None if nobody meant it."""
    return next((change for change in CHANGES if change.is_this(answers)), None)


def meant_picture(has_idled: bool) -> Change | None:
    """The change that explains other figures in a picture."""
    return next(change for change in CHANGES if change.is_this is _is_uncharged) if has_idled else None


def meant_words(scheduler: str, policy: str, before: list[str], now: list[str]) -> Change | None:
    """The change that explains other sentences in a picture; the figures are the same."""
    differ = [line for line in now if line not in before] + [line for line in before if line not in now]
    changes = (change for change in CHANGES if change.is_said is not None)
    return next((change for change in changes if change.is_said and change.is_said(scheduler, policy, differ)), None)
