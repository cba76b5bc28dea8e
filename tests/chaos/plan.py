"""A seeded list of faults: the same seed gives the same faults to a real node and to the core alone."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

# How often each is drawn, relative to the others; a new verb is a line here and a case in each of the two worlds.
VERBS = {
    "suspend": 4,
    "resume": 4,
    "grow": 2,
    "shrink": 2,
    "weigh": 1,
    "migrate": 2,
    "cancel": 1,
    "kill_job": 2,
    "kill_daemon": 1,
    "stall_daemon": 1,
    "cut_agent": 2,
    "cut_runner": 1,
    "close_store": 1,
    "fill_store": 1,
    "open_store": 3,
    "submit": 4,
    "die_at_start": 2,
    "remove_socket": 1,
    "remove_lock": 1,
    "damage_journal": 1,
    "cut_page": 1,
    "scribble_page": 1,
    "few_descriptors": 1,
    "remove_run": 1,
    "freeze_state": 1,
    "other_version": 1,
}
FAULTS = int(os.environ.get("CHAOS_FAULTS", "12"))  # against real processes; `make chaos` sets more
SEEDS = int(os.environ.get("CHAOS_SEEDS", "60"))  # lists of faults against the core alone; the same


@dataclass(frozen=True, kw_only=True)
class Fault:
    verb: str
    target: int  # which of the jobs that can be harmed, by its place
    pause_ns: int  # before the next one


def plan(seed: int, count: int) -> list[Fault]:
    source = random.Random(seed)
    verbs = source.choices(list(VERBS), weights=list(VERBS.values()), k=count)
    return [
        Fault(verb=verb, target=source.randrange(100), pause_ns=source.randrange(1_000_000, 400_000_000))
        for verb in verbs
    ]
