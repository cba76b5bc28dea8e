"""`carpool history`: jobs that are over, for a year back."""

from __future__ import annotations

import json
import sys
from typing import Literal, cast, get_args

import click

from carpool import calls
from carpool.cli.periods import moment, span_of
from carpool.cli.rows import cut, screen_width
from carpool.cli.usage import hours
from carpool.client import Client
from carpool.units import format_bytes, format_ns

AT_ONCE = 1000  # jobs in one answer
JOB_MIN = 12
State = Literal["finished", "failed", "cancelled"]


@click.command(short_help="Jobs that are over, newest first.")
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option("--tenant", metavar="NAME", help="Only jobs of this tenant.")
@click.option("--name", metavar="NAME", help="Only jobs of this name; * stands for any letters.")
@click.option("--state", metavar="HOW", help="Only jobs that ended so: finished, failed or cancelled.")
@click.option("--since", metavar="TIME", help="Only jobs that ended since then: 12h, 7d, yesterday, 2026-11-20.")
@click.option("--until", metavar="TIME", help="Only jobs that ended before.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def history(
    user: str | None,
    tenant: str | None,
    name: str | None,
    state: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs that are over: whose, how they ended, what they had and waited.

    \b
    carpool history --user ana --since 7d
    carpool history --name 'train*' --state failed --json
    """
    if state is not None and state not in get_args(State):
        raise click.BadParameter(f"'{state}' is none of {', '.join(get_args(State))}", param_hint="--state")
    since_s, until_s = span_of(since, until, default="1970-01-02")
    asked = calls.HistoryAsked(
        user=user,
        tenant=tenant,
        name=name,
        state=cast(State, state) if state else None,
        since_s=since_s if since else 0,
        until_s=until_s,
    )
    found = _ask(asked, limit)
    if found.trouble:
        print(f"carpool: the newest may be missing: {found.trouble}", file=sys.stderr)
    if as_json:
        print(json.dumps(calls.as_dict(found)))
        return
    if not found.jobs:
        print("no job that is over fits; those that live: carpool ps")
        return
    print("\n".join(_lines(found.jobs)))
    if found.has_more:
        print(f"carpool: the newest {len(found.jobs)} are shown; for more: --limit", file=sys.stderr)


def _ask(asked: calls.HistoryAsked, limit: int) -> calls.History:
    """As many as wanted, by as many questions as that takes."""
    import msgspec

    client, jobs, before = Client(), list[calls.PastJob](), None
    while True:
        part = msgspec.structs.replace(asked, before=before, limit=min(AT_ONCE, limit - len(jobs)))
        found = client.history(part)
        jobs += found.jobs
        if not found.has_more or len(jobs) >= limit:
            return calls.History(jobs=jobs, has_more=found.has_more, trouble=found.trouble)
        before = jobs[-1].number


def _lines(jobs: list[calls.PastJob]) -> list[str]:
    names = ("user", "ended", "state", "wall", "had", "waited", "needs")
    rows = [
        (
            job.job,
            job.user or job.tenant,
            moment(job.ended_s)[5:],
            job.state,
            _short(job.wall_ns),
            _short(job.had_ns),
            _short(job.waited_ns),
            format_bytes(job.needs_bytes).replace(" ", "") if job.needs_bytes is not None else "",
        )
        for job in jobs
    ]
    widths = [max(len(title), *(len(row[place]) for row in rows)) for place, title in enumerate(("job", *names))]
    widths[1] = min(widths[1], 12)
    widths[0] = max(JOB_MIN, min(widths[0], screen_width() - sum(widths[1:]) - len(names)))
    left = {0, 1, 2, 3}
    lines = []
    for row in (("job", *names), *rows):
        cells = (cut(row[0], widths[0]), row[1][: widths[1]], *row[2:])
        padded = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append(" ".join(padded).rstrip())
    return [lines[0], "─" * (sum(widths) + len(names)), *lines[1:]]


def _short(span_ns: int) -> str:
    said = format_ns(span_ns) if span_ns < 600_000_000_000 else hours(span_ns)
    return said.replace(" ", "")
