"""The figures of a run, each beside its ratio to the first policy and beside the bound where there is one.

docs/sim.md says what each column means. Everything is computed from the outcomes of both engines alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from carpool.sim.ideal import Work, makespan_least, mean_completion_least, shared_completions
from carpool.sim.outcome import JobOutcome, Outcome
from carpool.sim.report import Cell, Table, jain, percentile
from carpool.units import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """One policy's figures; times in seconds, shares between 0 and 1, None where nothing is known."""

    jobs: int
    refused: int
    average_s: float
    median_s: float
    p95_s: float
    p99_s: float
    queueing_s: float  # mean of completion less run time alone
    makespan_s: float
    device_share: float  # of the cards' time until the last job ended
    memory_share: float | None
    preemptions: int
    jain: float  # over tenants
    fairness_worst: float  # the largest finish-time-fairness ratio

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What no policy can beat on these cards with these jobs, one job on a card at a time."""

    average_s: float
    queueing_s: float
    makespan_s: float
    device_share: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def measure(outcome: Outcome) -> Measures:
    """The figures of one run; a run in which nobody ran is all zeros."""
    jobs = outcome.jobs
    times = sorted(job.completion_ns for job in jobs) or [0]
    span = outcome.makespan_ns
    memory = outcome.capacity_bytes * span
    return Measures(
        jobs=len(jobs),
        refused=len(outcome.refused),
        average_s=_seconds(sum(times) / len(times)),
        median_s=_seconds(percentile(times, 50)),
        p95_s=_seconds(percentile(times, 95)),
        p99_s=_seconds(percentile(times, 99)),
        queueing_s=_seconds(sum(job.queued_ns for job in jobs) / max(1, len(jobs))),
        makespan_s=_seconds(span),
        device_share=_digits(outcome.busy_milli_ns / (1000 * outcome.cards * span)) if span else 0.0,
        memory_share=_digits(outcome.held_byte_ns / memory) if memory and outcome.held_byte_ns else None,
        preemptions=sum(job.preemptions for job in jobs),
        jain=_digits(tenant_jain(jobs)),
        fairness_worst=_digits(max(fairness_ratios(jobs, outcome.cards), default=1.0)),
    )


def bound(outcome: Outcome) -> Bounds:
    """The bounds for the jobs that ran."""
    works, cards = works_of(outcome.jobs), outcome.cards
    least, makespan = mean_completion_least(works, cards), makespan_least(works, cards)
    alone = sum(job.service_ns for job in outcome.jobs) / max(1, len(works))
    busy = sum(work.card_ns for work in works)
    return Bounds(
        average_s=_seconds(least),
        queueing_s=_seconds(max(0.0, least - alone)),
        makespan_s=_seconds(makespan),
        device_share=_digits(min(1.0, busy / (1000 * cards * makespan))) if makespan else 0.0,
    )


def works_of(jobs: Sequence[JobOutcome]) -> list[Work]:
    return [Work(job.submit_ns, job.service_ns, job.cards_milli) for job in jobs]


def fairness_ratios(jobs: Sequence[JobOutcome], cards: int) -> list[float]:
    """Each job's completion time by the one it would have under ideal equal shares; above 1: worse than fair."""
    fair = shared_completions(works_of(jobs), cards)
    return [job.completion_ns / max(1, alone) for job, alone in zip(jobs, fair, strict=True)]


def tenant_jain(jobs: Sequence[JobOutcome]) -> float:
    """Jain's index over tenants of the speed each had: its jobs' card time by the card time of their stay."""
    ran: dict[str, int] = defaultdict(int)
    stayed: dict[str, int] = defaultdict(int)
    for job in jobs:
        ran[job.tenant] += job.service_ns * job.cards_milli
        stayed[job.tenant] += job.completion_ns * job.cards_milli
    return jain([ran[tenant] / max(1, stayed[tenant]) for tenant in sorted(ran)])


# --- tables ----------------------------------------------------------------------------------------------------

COLUMNS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Completion time, seconds",
        (("average", "average_s"), ("median", "median_s"), ("p95", "p95_s"), ("p99", "p99_s")),
    ),
    (
        "Waiting, the whole (seconds), interruptions",
        (("queueing", "queueing_s"), ("makespan", "makespan_s"), ("preemptions", "preemptions")),
    ),
    (
        "Use of the devices and of their memory; fairness",
        (("device", "device_share"), ("memory", "memory_share"), ("Jain", "jain"), ("worst FTF", "fairness_worst")),
    ),
)


def tables(rows: Sequence[tuple[str, Measures]], bounds: Bounds) -> tuple[Table, ...]:
    """Three tables of at most 80 columns: a row a policy, then the bound; beside each figure its ratio to row one."""
    first = rows[0][1]
    made = []
    for title, columns in COLUMNS:
        header = ["policy"]
        for name, _ in columns:
            header += [name, "×"]
        body = [_row(name, figures, first, columns) for name, figures in rows]
        if any(getattr(bounds, key, None) is not None for _, key in columns):
            body.append(_row("bound", bounds, first, columns))
        made.append(Table(title=title, columns=tuple(header), rows=tuple(body)))
    return tuple(made)


def ratio(value: float | None, first: float | None) -> float | None:
    """A figure by the first policy's; None where that says nothing."""
    return None if value is None or not first else _digits(value / first)


def format_ratio(value: float | None) -> str | None:
    """At most five characters."""
    if value is None:
        return None
    if value >= 10_000:
        return ">9999"
    return (
        f"{value:.0f}"
        if value >= 100
        else f"{value:.1f}"
        if value >= 10
        else f"{value:.2f}"
        if value >= 0.01
        else "<0.01"
    )


def _row(
    name: str, figures: Measures | Bounds, first: Measures, columns: tuple[tuple[str, str], ...]
) -> tuple[Cell, ...]:
    cells: list[Cell] = [name]
    for _, key in columns:
        value = getattr(figures, key, None)
        beside = ratio(value, getattr(first, key))
        cells += [value, format_ratio(beside)]
    return tuple(cells)


def _seconds(span_ns: float) -> float:
    return _digits(span_ns / SECOND)


def _digits(value: float) -> float:
    """Seven digits: enough for every reader, and the same on every machine."""
    return float(f"{value:.7g}")
