"""The meter: each nanosecond of each device is booked once, whatever happens."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.core.kernel.ids import DeviceId, JobId, LaneId, TenantId
from carpool.core.node.effects import CloseJob, Effect, GrantLease, MoveJob, RejectEvent, RevokeLease, StartJob
from carpool.core.node.events import (
    DeviceAdded,
    Event,
    JobAdopted,
    JobExited,
    JobParked,
    JobSubmitted,
    LeaseReturned,
    ProgressSeen,
    Tick,
)
from carpool.core.node.model import Account, JobSpec, JobState
from carpool.daemon.files import JobFile
from carpool.daemon.translate import picture_lost
from carpool.journal.hours import DAY, HOUR, MONTH, end_of, start_of
from carpool.journal.metering import BORROWED, HAD, LENT, MEMORY, MIB_MS, WAITED, Cut, Kind, Meter
from carpool.units import MIB, SECOND

WALL_NS = 1_790_000_000 * SECOND  # at the monotonic time 0 of these tests; 53 minutes and 20 seconds into an hour
A, B = DeviceId("gpu0"), DeviceId("gpu1")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Machine:
    """A machine with two devices, whose daemons come and go; all that was written is in `kept`."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.ahead_ns = 0  # how far the wall clock was set
        self.kept = Cut()
        self.jobs: dict[str, JobId] = {}
        self.begin()

    def begin(self) -> None:
        """A daemon starts and finds what was written."""
        self.meter = Meter(wall_ns=lambda: WALL_NS + self.now + self.ahead_ns)
        self.meter.take_up(Cut(until_ns=dict(self.kept.until_ns), since_ns=dict(self.kept.since_ns)))
        self.jobs.clear()
        for device in (A, B):
            self.tell(DeviceAdded(device=device, capacity_bytes=MIB))

    def tell(self, event: Event, *effects: Effect) -> None:
        self.meter.note(self.now, event, list(effects))

    def submit(self, name: str, device: DeviceId, *, user: str = "ana") -> JobId:
        job = self.jobs[name] = JobId(name)
        spec = JobSpec(name=name, tenant=TenantId("lab"), user=user)
        self.tell(JobSubmitted(job=job, spec=spec), StartJob(job=job, device=device))
        return job

    def grant(self, job: JobId) -> None:
        self.tell(Tick(), GrantLease(job=job, lane=LaneId("l"), lane_bytes=0, is_shared=True))

    def give_back(self, job: JobId, *effects: Effect) -> None:
        self.tell(LeaseReturned(job=job, wants_more=True, steps=1), *effects)

    def write(self, accounts: dict[str, Account] | None = None) -> None:
        cut = self.meter.cut(self.now, accounts or {})
        self.kept = self.kept.followed_by(cut)

    def had(self, *, kind: int = Kind.JOB, job: str = "", device: str = "", what: int = HAD) -> int:
        return sum(
            spent[what]
            for key, spent in self.kept.rows.items()
            if key.kind == kind and job in (key.job, "") and device in (key.device, "")
        )

    def check(self) -> None:
        """J10: the rows of each device add up to the time in which it was there."""
        for device, until_ns in self.kept.until_ns.items():
            booked = sum(
                spent[HAD] for key, spent in self.kept.rows.items() if key.device == device and key.kind != Kind.LOAN
            )
            assert booked == until_ns - self.kept.since_ns[device], device


def test_j10_a_turn_is_booked_from_its_grant_to_its_return_and_the_rest_is_idle() -> None:
    machine = Machine()
    job = machine.submit("a", A)
    machine.now += 3 * SECOND
    machine.grant(job)
    machine.now += 2 * SECOND + 1
    machine.give_back(job)
    machine.now += 5 * SECOND
    machine.write()
    assert machine.had(job="a") == 2 * SECOND + 1
    assert machine.had(kind=Kind.IDLE, device=A) == 8 * SECOND
    assert machine.had(kind=Kind.IDLE, device=B) == 10 * SECOND + 1
    machine.check()


