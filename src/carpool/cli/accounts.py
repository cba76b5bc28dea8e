"""What a job may have, and where its wall time went, in rows and in one sentence.

For `carpool explain`, `carpool resize` and the end of `carpool run`.
"""

from __future__ import annotations

from carpool.calls import Job
from carpool.core.node.model import took_no_turns
from carpool.units import format_bytes, format_ns, format_share

ROWS = {
    "start": "start-up",
    "run": "running",
    "input": "its own input",
    "unused": "had its turn, did nothing",
    "turn": "waiting for a turn",
    "limit": "at its compute limit",
    "memory": "waiting for memory",
    "move": "moving",
    "parked": "parked",
    "idle": "idle (saving, between loops)",
    "unmanaged": "outside carpool's turns",
    "away": "without a daemon",
}
LOST = ("turn", "limit", "memory", "move", "parked")  # what it would not have spent alone with the whole device
UNTURNED = "without turns"  # for "start-up", of a job that ended and never asked for a turn
NO_TURNS = (
    "it took no turns: carpool saw no iteration of a torch program and no CUDA kernel in it, so it ran beside the"
    " others; put each iteration into `with carpool.turn():` (see carpool doctor, and docs/operations.md)"
)
NAMED_MAX = 3  # jobs it waited for that the sentence names
NOBODY_PERCENT = 1  # of the waiting for a turn: less than this without a holder is not worth a row


def allowance(job: Job) -> str:
    """What a job may have, as it was told or resized."""
    least, most = job.guaranteed_milli, job.limit_milli
    is_to_come = job.is_shrinking and not job.is_over and job.state != "parked"
    cap = "no cap" if job.cap_bytes is None else f"cap {format_bytes(job.cap_bytes)}"
    cap += " (from its next boundary on)" if is_to_come else ""
    weight = f"weight {job.weight_milli / 1000:g}"
    if (least, most) == (0, 1000):
        return f"{cap}, {weight}, any share"
    device = job.device or "its device"
    return f"{cap}, {weight}, share: {format_share(least)} of {device} at least, {format_share(most)} at most"


def account_lines(job: Job) -> list[str]:
    """One line a row, and for a job that is over the sentence."""
    spent = job.spent_ns
    wall = sum(spent.values())
    if not wall:
        return []
    lines = []
    for row, words in ({**ROWS, "start": UNTURNED} if _is_unturned(job) else ROWS).items():
        if row in spent:
            lines.append(f"{words:28} {format_ns(spent[row]):>12} {100 * spent[row] / wall:>4.0f} %")
        if row == "turn":
            lines += [f"  {'for ' + name:26} {format_ns(span):>12}" for name, span in _waits(job)]
    lines.append(f"{'wall clock':28} {format_ns(wall):>12}")
    said = _course(job)
    return [*lines, said] if said else lines


def sentence(job: Job, *, has_computed: bool = True) -> str:
    """What the user of a job that is over should know, for those who are not told its reason. Of one that did not
    compute, as `true` and `sleep` do not, nobody expects turns."""
    course = _course(job) if has_computed else _cost(job)
    return "; ".join(said for said in (course, job.refusals) if said)


def no_turns(job: Job) -> str:
    """That a job finished and took no turns, in words; else nothing."""
    return NO_TURNS if job.state == "finished" and _is_unturned(job) else ""


def _course(job: Job) -> str:
    """What sharing cost a job that is over, and whether it took turns at all."""
    # The error of a program that failed on its way says more than that it did not get to its loop.
    return "; ".join(said for said in (_cost(job), no_turns(job)) if said)


def _is_unturned(job: Job) -> bool:
    return job.is_over and took_no_turns(job.steps, job.spent_ns)


def _cost(job: Job) -> str:
    """What sharing cost a job that is over: how long it took, how long it would have taken, and what lies between."""
    spent = job.spent_ns
    lost = {row: spent[row] for row in LOST if spent.get(row)}
    if not job.is_over or not lost:
        return ""
    parts = [(ROWS[row], span) for row, span in lost.items() if row != "turn"]
    named = [(f"waiting for job {name}", span) for name, span in job.waited_for_ns.items()]
    named = sorted(named, key=_longest)[:NAMED_MAX]
    rest = lost.get("turn", 0) - sum(span for _, span in named)
    parts += named
    if rest * 100 > lost.get("turn", 0) * NOBODY_PERCENT:
        parts.append(("waiting for other turns" if named else "waiting for a turn", rest))
    wall = sum(spent.values())
    said = ", ".join(f"{format_ns(span)} {words}" for words, span in sorted(parts, key=_longest))
    whole, alone = format_ns(wall), format_ns(wall - sum(lost.values()))
    return f"{whole} instead of {alone}: {said}" if whole != alone else f"{whole}, of that {said}"


def _waits(job: Job) -> list[tuple[str, int]]:
    """For whom it waited, and the rest: a hand-over, or a device that was being cleared to measure somebody."""
    whom = sorted(job.waited_for_ns.items(), key=_longest)
    turn = job.spent_ns.get("turn", 0)
    rest = turn - sum(span for _, span in whom)
    return [*whom, ("hand-overs", rest)] if rest * 100 > turn * NOBODY_PERCENT else whom


def _longest(each: tuple[str, int]) -> int:
    return -each[1]
