"""Draws the diagrams of docs/lease.md from the tables of the node: lifecycle.py, departures.py (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from carpool.core.node.lifecycle import JOB_MOVES, LEASE_MOVES, OPEN_MOVES
from carpool.core.node.model import HELD_ONLY
from carpool.core.node.moves.departures import TABLE

PAGE = Path(__file__).parents[3] / "docs" / "lease.md"


def job_diagram() -> str:
    """Every move of a job that changes its state, as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> queued: JobSubmitted"]
    targets = {**{key: {after} for key, after in JOB_MOVES.items()}, **OPEN_MOVES}
    moves = {
        (str(before), str(after), cause.__name__)
        for (before, cause), reached in targets.items()
        if (before, cause) in JOB_MOVES
        for after in reached
        if before != after
    }
    joined: dict[tuple[str, str], list[str]] = {}
    for before, after, cause in sorted(moves):
        joined.setdefault((before, after), []).append(cause)
    lines += [f"    {before} --> {after}: {' or '.join(causes)}" for (before, after), causes in joined.items()]
    return "\n".join([*lines, "```"])


def lease_diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    joined: dict[tuple[str, str], list[str]] = {}
    for (before, cause), after in LEASE_MOVES.items():
        joined.setdefault((str(before or "[*]"), str(after or "[*]")), []).append(cause.__name__)
    lines += [f"    {before} --> {after}: {' or '.join(causes)}" for (before, after), causes in joined.items()]
    return "\n".join([*lines, "```"])


def departures_diagram() -> str:
    """Every reason to leave: what the job does, what ends the reason, and when the job comes back."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for why, row in TABLE.items():
        name = str(why).replace(" ", "_")
        lines.append(f"    turns --> {name}: set in {' or '.join(row.set_by)}")
        if why not in HELD_ONLY:
            lines.append(f"    {name} --> away: at its next boundary")
        causes = sorted(cause.__name__ for cause in row.ended_by)
        lines.append(f"    {name} --> turns: {' or '.join(causes)}")
    rows = ["| reason | leaves the device | comes back |", "|---|---|---|"]
    rows += [f"| {why} | {'no' if why in HELD_ONLY else 'yes'} | {row.comes_back} |" for why, row in TABLE.items()]
    return "\n".join([*lines, "```", "", *rows])


def redraw(text: str) -> str:
    """The page with all diagrams made anew between their markers."""
    for name, diagram in (
        ("job", job_diagram()),
        ("lease", lease_diagram()),
        ("departures", departures_diagram()),
    ):
        pattern = re.compile(rf"(<!-- {name} diagram -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda match, drawn=diagram: f"{match[1]}{drawn}\n{match[2]}", text)  # type: ignore[misc]
    return text


def main() -> None:
    before = PAGE.read_text()
    after = redraw(before)
    PAGE.write_text(after)
    sys.stderr.write(f"{PAGE.name}: {'redrawn' if after != before else 'up to date'}\n")


if __name__ == "__main__":
    main()
