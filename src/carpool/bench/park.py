"""How fast a job's memory leaves the device and comes back, and what turns on a device that is too small cost.

Moves: two nodes run one job each that holds `moved_mib` (`programs/hold.py`), one with its store in memory (tmpfs),
one with it on the disk of the temporary directory. Rounds are interleaved: each job is resumed, makes an
iteration, is suspended, resumed at once, makes another and is suspended again; a plain copy of as many bytes is
timed in between, by one thread, to memory that is there (`memcpy_gib_per_s`) and to memory that is new
(`memcpy_new_gib_per_s`). Figures are medians: bytes by the time the job's own process took, from the order to the
answer. `park_…` are later moves, `park_first_…` is a job's first, which has to get the store's pages. `unpark_…`
follows a move out at once, as in a rotation, where one job takes the memory that another one left;
`unpark_late_…` comes seconds later, when a virtual machine may have given the free memory back to its host.
`share_of_memcpy` is for the store in memory, there and back: twice the bytes by the time of both moves, by
`memcpy_gib_per_s`; `share_of_memcpy_late` is the same with the late way back. `suspend_over_iteration` is the time
from the order to the report less the copy, by an iteration.

Turns: for each level, equal jobs whose persistent bytes sum to so many times the device's capacity are run one after
another without carpool, and all at once under carpool, policy fair. Both arms run at the same time, each on a core of
its own (all of carpool's on one), so that whatever else the machine does hits both; the jobs use one thread.
`total_over_sequential_…` is the ratio of wall times, start-up included; the median over repeats. The jobs' results
must be the same to the last bit. `moving_share_…` is the time in which jobs were on their way, by the wall time of
the carpool arm.

`simulated_total_over_sequential_…` is the same ratio for the scheduler in virtual time: jobs of 12 GiB and one minute
on a device of 16 GiB that moves 20 GiB a second. No program and no copy is in it.

Not measured: a GPU, where bytes go to locked host memory.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from carpool.bench.node import Node, Side, open_node, python, run_at_once, run_plain, wait_all
from carpool.bench.report import Report, Say, Target
from carpool.calls import Job
from carpool.core.node.effects import Effect, ParkJob
from carpool.core.node.events import Event
from carpool.core.node.model import JobSpec, Needs
from carpool.errors import AnsweredError, PeerError, RefusedError
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script

MIB, GIB = 1 << 20, 1 << 30
MEMORY_DISK = Path("/dev/shm")
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.01  # a look costs the daemon a millisecond of the processor that moves
ARM_SECONDS = 1800.0
STAYS_MIB = 60  # of a parked job on the device: the framework's own heap
SCRATCH_MIB = 60  # activations and what else a turn takes
FOREVER = 1_000_000
STEPS_BETWEEN = 1
SIMULATED = (2, 4, 8)
SIM_CAPACITY, SIM_JOB, SIM_RATE = 16 * GIB, 12 * GIB, 20 * GIB


@dataclass(slots=True)
class Moves:
    """What was seen of one job's moves, by round."""

    park: list[float] = field(default_factory=list)  # GiB a second
    unpark: list[float] = field(default_factory=list)  # at once after a move out
    unpark_late: list[float] = field(default_factory=list)  # a while after it
    wait: list[float] = field(default_factory=list)  # from the order to the report, less the copy, in iterations

    def both_ways(self, unpark: list[float]) -> float:
        """GiB a second there and back."""
        return 2 / (1 / median(self.park) + 1 / median(unpark))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How many jobs of which size on which device."""

    times: int
    jobs: int
    job_mib: int

    @property
    def cap_mib(self) -> int:
        return self.job_mib + STAYS_MIB + SCRATCH_MIB

    @property
    def capacity_mib(self) -> int:
        return self.cap_mib + (self.jobs - 1) * STAYS_MIB


def level_for(times: int, job_mib: int) -> Level:
    """As many jobs as it takes: each leaves a little on the device, so a larger level needs far more of them."""
    jobs = 2
    while jobs * job_mib < times * Level(times=times, jobs=jobs, job_mib=job_mib).capacity_mib:
        jobs += 1
        if jobs > 64:
            raise PeerError(f"{times} times a device takes jobs of more than {job_mib} MiB: what they leave fills it")
    return Level(times=times, jobs=jobs, job_mib=job_mib)


def run(say: Say, *, moved_mib: int, rounds: int, levels: dict[int, int], steps: int, repeats: int) -> Report:
    """`levels`: times the capacity, to the size of a job in MiB; no rounds: only those."""
    report = Report(bench="park")
    if rounds:
        _bench_moves(say, report, moved_mib=moved_mib, rounds=rounds)
    for times in SIMULATED:
        report.add(f"simulated_total_over_sequential_{times}x", simulated_total(times, steps=600)[0])
    for times, job_mib in levels.items():
        _bench_level(say, report, level_for(times, job_mib), steps=steps, repeats=repeats)
    return report


# --- moves --------------------------------------------------------------------------------------------------


def _bench_moves(say: Say, report: Report, *, moved_mib: int, rounds: int) -> None:
    if not is_in_memory(MEMORY_DISK):
        raise RefusedError(
            f"{MEMORY_DISK} is no directory in memory here, so there is nothing fast to park to and no figure for it;"
            f" mount one: mount -t tmpfs tmpfs {MEMORY_DISK}"
        )
    if is_in_memory(Path(tempfile.gettempdir())):
        report.notes.append(
            f"the figures of the disk are of memory too: {tempfile.gettempdir()} is a tmpfs; set TMPDIR to a disk"
        )
    arms = {"memory": MEMORY_DISK, "disk": None}
    found = {arm: Moves() for arm in arms}
    warm: list[float] = []
    new: list[float] = []
    with ExitStack() as stack:
        nodes = {
            arm: stack.enter_context(open_node(policy="fair", device="cpu:4GiB", root=root))
            for arm, root in arms.items()
        }
        for node in nodes.values():
            node.run(python("hold.py", {"mib": moved_mib, "steps": FOREVER}), "--name", "held")
            _wait(node, lambda job: job.needs is not None and job.step_ns is not None)
        first = {arm: _rate_of(_suspend(node)[0]) for arm, node in nodes.items()}
        for number in range(rounds):
            for arm, node in nodes.items():
                _move(node, found[arm])
            plain, fresh = _copy_rates(moved_mib * MIB)
            warm.append(plain)
            new.append(fresh)
            last = found["memory"]
            say(
                f"park: round {number + 1}: {last.park[-1]:.2f} GiB/s out, {last.unpark[-1]:.2f} in, copy {plain:.2f}"
            )
    memory, disk = found["memory"], found["disk"]
    report.add("park_gib_per_s", median(memory.park))
    report.add("unpark_gib_per_s", median(memory.unpark))
    report.add("memcpy_gib_per_s", median(warm))
    report.add("share_of_memcpy", memory.both_ways(memory.unpark) / median(warm), Target(limit=0.7, is_least=True))
    report.add("suspend_over_iteration", median(memory.wait), Target(limit=1.5))
    report.add("park_first_gib_per_s", first["memory"])
    report.add("unpark_late_gib_per_s", median(memory.unpark_late))
    report.add("share_of_memcpy_late", memory.both_ways(memory.unpark_late) / median(warm))
    report.add("park_disk_gib_per_s", median(disk.park))
    report.add("unpark_disk_gib_per_s", median(disk.unpark))
    report.add("unpark_late_disk_gib_per_s", median(disk.unpark_late))
    report.add("memcpy_new_gib_per_s", median(new))
    report.add("share_of_new_memcpy", memory.both_ways(memory.unpark) / median(new))
    report.add("moved_mib", moved_mib)


def is_in_memory(directory: Path) -> bool:
    """Whether a directory is there and on a tmpfs, by the kernel's list of mounts."""
    if not directory.is_dir():
        return False
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [(len(Path(point).parts), kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(reversed(above), key=lambda mount: mount[0])[1] == "tmpfs"  # of two at one point the later counts


def _move(node: Node, moves: Moves) -> None:
    """Bring the job back, park it, bring it back at once and park it again."""
    for rates in (moves.unpark_late, moves.unpark):
        rates.append(_resume(node))
        _wait_steps(node, _job(node).steps + STEPS_BETWEEN)
        job, asked_s = _suspend(node)
        moves.park.append(_rate_of(job))
        assert job.step_ns is not None  # it was waited for at the start
        moves.wait.append((asked_s * 1e9 - job.move_ns) / job.step_ns)


def _wait_steps(node: Node, count: int) -> None:
    _wait(node, lambda job: job.steps >= count)


def _resume(node: Node) -> float:
    bytes_away = _job(node).parked_bytes
    node.client.resume("held")
    job = _wait(node, lambda job: job.state == "running")
    return float(bytes_away / GIB / (job.move_ns / 1e9))


def _rate_of(job: Job) -> float:
    """GiB a second of a job that was parked just now."""
    return float(job.parked_bytes / GIB / (job.move_ns / 1e9))


def _suspend(node: Node) -> tuple[Job, float]:
    began = time.monotonic()
    node.client.suspend("held")
    job = _wait(node, lambda job: job.state == "parked")
    return job, time.monotonic() - began


def _job(node: Node) -> Job:
    return node.client.job("held")


def _wait(node: Node, is_so: Callable[[Job], bool]) -> Job:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with suppress(AnsweredError):  # the job is not there yet
            job = _job(node)
            if is_so(job):
                return job
        time.sleep(LOOK_SECONDS)
    raise PeerError(f"the job to be moved did not get there within {WAIT_SECONDS:.0f} s: {_job(node).reason}")


def _copy_rates(count: int) -> tuple[float, float]:
    """GiB a second of a copy to memory that is there, and to memory that has to be got first."""
    source, target = mmap.mmap(-1, count), mmap.mmap(-1, count)
    for each in (source, target):
        ctypes.memset(_address(each), 1, count)
    began = time.monotonic()
    ctypes.memmove(_address(target), _address(source), count)
    warm_s = time.monotonic() - began
    began = time.monotonic()
    fresh = mmap.mmap(-1, count)
    ctypes.memmove(_address(fresh), _address(source), count)
    new_s = time.monotonic() - began
    return count / GIB / warm_s, count / GIB / new_s


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


# --- turns --------------------------------------------------------------------------------------------------


def _bench_level(say: Say, report: Report, level: Level, *, steps: int, repeats: int) -> None:
    ratios: list[float] = []
    shares: list[float] = []
    parks = 0
    for _ in range(repeats):
        arms = [partial(_run_sequential, level, steps), partial(_run_carpool, level, steps)]
        one_by_one, together = run_at_once(arms, seconds=ARM_SECONDS)
        ratios.append(together.whole_s / one_by_one.whole_s)
        shares.append(together.moving_s / together.whole_s)
        parks = together.parks
        say(
            f"park: {level.times}x, {level.jobs} jobs: {together.whole_s:.1f} s, one after another"
            f" {one_by_one.whole_s:.1f} s; {together.account}"
        )
        if together.results != one_by_one.results:
            report.failure = f"{level.times}x: a parked job's result differs from that of an undisturbed one"
    report.add(f"total_over_sequential_{level.times}x", median(ratios), Target(limit=1.15))
    report.add(f"moving_share_{level.times}x", median(shares))
    report.add(f"jobs_{level.times}x", level.jobs)
    report.add(f"parked_{level.times}x", parks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """All jobs of a level, run in one way."""

    whole_s: float
    results: list[str]
    moving_s: float = 0.0
    parks: int = 0
    account: str = ""


def _run_sequential(level: Level, steps: int, _side: Side) -> Arm:
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        outs = [Path(directory) / str(number) for number in range(level.jobs)]
        began = time.monotonic()
        for out in outs:
            run_plain([_command(level, steps, out)], seconds=ARM_SECONDS)
        return Arm(whole_s=time.monotonic() - began, results=[out.read_text() for out in outs])


def _run_carpool(level: Level, steps: int, _side: Side) -> Arm:
    with open_node(policy="fair", device=f"cpu:{level.capacity_mib}MiB") as node:
        outs = [node.directory / f"{number}.out" for number in range(level.jobs)]
        began = time.monotonic()
        started = [node.run(_command(level, steps, out), "--memory", f"{level.cap_mib}MiB") for out in outs]
        wait_all(started, seconds=ARM_SECONDS)
        whole_s = time.monotonic() - began
        node.check_jobs()
        spent: Counter[str] = Counter()
        for job in node.jobs():
            spent.update(job["spent_ns"])
        log = next(node.directory.rglob("daemon.log")).read_text()
        return Arm(
            whole_s=whole_s,
            results=[out.read_text() for out in outs],
            moving_s=spent["move"] / 1e9,
            parks=log.count(" job.parking "),
            account=", ".join(f"{row} {spent_ns / 1e9:.1f}" for row, spent_ns in spent.most_common()),
        )


def _command(level: Level, steps: int, out: Path) -> list[str]:
    return python("hold.py", {"mib": level.job_mib, "steps": steps, "out": out})


# --- virtual time -------------------------------------------------------------------------------------------


def simulated_total(times: int, *, steps: int) -> tuple[float, int]:
    """Total time by that of one job after another, and how often one was parked."""
    needs = Needs(persistent_bytes=SIM_JOB, ephemeral_bytes=GIB, overhead_bytes=GIB // 8)
    scripts = [
        Script(
            id=f"job{number}",
            submit_ns=number * 1_000_000,
            spec=JobSpec(name=f"job{number}", fingerprint=f"program {number}"),
            needs=needs,
            steps=steps,
            step_ns=100_000_000,
            start_ns=5_000_000_000,
            is_known=True,
        )
        for number in range(-(-times * SIM_CAPACITY // SIM_JOB))
    ]
    parked = 0

    def watch(_at: int, _event: Event, effects: list[Effect]) -> None:
        nonlocal parked
        parked += sum(isinstance(effect, ParkJob) for effect in effects)

    machine = Machine(devices=(("gpu0", SIM_CAPACITY),), move_bytes_per_s=SIM_RATE)
    outcome = NodeEngine("fair", machine, watch=watch).run(scripts)
    one_by_one_ns = sum(script.start_ns + script.work_ns for script in scripts)
    return max(job.end_ns for job in outcome.jobs) / one_by_one_ns, parked