def test_j10_jobs_that_have_a_device_at_once_have_equal_parts_of_it() -> None:
    machine = Machine()
    jobs = [machine.submit(name, A) for name in "abc"]
    for job in jobs:
        machine.grant(job)
    machine.now += 10
    machine.give_back(jobs[1])
    machine.now += 8
    machine.write()
    assert [machine.had(job=name) for name in "abc"] == [4 + 4, 3, 3 + 4]
    machine.check()


def test_j10_a_turn_ends_with_its_job_a_revocation_or_a_move_and_never_by_what_was_rejected() -> None:
    machine = Machine()
    first, second, third = (machine.submit(name, A) for name in "abc")
    machine.grant(first)
    machine.now += 7
    machine.tell(JobExited(job=first, code=0), CloseJob(job=first, state=JobState.FINISHED, reason=""))
    machine.now += 1
    machine.grant(second)
    machine.now += 5
    machine.give_back(third, RejectEvent(job=third, event="LeaseReturned", reason="it has none"))
    machine.now += 5
    machine.tell(Tick(), RevokeLease(job=second, reason=""))
    machine.now += 1
    machine.tell(
        JobParked(job=third, parked_bytes=1, resident_bytes=0, move_ns=1), MoveJob(job=third, source=A, device=B)
    )
    machine.grant(third)
    machine.now += 2
    machine.write()
    assert [machine.had(job=name) for name in "abc"] == [7, 10, 2]
    assert machine.had(device=B) == 2
    assert machine.had(kind=Kind.IDLE, device=A) == 4
    machine.check()


