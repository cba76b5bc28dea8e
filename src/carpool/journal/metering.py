"""The meter: who had which device for how long, from what the core was told and ordered; for `carpool usage`.

It sees every call of the core as the journal does, and looks only at those that give or end a turn, bring or end a
job, or say how many bytes it holds. What it booked is cut off with each note of the accounts, and written with it.

Rules
  J10  Each nanosecond of each device is booked once: on the job that had the device, as idle, or as unknown. Where
       several jobs have a device at once (packing), each has an equal part. So the rows of a time add up to the time
       times the devices, exactly.
  J11  What is booked and until when is written in one transaction. After a daemon that was killed, the time from
       there to the first fact of the next daemon is unknown; so is any time without a daemon.
  J12  Booked time runs with the machine's monotonic clock from the daemon's first fact on. A wall clock that jumps
       ahead (a machine that slept) leaves unknown time. One that is set back is followed only if it is a day or more:
       no time is booked twice for a clock that is corrected.
  J13  A hand-over costs no row and no write: a row for each job, device and hour is written with the accounts.

A turn is "had" from its grant to its return. What a job waits is what its account says (A4): for a turn, for memory,
parked, at its limit. Memory is the bytes that the job was last seen to hold, times how long. A job outside the turns
has no device time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from carpool.core.kernel.ids import DeviceId, JobId, Nanos, TenantId
from carpool.core.node.effects import (
    CloseJob,
    Effect,
    GrantLease,
    MoveJob,
    RefuseJob,
    RejectEvent,
    RevokeLease,
    StartJob,
)
from carpool.core.node.events import (
    DeviceAdded,
    Event,
    JobAdopted,
    JobDetached,
    JobExited,
    JobParked,
    JobSubmitted,
    JobUnparked,
    LeaseReturned,
    NeedsMeasured,
    ProgressSeen,
)
from carpool.core.node.model import Account, JobSpec
from carpool.core.node.words.pictures import WAITS
from carpool.core.node.words.views import JobPicture
from carpool.journal.hours import DAY, HOUR, end_of, start_of
from carpool.units import MIB, MS, SECOND

JUMP_NS = 2 * SECOND  # so far may the wall clock be from the meter's before it counts as set
SET_BACK_NS = DAY * SECOND  # a clock that was set back by so much is followed
QUIET_NS = 10 * SECOND  # so long may what a quiet job waits be unbooked
GAP_KEPT_S = 400 * DAY  # of a longer time without a daemon only so much is booked
GAP_HOURS_S = 3 * DAY  # a longer one is booked by the day
MIB_MS = MIB * MS  # in which memory times time is kept: a byte times a nanosecond would not fit a column


class Kind:
    """What a row is about, as it is kept."""

    JOB, IDLE, UNKNOWN, LOAN = range(4)


class Key(NamedTuple):
    """What a row of usage is booked on; `job` is empty once it was rolled up."""

    start_s: int
    span_s: int
    kind: int
    device: str
    tenant: str = ""
    user: str = ""
    job: str = ""


Spent = list[int]  # had_ns, waited_ns, memory in MiB times ms, lent_ns, borrowed_ns
HAD, WAITED, MEMORY, LENT, BORROWED = range(5)


@dataclass(slots=True)
class Cut:
    """What was booked since the last cut, and until when; both are written together (J11)."""

    rows: dict[Key, Spent] = field(default_factory=dict)
    until_ns: dict[str, int] = field(default_factory=dict)  # of each device, since 1970
    since_ns: dict[str, int] = field(default_factory=dict)  # of each device: from where on, without a gap
    waited_ns: dict[str, int] = field(default_factory=dict)  # of each live job that waited: what is booked of it

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.until_ns or self.waited_ns)

    def followed_by(self, newer: Cut) -> Cut:
        if self.is_empty:
            return newer
        rows = {key: list(spent) for key, spent in self.rows.items()}
        for key, spent in newer.rows.items():
            add(rows, key, spent)
        spans = self.until_ns | newer.until_ns, self.since_ns | newer.since_ns
        return Cut(rows, *spans, self.waited_ns | newer.waited_ns)

    def without_jobs(self) -> Cut:
        """The same by the user only: for a disk that has taken nothing for long."""
        rows: dict[Key, Spent] = {}
        for key, spent in self.rows.items():
            add(rows, key._replace(job=""), spent)
        return Cut(rows, self.until_ns, self.since_ns, self.waited_ns)


def add(rows: dict[Key, Spent], key: Key, spent: Iterable[int]) -> None:
    before = rows.get(key)
    rows[key] = list(spent) if before is None else [old + new for old, new in zip(before, spent, strict=True)]


@dataclass(slots=True, eq=False)
class _Device:
    id: DeviceId
    since_ns: Nanos  # until here all is booked
    began_ns: int  # from here on, since 1970
    holders: dict[JobId, _Job] = field(default_factory=dict)
    idle_ns: Nanos = 0


@dataclass(slots=True, eq=False)
class _Job:
    id: JobId
    tenant: str
    user: str
    device: _Device | None = None
    had_ns: Nanos = 0  # this and the next three: since the last cut
    waited_ns: Nanos = 0
    borrowed_ns: Nanos = 0
    byte_ns: int = 0
    live_bytes: int = 0
    away_bytes: int = 0  # what it held before it was parked
    bytes_since_ns: Nanos = 0
    booked_wait_ns: Nanos = 0  # what it waited as far as it is booked, all daemons together
    booked_loan_ns: Nanos = 0  # what it borrowed, as far as it is booked
    account_wait_ns: Nanos = 0  # what its account said it had waited …
    account_at_ns: Nanos = 0  # … then
    is_waiting: bool = False  # and whether it has waited since then


class Meter:
    def __init__(self, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._devices: dict[DeviceId, _Device] = {}
        self._jobs: dict[str, _Job] = {}
        self._cut = Cut()
        self._found = Cut()
        self._shift_ns: int | None = None  # from the monotonic clock to the meter's
        self._hour_ends_ns = 0
        self._hour_s = 0
        self._swept_ns = self._began_ns = 0
        self._lent_ns: dict[TenantId, Nanos] = {}  # as far as it is booked
        self._users: set[str] = set()

    def take_up(self, found: Cut) -> None:
        """Go on where the last daemon stopped: until when what was booked, and what its jobs had waited."""
        self._found = found

    # --- every call of the core ----------------------------------------------------------------------------

    def note(self, now: Nanos, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, LeaseReturned):
            self._leave(now, event.job)
        elif type(event) in _RARE:
            self._note_rare(now, event, effects)
        for effect in effects:
            if isinstance(effect, GrantLease):
                self._enter(now, effect.job)
            elif type(effect) in _ORDERS:
                self._note_order(now, effect)

    def _leave(self, now: Nanos, job_id: JobId) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.device is not None and job_id in job.device.holders:
            self._book(job.device, now)
            del job.device.holders[job_id]

    def _enter(self, now: Nanos, job_id: JobId) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.device is not None:
            self._book(job.device, now)
            job.device.holders[job_id] = job

    def _note_rare(self, now: Nanos, event: Event, effects: list[Effect]) -> None:
        match event:
            case ProgressSeen():
                self._see_bytes(now, event.job, event.live_bytes)
            case NeedsMeasured():
                job = self._jobs.get(event.job)
                if job is not None and not job.live_bytes:  # nobody has looked into its page yet
                    self._see_bytes(now, event.job, event.needs.total_bytes)
            case JobParked():
                job = self._jobs.get(event.job)
                if job is not None:
                    job.away_bytes = max(job.away_bytes, job.live_bytes)
                    self._see_bytes(now, event.job, event.resident_bytes)
            case JobUnparked():
                job = self._jobs.get(event.job)
                if job is not None:
                    self._see_bytes(now, event.job, job.away_bytes)
                    job.away_bytes = 0
            case JobExited() | JobDetached():
                self._leave(now, event.job)
            case DeviceAdded():
                self._add_device(now, event.device)
            case JobSubmitted() | JobAdopted():
                if not any(type(effect) is RejectEvent for effect in effects):
                    self._add_job(now, event, effects)

    def _note_order(self, now: Nanos, effect: Effect) -> None:
        match effect:
            case RevokeLease():
                self._leave(now, effect.job)
            case StartJob() | MoveJob():
                self._leave(now, effect.job)
                self._place(now, effect.job, effect.device)
            case CloseJob() | RefuseJob():
                self._close(now, effect.job)

    def _see_bytes(self, now: Nanos, job_id: JobId, live_bytes: int) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.live_bytes != live_bytes:
            self._book_bytes(job, now)
            job.live_bytes = live_bytes

    # --- jobs and devices come and go ----------------------------------------------------------------------

    def _add_device(self, now: Nanos, device: DeviceId) -> None:
        if self._shift_ns is None:
            self._set_clock(now)
        # All that are told at a daemon's start are here from one moment on: the time times the devices is then exact.
        now = self._began_ns if not self._jobs and now - self._began_ns < JUMP_NS else now
        at_ns = now + (self._shift_ns or 0)
        was_until_ns = self._found.until_ns.get(device)
        began_ns = self._found.since_ns.get(device, at_ns) if was_until_ns is not None else at_ns
        self._devices[device] = _Device(device, now, began_ns)
        if was_until_ns is not None:
            self._book_unknown(device, was_until_ns, at_ns)

    def _add_job(self, now: Nanos, event: JobSubmitted | JobAdopted, effects: list[Effect]) -> None:
        spec: JobSpec = event.spec
        job = self._jobs[event.job] = _Job(event.job, spec.tenant, spec.user, bytes_since_ns=now)
        self._users.add(spec.user)
        account = event.account
        if account is not None:
            # What the daemon before did not book, and what is known of the time without one, is booked from now on.
            job.booked_wait_ns = self._found.waited_ns.pop(event.job, _waited(account))
            job.account_wait_ns = max(job.booked_wait_ns, _waited(account))
            job.booked_loan_ns = account.borrowed_ns
        job.account_at_ns = now
        if isinstance(event, JobAdopted):
            self._place(now, event.job, event.device)
            job.live_bytes = event.live_bytes
            if event.holding and not any(type(effect) is RevokeLease for effect in effects):
                self._enter(now, event.job)

    def _place(self, now: Nanos, job_id: JobId, device: DeviceId) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            self._put(job, now)
            job.device = self._devices.get(device)

    def _close(self, now: Nanos, job_id: JobId) -> None:
        self._leave(now, job_id)
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._put(job, now)
            self._cut.waited_ns.pop(job_id, None)

    # --- booking -------------------------------------------------------------------------------------------

    def _book(self, device: _Device, now: Nanos) -> None:
        """Book the time of a device up to now (J10)."""
        if now >= self._hour_ends_ns:
            self._turn_hours(now)
        span = now - device.since_ns
        if span <= 0:
            return
        device.since_ns = now
        holders = device.holders
        if len(holders) == 1:
            for job in holders.values():
                job.had_ns += span
        elif holders:
            part, rest = divmod(span, len(holders))
            for place, job in enumerate(holders.values()):
                job.had_ns += part + (place < rest)
        else:
            device.idle_ns += span

    def _book_bytes(self, job: _Job, now: Nanos) -> None:
        if now > job.bytes_since_ns:
            job.byte_ns += job.live_bytes * (now - job.bytes_since_ns)
            job.bytes_since_ns = now

    def _book_wait(self, job: _Job, now: Nanos) -> None:
        waited_ns = job.account_wait_ns + (max(0, now - job.account_at_ns) if job.is_waiting else 0)
        if waited_ns > job.booked_wait_ns:
            job.waited_ns += waited_ns - job.booked_wait_ns
            job.booked_wait_ns = self._cut.waited_ns[job.id] = waited_ns

    def _put(self, job: _Job, now: Nanos) -> None:
        """Put what is booked on a job into the row of this hour."""
        if now >= self._hour_ends_ns:
            self._turn_hours(now)
        self._book_bytes(job, now)
        memory, job.byte_ns = divmod(job.byte_ns, MIB_MS)
        if job.had_ns or job.waited_ns or memory or job.borrowed_ns:
            device = job.device.id if job.device is not None else ""
            key = Key(self._hour_s, HOUR, Kind.JOB, device, job.tenant, job.user, job.id)
            add(self._cut.rows, key, (job.had_ns, job.waited_ns, memory, 0, job.borrowed_ns))
            job.had_ns = job.waited_ns = job.borrowed_ns = 0

    def _put_all(self, now: Nanos) -> None:
        for device in self._devices.values():
            self._book(device, now)
            if device.idle_ns:
                key = Key(self._hour_s, HOUR, Kind.IDLE, device.id)
                add(self._cut.rows, key, (device.idle_ns, 0, 0, 0, 0))
                device.idle_ns = 0
        for job in self._jobs.values():
            self._put(job, now)

    def _turn_hours(self, now: Nanos) -> None:
        """Book each hour that ended by now for itself."""
        while now >= self._hour_ends_ns:
            ends_ns = self._hour_ends_ns
            for job in self._jobs.values():
                self._book_wait(job, ends_ns)
            self._hour_ends_ns = ends_ns + SECOND * HOUR  # so that it is not turned again in here
            self._put_all(ends_ns)
            self._begin_hour(ends_ns)

    def _begin_hour(self, at_ns: Nanos) -> None:
        shift_ns = self._shift_ns or 0
        self._hour_s = start_of((at_ns + shift_ns) // SECOND, HOUR)
        self._hour_ends_ns = end_of(self._hour_s, HOUR) * SECOND - shift_ns

    def _book_unknown(self, device: str, since_ns: int, until_ns: int) -> None:
        """Book a time in which no daemon looked (J11), in pieces that each are in one hour or one day."""
        at_ns = max(since_ns, until_ns - GAP_KEPT_S * SECOND)
        span = DAY if until_ns - at_ns > GAP_HOURS_S * SECOND else HOUR
        while at_ns < until_ns:
            start_s = start_of(at_ns // SECOND, span)
            ends_ns = min(until_ns, end_of(start_s, span) * SECOND)
            add(self._cut.rows, Key(start_s, span, Kind.UNKNOWN, device), (ends_ns - at_ns, 0, 0, 0, 0))
            at_ns = ends_ns

    # --- the clock -----------------------------------------------------------------------------------------

    def _set_clock(self, now: Nanos) -> None:
        """Begin with the wall clock, or where the last daemon's bookings end if that clock is behind them (J12)."""
        wall_ns, booked_ns = self._wall_ns(), max(self._found.until_ns.values(), default=0)
        self._shift_ns = (wall_ns if booked_ns - wall_ns >= SET_BACK_NS else max(wall_ns, booked_ns)) - now
        self._swept_ns = self._began_ns = now
        self._begin_hour(now)

    def _follow_clock(self, now: Nanos) -> None:
        """The wall clock was set, or the machine slept (J12)."""
        ahead_ns = self._wall_ns() - now - (self._shift_ns or 0)
        if -SET_BACK_NS < ahead_ns <= JUMP_NS:
            return
        self._put_all(now)
        if ahead_ns > 0:
            booked_ns = now + (self._shift_ns or 0)
            for device in self._devices:
                self._book_unknown(device, booked_ns, booked_ns + ahead_ns)
        self._shift_ns = (self._shift_ns or 0) + ahead_ns
        self._begin_hour(now)

    # --- what is written -----------------------------------------------------------------------------------

    def cut(self, now: Nanos, accounts: Mapping[str, Account]) -> Cut:
        """All that was booked since the last time. `accounts` are those of jobs that do something else by now, or
        wait for turns; all others do what they did."""
        if self._shift_ns is None:
            return Cut()
        for job_id, account in accounts.items():
            self._learn(job_id, account)
        is_due = now - self._swept_ns >= QUIET_NS
        self._swept_ns = now if is_due else self._swept_ns
        for job in self._jobs.values() if is_due else filter(None, map(self._jobs.get, accounts)):
            self._book_wait(job, now)
        self._put_all(now)
        self._follow_clock(now)
        cut, self._cut = self._cut, Cut()
        cut.until_ns = {device.id: device.since_ns + self._shift_ns for device in self._devices.values()}
        cut.since_ns = {device.id: device.began_ns for device in self._devices.values()}
        return cut

    def _learn(self, job_id: str, account: Account) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            job.account_wait_ns, job.account_at_ns = _waited(account), account.at_ns
            job.is_waiting = account.row in WAITS
            self._book_loan(job, account.borrowed_ns)

    def end_account(self, picture: JobPicture, *, now: Nanos) -> None:
        """A job is over: what it had waited and borrowed in all."""
        job = self._jobs.get(picture.id)
        if job is not None:
            job.account_wait_ns, job.account_at_ns, job.is_waiting = picture.waited_ns, now, False
            self._book_wait(job, now)
            self._book_loan(job, picture.borrowed_ns)

    def _book_loan(self, job: _Job, borrowed_ns: Nanos) -> None:
        job.borrowed_ns += max(0, borrowed_ns - job.booked_loan_ns)
        job.booked_loan_ns = borrowed_ns

    def note_lent(self, lent_ns: Mapping[TenantId, Nanos]) -> None:
        """Book what each tenant lent of its guaranteed part since the last time; `lent_ns` is since the daemon began.
        A tenant that is one user, and named so, is that user's row too."""
        for tenant, until_now_ns in lent_ns.items():
            span = until_now_ns - self._lent_ns.get(tenant, 0)
            self._lent_ns[tenant] = until_now_ns
            if span > 0:
                user = tenant if tenant in self._users else ""
                add(self._cut.rows, Key(self._hour_s, HOUR, Kind.LOAN, "", tenant, user), (0, 0, 0, span, 0))


def _waited(account: Account) -> Nanos:
    return sum(account.spent_ns.get(row, 0) for row in WAITS)


_RARE = {
    ProgressSeen,
    NeedsMeasured,
    JobParked,
    JobUnparked,
    JobExited,
    JobDetached,
    DeviceAdded,
    JobSubmitted,
    JobAdopted,
}
_ORDERS = {RevokeLease, StartJob, MoveJob, CloseJob, RefuseJob}
