"""How far one decision runs: the modules of the core that run inside one `Scheduler.handle`, by a profile hook.

Three decisions are looked at, each on a real scheduler in a few variants, of which the worst counts: a turn that goes
from one job to the next (hand-over), somebody suspends a job, an allocation that waits blocks its job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import Effect, GrantLease, RecallLease
from carpool.core.node.events import (
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobSubmitted,
    LeaseAsked,
    LeaseReturned,
    ProgressSeen,
    SuspendAsked,
    Tick,
)
from carpool.core.node.model import History, JobSpec, JobState, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.policies import POLICIES
from carpool.testing.house.imports import PACKAGE
from carpool.units import GIB, MS, SECOND

SETTINGS = Settings(margin_percent=0, open_share_divisor=1)  # what was measured is what is promised
DAY_NS = 24 * 3600 * SECOND
SMALL = Needs(persistent_bytes=GIB, ephemeral_bytes=GIB)
LARGER = Needs(persistent_bytes=2 * GIB, ephemeral_bytes=GIB)


class Run(NamedTuple):
    """What ran in one call: the modules in the order of their first call, and the number of calls."""

    modules: list[str]
    calls: int


@contextmanager
def watched(below: str) -> Iterator[list[str]]:
    """Notes the module of every Python function that is called meanwhile, if its file stands below this folder."""
    folder = f"{PACKAGE / below}/"
    names: dict[str, str | None] = {}
    seen: list[str] = []

    def note(frame: FrameType, what: str, _: object) -> None:
        if what != "call":
            return
        file = frame.f_code.co_filename
        if file not in names:
            names[file] = module_of(file) if file.startswith(folder) else None
        name = names[file]
        if name is not None:
            seen.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def module_of(file: str) -> str:
    """`core.node.scheduler` for its file."""
    return ".".join(Path(file).relative_to(PACKAGE).with_suffix("").parts)


class Stage:
    """One scheduler with a clock, fed by hand."""

    def __init__(self, policy: str = "fair", *, devices: int = 1) -> None:
        self.scheduler = Scheduler(POLICIES[policy], SETTINGS)
        self.now = 0
        self._steps = dict.fromkeys("abcxy", 0)
        self.last: list[Effect] = []
        self.path = Run([], 0)
        for index in range(devices):
            self.tell(DeviceAdded(device=DeviceId(f"gpu{index}"), capacity_bytes=16 * GIB))

    def tell(self, event: Event) -> list[Effect]:
        with watched("core") as seen:
            self.last = self.scheduler.handle(event, now=self.now)
        self.path = Run(list(dict.fromkeys(seen)), len(seen))
        return self.last

    def submit(self, job: str, *, cap_bytes: int | None = None, waits: bool = False) -> None:
        spec = JobSpec(
            name=job, cap_bytes=cap_bytes, wait_memory_ns=DAY_NS if waits else None, fingerprint=f"program of {job}"
        )
        self.tell(JobSubmitted(job=JobId(job), spec=spec))

    def settle_in(self, job: str, needs: Needs, *, waits: bool = False) -> None:
        """A job whose program is known: it is started and asks for its first turn."""
        history = History(needs=needs, steps=100, step_ns=10 * MS, served_ns=SECOND)
        self.tell(HistoryLoaded(fingerprint=f"program of {job}", history=history))
        self.submit(job, waits=waits)
        self.tell(LeaseAsked(job=JobId(job)))

    def holder(self) -> str:
        return str(self.scheduler.holders()[0])

    def look(self, job: str, *, live_bytes: int = 0, pending_bytes: int = 0) -> None:
        self._steps[job] += 1
        seen = ProgressSeen(
            job=JobId(job),
            steps=self._steps[job],
            cpu_ns=self.now,
            live_bytes=live_bytes,
            pending_bytes=pending_bytes,
        )
        self.tell(seen)

    def recall(self) -> str:
        """Let time pass until the holder is to give its turn back."""
        for _ in range(100):
            self.now += 50 * MS
            job = self.holder()
            self.look(job, live_bytes=GIB)
            recalls = [each for each in self.last + self.tell(Tick()) if isinstance(each, RecallLease)]
            if recalls:
                return str(recalls[0].job)
        raise InternalError("no holder was recalled within 5 s, with another job waiting")

    def give_back(self, job: str, *, wants_more: bool = True) -> None:
        self._steps[job] += 1
        self.now += 10 * MS
        self.tell(LeaseReturned(job=JobId(job), wants_more=wants_more, steps=self._steps[job]))

    def suspend(self, job: str) -> None:
        self.now += 10 * MS
        self.tell(SuspendAsked(job=JobId(job)))


def hand_over(jobs: str, *, devices: int = 1, is_recalled: bool = True) -> Run:
    """A holder gives its turn back, recalled or not, and another job of its device gets it in the same call."""
    stage = Stage(devices=devices)
    for job in jobs:
        stage.settle_in(job, SMALL)
    for _ in range(3):  # the first turns of a job are special
        job = stage.recall()
        stage.give_back(job)
    if not is_recalled:
        stage.give_back(stage.holder(), wants_more=False)
    if not any(isinstance(effect, GrantLease) for effect in stage.last):
        raise InternalError("a returned turn went to nobody")
    return stage.path


def suspend(whose: str) -> Run:
    """Somebody suspends the job that has the turn, or the one that waits for it, beside another."""
    stage = Stage()
    for job in "ab":
        stage.settle_in(job, SMALL)
    job = stage.holder()
    if whose == "waiting":
        job = next(each for each in "ab" if each != job)
    stage.suspend(job)
    return stage.path


def waiting_allocation(others: str, *, waits: bool = True) -> Run:
    """A holder's allocation finds no room, and waits; the event that takes its turn away."""
    stage = Stage()
    stage.submit("x", cap_bytes=10 * GIB)
    stage.settle_in("a", LARGER, waits=waits)
    for job in others:
        stage.settle_in(job, SMALL)
    for _ in range(2):  # it is seen twice, and nothing helped between
        stage.now += 10 * MS
        stage.look("a", live_bytes=4 * GIB, pending_bytes=3 * GIB)
        if stage.scheduler.state_of(JobId("a")) is JobState.BLOCKED:
            return stage.path
    raise InternalError("an allocation without room did not block its job")


VARIANTS: dict[str, list[Callable[[], Run]]] = {
    "handover": [
        lambda: hand_over("ab"),
        lambda: hand_over("abc"),
        lambda: hand_over("abc", devices=2),
        lambda: hand_over("abc", is_recalled=False),
    ],
    "suspend": [lambda: suspend("waiting"), lambda: suspend("holding")],
    "waiting_allocation": [
        lambda: waiting_allocation("b"),
        lambda: waiting_allocation(""),
        lambda: waiting_allocation("b", waits=False),
        lambda: waiting_allocation("", waits=False),
    ],
}


def worst(decision: str) -> Run:
    """The variant of this decision that runs through most modules."""
    return max((variant() for variant in VARIANTS[decision]), key=lambda path: len(path.modules))