def test_j10_a_turn_across_an_hour_is_in_both() -> None:
    machine = Machine()
    job = machine.submit("a", A)
    machine.grant(job)
    machine.now += HOUR * SECOND
    machine.write()
    rows = {key.start_s: spent[HAD] for key, spent in machine.kept.rows.items() if key.job == "a"}
    first_s = start_of(WALL_NS // SECOND, HOUR)
    before_ns = (first_s + HOUR) * SECOND - WALL_NS - 5 * SECOND
    assert rows == {first_s: before_ns, first_s + HOUR: HOUR * SECOND - before_ns}
    machine.check()


def test_j11_what_was_not_written_and_the_time_without_a_daemon_is_unknown() -> None:
    machine = Machine()
    job = machine.submit("a", A)
    machine.grant(job)
    machine.now += 4 * SECOND
    machine.write()
    machine.now += SECOND // 3  # of this nobody knows: it is killed
    machine.now += 100 * SECOND
    machine.begin()
    machine.tell(JobAdopted(
        job=job, spec=JobSpec(name="a"), device=A, holding=True, steps=1, live_bytes=0, needs=None,
    ))  # fmt: skip
    machine.now += 6 * SECOND
    machine.write()
    assert machine.had(job="a") == 10 * SECOND
    assert machine.had(kind=Kind.UNKNOWN, device=A) == 100 * SECOND + SECOND // 3
    machine.check()


def test_j11_a_device_that_comes_back_after_a_life_without_it_begins_anew() -> None:
    machine = Machine()
    machine.write()
    machine.kept.until_ns.pop(B)  # as the file has it after a life without that device
    machine.kept.since_ns.pop(B)
    machine.kept.rows = {key: spent for key, spent in machine.kept.rows.items() if key.device != B}
    machine.now += 50 * SECOND
    machine.begin()
    machine.now += SECOND
    machine.write()
    assert (machine.had(kind=Kind.UNKNOWN, device=A), machine.had(kind=Kind.UNKNOWN, device=B)) == (50 * SECOND, 0)
    machine.check()


def test_j12_a_machine_that_slept_leaves_unknown_time() -> None:
    machine = Machine()
    machine.now += SECOND
    machine.ahead_ns += 8 * HOUR * SECOND
    machine.write()
    assert machine.had(kind=Kind.UNKNOWN, device=A) == 8 * HOUR * SECOND
    machine.check()


@pytest.mark.parametrize(("back_s", "is_followed"), [(3, False), (HOUR, False), (2 * DAY, True)])
def test_j12_a_clock_that_is_set_back_books_no_time_twice(back_s: int, is_followed: bool) -> None:
    machine = Machine()
    machine.now += SECOND
    machine.write()
    machine.ahead_ns -= back_s * SECOND
    machine.write()
    before_ns = machine.kept.until_ns[A]
    machine.now += SECOND
    machine.write()
    assert machine.kept.until_ns[A] == before_ns + SECOND
    assert (machine.kept.until_ns[A] == WALL_NS + machine.now - back_s * SECOND) is is_followed
    machine.begin()
    machine.now += SECOND
    machine.write()
    assert machine.had(kind=Kind.UNKNOWN) == 0, "nor does the next daemon find a gap"


def test_j13_a_hundred_thousand_handovers_of_an_hour_are_one_row_a_job() -> None:
    machine = Machine()
    first, second = machine.submit("a", A), machine.submit("b", A)
    machine.grant(first)
    for _ in range(50_000):
        machine.now += 1000
        machine.give_back(first, GrantLease(job=second, lane=LaneId("l"), lane_bytes=0, is_shared=True))
        machine.now += 3000
        machine.give_back(second, GrantLease(job=first, lane=LaneId("l"), lane_bytes=0, is_shared=True))
    machine.write()
    rows = {key.job: spent[HAD] for key, spent in machine.kept.rows.items() if key.kind == Kind.JOB}
    assert rows == {"a": 50_000 * 1000, "b": 50_000 * 3000}


def test_memory_is_what_a_job_was_last_seen_to_hold_times_how_long() -> None:
    machine = Machine()
    job = machine.submit("a", A)
    machine.now += SECOND
    machine.tell(ProgressSeen(job=job, steps=1, cpu_ns=0, live_bytes=100 * MIB))
    machine.now += 2 * SECOND
    machine.tell(JobParked(job=job, parked_bytes=90 * MIB, resident_bytes=10 * MIB, move_ns=1))
    machine.now += SECOND
    machine.write()
    assert machine.had(job="a", what=MEMORY) == (100 * 2 + 10) * MIB * SECOND // MIB_MS


def account(at_ns: int, *, row: str | None, turn_ns: int) -> Account:
    return Account(
        arrived_ns=0, at_ns=at_ns, row=row, row_since_ns=at_ns, spent_ns={"turn": turn_ns, "run": 7},
        waited_for_ns={}, served_ns=0,
    )  # fmt: skip


def test_waits_are_those_of_the_accounts_and_go_on_under_the_next_daemon() -> None:
    machine = Machine()
    job = machine.submit("a", A)
    machine.now += 3 * SECOND
    machine.write({job: account(machine.now, row="turn", turn_ns=2 * SECOND)})
    assert machine.had(job="a", what=WAITED) == 2 * SECOND
    machine.now += 5 * SECOND  # of the next note it is known that it still waits
    machine.write({})
    assert machine.had(job="a", what=WAITED) == 2 * SECOND, "quiet jobs are booked now and then"
    machine.now += 6 * SECOND
    machine.write({})
    assert machine.had(job="a", what=WAITED) == 13 * SECOND
    waits = machine.kept.waited_ns
    assert waits == {"a": 13 * SECOND}
    machine.now += 4 * SECOND
    machine.begin()
    machine.meter.take_up(Cut(waited_ns=dict(waits)))
    known = account(machine.now - SECOND, row="turn", turn_ns=16 * SECOND)
    machine.tell(JobAdopted(
        job=job, spec=JobSpec(name="a"), device=A, holding=False, steps=1, live_bytes=0, needs=None, account=known,
    ))  # fmt: skip
    file = JobFile(job=job, number=1, spec=JobSpec(name="a"), argv=[], cwd="/")
    machine.meter.end_account(replace(picture_lost(file, None), waited_ns=17 * SECOND), now=machine.now)
    machine.write({})
    assert machine.had(job="a", what=WAITED) == 17 * SECOND, "what it waited in all, and nothing twice"


def test_what_is_lent_is_on_the_account_of_the_tenant_and_what_is_borrowed_on_that_of_the_job() -> None:
    machine = Machine()
    job = machine.submit("a", A)
    machine.meter.note_lent({TenantId("lab"): 5, TenantId("ana"): 3})
    machine.meter.note_lent({TenantId("lab"): 7, TenantId("ana"): 3})
    machine.now += SECOND
    machine.write({job: replace(account(machine.now, row="run", turn_ns=0), borrowed_ns=6)})
    lent = {key.tenant: (key.user, spent[LENT]) for key, spent in machine.kept.rows.items() if key.kind == Kind.LOAN}
    assert lent == {"lab": ("", 7), "ana": ("ana", 3)}, "a tenant that is one user is named as he is"
    assert machine.had(job="a", what=BORROWED) == 6
    machine.check()
    machine.begin()  # what was borrowed before is booked, and what was lent begins anew with the scheduler
    known = replace(account(machine.now, row="run", turn_ns=0), borrowed_ns=6)
    machine.tell(JobAdopted(
        job=job, spec=JobSpec(name="a"), device=A, holding=False, steps=1, live_bytes=0, needs=None, account=known,
    ))  # fmt: skip
    machine.meter.note_lent({TenantId("lab"): 2})
    machine.write({job: replace(known, borrowed_ns=10)})
    assert (machine.had(kind=Kind.LOAN, what=LENT), machine.had(job="a", what=BORROWED)) == (12, 10)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 150))
