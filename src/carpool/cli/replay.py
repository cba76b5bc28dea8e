"""`carpool sim --journal`: what this node recorded, replayed, and what another policy or device would have done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from carpool.cli.tables import console, show_table
from carpool.cli.values import parsed
from carpool.errors import CarpoolError
from carpool.units import SECOND, format_count, parse_bytes

NAMES_SHOWN = 5

if TYPE_CHECKING:  # loaded when it is used, as the whole simulator
    from carpool.sim.journal import Recorded, Replays, Supposed
    from carpool.wire.places import Places


def replay(options: dict[str, object], as_json: bool) -> int:
    """Replay a journal; with another policy or other devices, say what would have been."""
    from carpool.cli.policy import checked
    from carpool.sim import journal
    from carpool.sim.compare import check_policies
    from carpool.wire.places import find_places

    places = find_places()
    path = Path(str(options["journal"])) if options["journal"] else places.journal
    if path.absolute() == places.journal.absolute():
        _flush(places)
    policies = [each.strip() for each in str(options["policies"]).split(",")] if options["policies"] else []
    if policies:
        check_policies(policies, is_node=True)
        for each in policies:
            checked(each, place="node")
    replayed = journal.replay_all(path, run=int(str(options["run"])) if options["run"] is not None else None)
    recording = replayed.chosen
    devices = _supposed_devices(options, recording.devices)
    jobs, without = journal.jobs_of(recording, replayed.of_chosen.pictures)
    is_changed = policies not in ([], [recording.policy]) or devices != recording.devices
    rows = []
    if is_changed and jobs:
        wanted = policies or [recording.policy]
        plans = [(recording.policy, recording.devices), *((policy, devices) for policy in wanted)]
        rows = [journal.suppose(recording, jobs, policy, where) for policy, where in dict.fromkeys(plans)]
    if as_json:
        print(json.dumps(_as_json(replayed, jobs, without, rows)))
    else:
        _show(replayed, jobs, without, rows)
    return 1 if replayed.difference else 0


def _flush(places: Places) -> None:
    """Have a running daemon write out what it has recorded up to now."""
    from carpool.client import Client

    client = Client(places=places)
    if not client.is_running():
        return
    try:
        client.flush()
    except CarpoolError as error:
        _say(f"note: the newest events may be missing, the daemon did not write them out: {error}")


def _supposed_devices(
    options: dict[str, object], recorded: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    devices = list(recorded)
    if options["device"]:
        sizes = [parsed("--device", parse_bytes, each) for each in str(options["device"]).split(",")]
        names = [name for name, _ in recorded][: len(sizes)]
        names += [f"device{number}" for number in range(len(names), len(sizes))]
        devices = list(zip(names, sizes, strict=True))
    if options["add_device"]:
        more = [parsed("--add-device", parse_bytes, each) for each in str(options["add_device"]).split(",")]
        devices += [(f"more{number}", size) for number, size in enumerate(more)]
    return tuple(devices)


def _as_json(replayed: Replays, jobs: list[Recorded], without: list[str], rows: list[Supposed]) -> dict[str, object]:
    recording = replayed.chosen
    from carpool.sim.compare import SCHEDULERS

    waits, completions = _recorded_means(jobs)
    return {
        "journal": recording.source,
        "run": recording.run,
        "policy": recording.policy,
        "scheduler": SCHEDULERS["node"],
        "devices": [{"device": name, "bytes": size} for name, size in recording.devices],
        "events": sum(life.events for life in replayed.lives),
        "effects": sum(life.effects for life in replayed.lives),
        "reproduced": not replayed.difference,
        "difference": replayed.difference,
        "cut_off": any(life.end == "cut" for life in replayed.lives),
        "runs": [
            {
                "run": life.run,
                "events": life.events,
                "effects": life.effects,
                "reproduced": not life.difference,
                "end": life.end,
            }
            for life in replayed.lives
        ],
        "not_replayed": list(replayed.refused),
        "jobs": len(jobs),
        "jobs_without_turns": without,
        "recorded": {
            "wait_s": waits,
            "wait_jobs": len(jobs),
            "completion_s": completions,
            "completion_jobs": len(_ended(jobs)),
        },
        "simulated": [
            {
                "policy": row.policy,
                "devices": [{"device": name, "bytes": size} for name, size in row.devices],
                "wait_s": round(row.wait_s, 6),
                "completion_s": round(row.completion_s, 6),
                "jobs": row.jobs,
                "refused": row.refused,
            }
            for row in rows
        ],
    }


def _ended(jobs: list[Recorded]) -> list[int]:
    """The completion times of those that were over when the journal ended."""
    return [job.completion_ns for job in jobs if job.completion_ns is not None]


def _recorded_means(jobs: list[Recorded]) -> tuple[float | None, float | None]:
    """Average wait of all jobs, and average completion time of those that were over."""
    ended = _ended(jobs)
    waits = round(sum(job.waited_ns for job in jobs) / len(jobs) / SECOND, 6) if jobs else None
    return waits, round(sum(ended) / len(ended) / SECOND, 6) if ended else None


def _show(replayed: Replays, jobs: list[Recorded], without: list[str], rows: list[Supposed]) -> None:
    from carpool.sim.report import Cell
    from carpool.sim.report import Table as Plain

    out = console()
    recording, policy = replayed.chosen, replayed.chosen.policy
    out.print(
        f"{recording.source}, run {recording.run}: {policy}, {format_count(len(jobs), 'job')} that took turns",
        highlight=False,
    )
    out.print(_compared(replayed), highlight=False)
    for note in (*replayed.refused, *(life.end_note for life in replayed.lives if life.end)):
        _say(f"note: {note}")
    if without:
        _say(f"note: {format_count(len(without), 'job')} without a turn, not simulated: {name_some(without)}")
    if not rows:
        return
    waits, completions = _recorded_means(jobs)
    body: list[tuple[Cell, ...]] = [
        ("recorded", policy, len(recording.devices), waits, len(jobs), completions, len(_ended(jobs)))
    ]
    body += [
        ("simulated", row.policy, len(row.devices), row.wait_s, row.jobs, row.completion_s, row.jobs) for row in rows
    ]
    columns = ("", "policy", "devices", "average wait s", "of jobs", "average completion s", "of jobs")
    show_table(Plain(title="The recorded jobs, seconds", columns=columns, rows=tuple(body)))
    for row in rows[1:]:
        more = len(row.devices) - len(recording.devices)
        change = (
            f"{more} more {'device' if more == 1 else 'devices'}" if more > 0 else f"{row.policy} on these devices"
        )
        under = f" under {row.policy}" if more > 0 and row.policy != policy else ""
        was = f"{rows[0].wait_s:.3f} s as simulated, {waits:.3f} s as recorded"
        over = f"over {format_count(row.jobs, 'job')}" + (
            f", {row.refused} would have been refused" if row.refused else ""
        )
        said = f"with {change}{under} your average wait would have been {row.wait_s:.3f} s {over} ({was})"
        out.print(said, highlight=False)


def _compared(replayed: Replays) -> str:
    events, effects = (sum(getattr(life, what) for life in replayed.lives) for what in ("events", "effects"))
    runs = format_count(len(replayed.lives), "run")
    told = f"replayed {runs} of the daemon by the node's scheduler: {events:,} events"
    return f"{told}, {effects:,} decisions compared: {replayed.difference or 'every one as recorded'}"


def name_some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
