"""For authors of policies: `check_policy(MyPolicy())` says what is wrong with it, or nothing.

A policy is asked for ranks of many random jobs, as a node and as a cluster show them. `review_policy` says the same
as faults, with hints (what may be meant so, but is worth knowing) and how long a decision takes.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from carpool.core.kernel.ids import JobId, TenantId
from carpool.core.node.accounts import first
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.view import JobView
from carpool.errors import Endless, UsageError
from carpool.policies import faults_of, limited
from carpool.units import MS, SECOND

ROUNDS = 200
NOW = 200 * SECOND
LANE = 8  # jobs that want the lane when a decision is timed
SLOW_US = 200.0  # of a decision: a hand-over takes about 50 µs with all around it
TOO_SLOW_US = 20_000.0
PATIENCE_S = 2.0  # with a slow policy
ENDLESS_S = 10  # after so long it is interrupted, whatever it does
SPANS = (1, 1, 1, 100, 100_000)  # most jobs are young, some have run for days
TURNS = 1_000  # of 100 ms, in which every job should have had one


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What is to be said about one policy."""

    faults: tuple[str, ...]  # it breaks the contract
    hints: tuple[str, ...]  # it may be meant so
    decision_us: float | None  # among eight jobs; None if it was not asked


def check_policy(policy: Policy) -> list[str]:
    """Complaints about a policy; an empty list if it keeps the contract of core/policies/base.py."""
    faults = faults_of(policy)
    if faults:
        return faults
    try:
        with limited(ENDLESS_S):
            _check_all(policy)
    except UsageError as fault:
        return [str(fault)]
    except Endless:
        return [f"rank() or why() does not come to an end; {ENDLESS_S} s were not enough for a few hundred calls"]
    return []


def check_live_policy(policy: Policy) -> list[str]:
    """Complaints about a policy with which a daemon is to be started: there jobs wait for a slow decision too."""
    faults = check_policy(policy)
    spent_us = decision_us(policy) if not faults else 0.0
    return [*faults, *([_slowness(spent_us)] if spent_us > TOO_SLOW_US else [])]


def _slowness(spent_us: float) -> str:
    return f"a decision among {LANE} jobs takes {spent_us / 1000:.1f} ms; jobs would wait for it"


def review_policy(policy: Policy) -> Review:
    """All there is to say about a policy."""
    faults = check_policy(policy)
    if faults:
        return Review(faults=tuple(faults), hints=(), decision_us=None)
    try:
        spent_us = decision_us(policy)
        hints = [*_hints_of_clock(policy), *_hint_of_speed(policy), *_hint_of_starving(policy)]
        hints += _hint_of_likeness(policy)
    except Exception as error:  # noqa: BLE001 - a class of somebody else's, in a case that no round met
        said = f"it raises {type(error).__name__}: {error}, when jobs take turns for a while"
        return Review(faults=(said,), hints=(), decision_us=None)
    if spent_us > TOO_SLOW_US:
        faults.append(_slowness(spent_us))
    elif spent_us > SLOW_US:
        hints.append(f"a decision among {LANE} jobs takes {spent_us:.0f} µs; below {SLOW_US:.0f} µs nobody notices")
    return Review(faults=tuple(faults), hints=tuple(hints), decision_us=round(spent_us, 2))


# --- jobs to ask about -----------------------------------------------------------------------------------------


def random_views(source: random.Random, count: int) -> list[JobView]:
    """Jobs as a node shows them; at most one holds the lane."""
    holder = source.randrange(-1, count)
    return [
        JobView(
            id=JobId(f"job-{index}"),
            name=f"job{index}",
            tenant=TenantId(f"tenant{source.randrange(3)}"),
            priority=source.randrange(-2, 3),
            arrived_ns=source.randrange(10) * SECOND,
            is_holding=index == holder,
            held_ns=source.randrange(SECOND) if index == holder else 0,
            waited_ns=0 if index == holder else source.randrange(100 * SECOND),
            served_ns=source.randrange(10 * SECOND) * source.choice(SPANS),
            remaining_ns=source.randrange(10 * SECOND) * source.choice(SPANS),
            remaining_is_known=source.random() < 0.5,
            level=source.randrange(10 * SECOND),
            tenant_level=source.randrange(10 * SECOND),
            size_milli=1000,
        )
        for index in range(count)
    ]


def cluster_views(source: random.Random, count: int) -> list[JobView]:
    """Jobs as a cluster shows them: of several cards, and nobody holds a turn."""
    return [
        view._replace(
            is_holding=False, held_ns=0, waited_ns=0, tenant_level=0, size_milli=1000 * source.choice([1, 2, 4, 8])
        )
        for view in random_views(source, count)
    ]


def _views_for(place: str, source: random.Random, count: int) -> list[JobView]:
    return random_views(source, count) if place == "node" else cluster_views(source, count)


# --- the contract ----------------------------------------------------------------------------------------------


def _check_all(policy: Policy) -> None:
    before = _state_of(policy)
    source, deadline = random.Random(0), time.monotonic() + PATIENCE_S
    for place in policy.runs_on:
        for _ in range(ROUNDS):
            if time.monotonic() > deadline:
                break  # so slow that a few rounds must do
            _check_round(policy, place, _views_for(place, source, source.randrange(1, 8)), source)
    if _state_of(policy) != before:
        raise UsageError("it remembers something from one question to the next; a rank may use its view only")


def _state_of(policy: Policy) -> object:
    return copy.deepcopy(getattr(policy, "__dict__", {}))


