"""Jobs kept sorted by their keys while time passes, without sorting anything twice.

A key's first part falls at a constant speed while its job runs, so jobs of equal speed never overtake each other.
Each row holds jobs of one size and one speed, sorted by what their keys were at time zero; what is before a given
key at a given time is one bisection a row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from carpool.core.cluster.model import ClusterJob, Entry, Key
from carpool.core.kernel.ids import Nanos
from carpool.errors import InternalError


class RunningJobs:
    """The running jobs of one pool: those on its own share, or its loans."""

    __slots__ = ("_last", "_rows", "size_milli")

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], list[Entry]] = {}  # by size and speed
        self._last: tuple[Key, ClusterJob] | None = None  # known while no key falls by itself
        self.size_milli = 0  # of all jobs

    def __iter__(self) -> Iterator[ClusterJob]:
        for row in self._rows.values():
            for entry in row:
                yield entry[2]

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, job: ClusterJob, speed: int, now: Nanos) -> None:
        job.speed = speed
        entry = job.entry = (job.key[0] + speed * now, job.key[1], job)
        row = self._rows.get((job.size_milli, speed))
        if row is None:
            row = self._rows[job.size_milli, speed] = []
        insort(row, entry)
        if self._last is not None:
            if speed:
                self._last = None
            elif job.key > self._last[0]:
                self._last = (job.key, job)
        self.size_milli += job.size_milli

    def remove(self, job: ClusterJob) -> None:
        entry = job.entry
        if entry is None:
            raise InternalError(f"job {job.id} does not run")
        if self._last is not None and self._last[1] is job:
            self._last = None
        row = self._rows[job.size_milli, job.speed]
        del row[bisect_left(row, entry)]
        if not row:
            del self._rows[job.size_milli, job.speed]
        job.entry = None
        self.size_milli -= job.size_milli

    def size_before(self, key: Key, now: Nanos) -> int:
        """The size of all jobs that go before the key."""
        size_milli = 0
        for (size, speed), row in self._rows.items():
            size_milli += size * bisect_left(row, (key[0] + speed * now, key[1]) if speed else key)
        return size_milli

    def last(self, now: Nanos) -> tuple[Key, ClusterJob] | None:
        """The job that goes after all others, with its key now."""
        if self._last is not None:
            return self._last
        worst: tuple[Key, ClusterJob] | None = None
        is_falling = False
        most = 0
        for (_, speed), row in self._rows.items():
            first, second, job = row[-1]
            if speed:
                first -= speed * now
                is_falling = True
            if worst is None or first > most or (first == most and (first, second) > worst[0]):
                most, worst = first, ((first, second), job)
        if not is_falling:
            self._last = worst
        return worst

    def firsts(self, now: Nanos) -> Iterator[tuple[Key, ClusterJob]]:
        """The first job of each row, with its key now."""
        for (_, speed), row in self._rows.items():
            first, second, job = row[0]
            yield (first - speed * now, second) if speed else job.key, job

    def next_after(self, job: ClusterJob, now: Nanos) -> tuple[Key, ClusterJob] | None:
        """The job behind this one in its row."""
        if job.entry is None:
            raise InternalError(f"job {job.id} does not run")
        row = self._rows[job.size_milli, job.speed]
        place = bisect_left(row, job.entry) + 1
        if place == len(row):
            return None
        first, second, other = row[place]
        return (first - job.speed * now, second), other


class WaitingJobs:
    """The waiting jobs of one pool, by shape: if the first of a shape finds no place, no other of that shape does."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[int, list[Entry]] = {}

    def __iter__(self) -> Iterator[ClusterJob]:
        for row in self.rows.values():
            for entry in row:
                yield entry[2]

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, job: ClusterJob) -> None:
        entry = job.entry = (*job.key, job)
        row = self.rows.get(job.shape)
        if row is None:
            self.rows[job.shape] = [entry]
        else:
            insort(row, entry)

    def remove(self, job: ClusterJob) -> None:
        if job.entry is None:
            raise InternalError(f"job {job.id} is in no queue")
        row = self.rows[job.shape]
        del row[bisect_left(row, job.entry)]
        if not row:
            del self.rows[job.shape]
        job.entry = None

    def is_first(self, job: ClusterJob) -> bool:
        """Whether no other of its shape goes before the job."""
        return self.rows[job.shape][0][2] is job
