"""Bounds and references with no overhead at all, computed from the jobs alone.

  shortest first  One server as fast as all cards together, shortest remaining work first: no schedule of the real
                  cards has a lower mean completion time (a schedule of the cards is one of the server, and shortest
                  remaining first is optimal there). Neither can it be below the mean run time alone.
  makespan        For every moment: what arrives from then on, at the speed of all cards, or one job's run time alone.
  equal shares    Every job present runs at the same speed, full speed if the cards suffice. The finish-time-fairness
                  ratio of a job is its completion time by the one it has here.

All integers; divisions round, which costs a few nanoseconds a job.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

MILLI = 1000


class Work(NamedTuple):
    """What a job brings: when, how long alone, and on how many thousandths of a card."""

    submit_ns: int
    service_ns: int
    cards_milli: int = MILLI

    @property
    def card_ns(self) -> int:
        return self.service_ns * self.cards_milli


def mean_completion_least(jobs: Sequence[Work], cards: int) -> int:
    """No schedule has a lower mean completion time than this."""
    if not jobs:
        return 0
    speed = cards * MILLI
    ordered = sorted(jobs)
    left: list[tuple[int, int]] = []  # remaining work, arrival
    total, now = 0, 0
    for place, job in enumerate(ordered):
        now = max(now, job.submit_ns) if not left else now
        heapq.heappush(left, (job.card_ns, job.submit_ns))
        until = ordered[place + 1].submit_ns if place + 1 < len(ordered) else None
        now = max(now, job.submit_ns)
        while left and (until is None or now < until):
            work, arrived = left[0]
            end = now + work // speed
            if until is None or end <= until:
                heapq.heappop(left)
                total += end - arrived
                now = end
            else:
                heapq.heapreplace(left, (work - (until - now) * speed, arrived))
                now = until
    alone = sum(job.service_ns for job in jobs)
    return max(total, alone) // len(jobs)


def makespan_least(jobs: Sequence[Work], cards: int) -> int:
    """No schedule ends all jobs sooner after the first arrival."""
    if not jobs:
        return 0
    begin = min(job.submit_ns for job in jobs)
    least = max(job.submit_ns + job.service_ns for job in jobs) - begin
    work = 0
    for job in sorted(jobs, reverse=True):
        work += job.card_ns
        least = max(least, job.submit_ns - begin + work // (cards * MILLI))
    return least


def shared_completions(jobs: Sequence[Work], cards: int) -> list[int]:
    """Each job's completion time under equal shares, in the order given."""
    order = sorted(range(len(jobs)), key=lambda place: (jobs[place].submit_ns, place))
    done = [0] * len(jobs)
    present: list[tuple[int, int]] = []  # the common progress at which a job ends, its place
    now = progress = wanted = 0  # progress: how long a job present all the time has run by now
    capacity = cards * MILLI
    for place in [*order, None]:
        until = jobs[place].submit_ns if place is not None else None
        while present and (until is None or now < until):
            finish_at, first = present[0]
            load = max(wanted, capacity)
            end = now + -(-(finish_at - progress) * load // capacity)
            if until is not None and end > until:
                progress += (until - now) * capacity // load
                break
            heapq.heappop(present)
            now, progress = end, finish_at
            wanted -= jobs[first].cards_milli
            done[first] = end - jobs[first].submit_ns
        if place is not None:
            now = max(now, jobs[place].submit_ns)
            heapq.heappush(present, (progress + jobs[place].service_ns, place))
            wanted += jobs[place].cards_milli
    return done