def _check_round(policy: Policy, place: str, views: Sequence[JobView], source: random.Random) -> None:
    ranks = [_rank(policy, view) for view in views]
    again = {view.id: _rank(policy, view) for view in source.sample(list(views), len(views))}
    for view, rank in zip(views, ranks, strict=True):
        if again[view.id] != rank:
            raise UsageError(f"its rank of the same job is {rank}, and {again[view.id]} when asked again: {view}")
    if place == "cluster" and len({len(rank) for rank in ranks}) > 1:
        raise UsageError(f"in a cluster all its ranks must have as many parts; these have not: {ranks}")
    by_id = {view.id: view for view in views}
    picked = first(policy, views, now=NOW)
    chosen = by_id[picked] if picked is not None else views[0]
    for view in views:
        why: object = _ask(partial(policy.why, chosen, view), "why", view)
        if not isinstance(why, str) or not why.strip():
            raise UsageError(f"why() gives no reason; it gives {why!r}")
    if place == "cluster":
        _check_speed(policy, views[0])


def _rank(policy: Policy, view: JobView) -> Rank:
    rank = _ask(lambda: policy.rank(view, now=NOW), "rank", view)
    if not isinstance(rank, tuple) or not rank or not all(isinstance(part, int) for part in rank):
        raise UsageError(f"a rank must be a tuple of whole numbers, like (5,) or (0, 7); it is {rank!r} for {view}")
    return rank


def _check_speed(policy: Policy, view: JobView) -> None:
    speed = _ask(lambda: policy.speed(view), "speed", view)
    if speed is not None and not isinstance(speed, int):
        raise UsageError(f"speed must be a whole number or None; it is {speed!r} for {view}")
    fallen = _fall(policy, view)
    if speed is not None and fallen != speed * MS:
        raise UsageError(
            f"its speed is {speed}, but the first part of its rank falls by {fallen / MS:g} for each nanosecond that"
            f" a job runs: {view}"
        )


def _fall(policy: Policy, view: JobView) -> int:
    """By how much the first part of a job's rank falls in a millisecond of running, as a cluster counts it."""
    later = view._replace(remaining_ns=view.remaining_ns - MS) if view.remaining_is_known else view
    return _rank(policy, view)[0] - _rank(policy, later)[0]


def _ask(question: Callable[[], Answer], what: str, view: JobView) -> Answer:
    try:
        return question()
    except (Exception, SystemExit) as error:  # a class of somebody else's: whatever it raises
        raise UsageError(f"{what}() raises {type(error).__name__}: {error}, for {view}") from error


# --- hints -----------------------------------------------------------------------------------------------------


def decision_us(policy: Policy) -> float:
    """How long it takes to choose among eight jobs: the best of several times, so that a busy machine counts less."""
    views = random_views(random.Random(1), LANE)
    best, deadline = float("inf"), time.monotonic() + PATIENCE_S
    for _ in range(20):
        if time.monotonic() > deadline:
            break
        before = time.perf_counter_ns()
        first(policy, views, now=NOW)
        best = min(best, (time.perf_counter_ns() - before) / 1e3)
    return best


def _hints_of_clock(policy: Policy) -> list[str]:
    views = cluster_views(random.Random(2), 20)
    if "cluster" in policy.runs_on and any(
        policy.rank(view, now=NOW) != policy.rank(view, now=NOW + SECOND) for view in views
    ):
        return ["its rank changes with `now` alone; a cluster asks for a rank only when something happens to the job"]
    return []


def _hint_of_speed(policy: Policy) -> list[str]:
    if "cluster" not in policy.runs_on:
        return []
    known = [view for view in cluster_views(random.Random(3), 20) if view.remaining_is_known]
    if any(policy.speed(view) is None and _fall(policy, view) for view in known):
        return [
            "its rank falls while a job of known length runs, and speed() is None: a cluster asks anew only when the"
            " job's level ends; return from speed() how fast it falls"
        ]
    return []


def _hint_of_likeness(policy: Policy) -> list[str]:
    """In a cluster nothing else says so: its jobs take no turns, so none of them is seen to wait."""
    if "cluster" not in policy.runs_on:
        return []
    ranks = {policy.rank(view, now=NOW) for view in cluster_views(random.Random(4), 20)}
    if len(ranks) > 1:
        return []
    return ["in a cluster all jobs have the same rank: they go in the order in which they came, like under fifo"]


def _hint_of_starving(policy: Policy) -> list[str]:
    """Three jobs that always want the lane, for a while; who has no turn at all?"""
    if "node" not in policy.runs_on:
        return []
    served = {"first": 0, "second": 0, "third": 0}
    waiting = dict.fromkeys(served, 0)
    turn_ns = 100 * MS
    deadline = time.monotonic() + PATIENCE_S
    for number in range(TURNS):
        if time.monotonic() > deadline:
            return []
        now = 3 * SECOND + number * turn_ns
        views = [_wanting(name, place, served[name], now - waiting[name]) for place, name in enumerate(served)]
        picked = first(policy, views, now=now)
        for name in served:
            if name == picked:
                served[name] += turn_ns
                waiting[name] = now + turn_ns
    starved = [name for name, had in served.items() if not had]
    if not starved:
        return []
    span_s = TURNS * turn_ns // SECOND
    return [
        f"jobs may wait without end: of three that always want a turn, {len(starved)} had none in {span_s} s"
        " (fifo and srtf are like that, on purpose)"
    ]


def _wanting(name: str, place: int, served_ns: int, waited_ns: int) -> JobView:
    return JobView(
        id=JobId(name),
        name=name,
        tenant=TenantId("default"),
        priority=place,
        arrived_ns=place * SECOND,
        is_holding=False,
        held_ns=0,
        waited_ns=waited_ns,
        served_ns=served_ns,
        remaining_ns=(place + 1) * 3600 * SECOND - served_ns,
        remaining_is_known=True,
        level=served_ns,
        tenant_level=served_ns,
        size_milli=1000,
    )