def test_j10_any_sequence_of_facts_adds_up_to_the_time_times_the_devices(seed: int, length: int) -> None:
    random_source, machine = random.Random(seed), Machine()
    for number in range(length):
        machine.now += random_source.choice((0, 1, 7, SECOND, 11 * SECOND, HOUR * SECOND // 3, 30 * HOUR * SECOND))
        jobs = list(machine.jobs.values())
        job = random_source.choice(jobs) if jobs else None
        match random_source.randrange(12):
            case 0 | 1:
                machine.submit(f"j{number}", random_source.choice((A, B)))
            case 2 | 3 | 4 if job is not None:
                machine.grant(job)
            case 5 | 6 if job is not None:
                machine.give_back(job)
            case 7 if job is not None:
                machine.tell(Tick(), MoveJob(job=job, source=A, device=random_source.choice((A, B))))
            case 8 if job is not None:
                machine.tell(JobExited(job=job, code=0), CloseJob(job=job, state=JobState.FINISHED, reason=""))
                del machine.jobs[job]
            case 9:
                machine.begin()  # killed: what was not written is lost
            case 10:
                machine.ahead_ns += random_source.choice((-SECOND, -60 * SECOND, 5 * SECOND, 9 * HOUR * SECOND))
            case _:
                machine.write()
                machine.check()
    machine.write()
    machine.check()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Europe/Berlin"])
@pytest.mark.parametrize("span", [HOUR, DAY, MONTH])
def test_hours_and_days_are_those_of_the_zone_and_follow_each_other(
    monkeypatch: pytest.MonkeyPatch, zone: str, span: int
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    at_s = start_of(1_790_000_000, span)
    for _ in range(800 if span == HOUR else 60):
        ends_s = end_of(at_s, span)
        assert at_s < ends_s <= at_s + 1.05 * span
        assert start_of(ends_s - 1, span) == at_s
        assert start_of(ends_s, span) == ends_s
        assert span == HOUR or time.localtime(ends_s)[3:5] == (0, 0)
        at_s = ends_s
