"""Salus (MLSys 2020) again: a heavy-tailed burst of 100 jobs on one card, and how many jobs its memory admits.

The arrival list of the paper's 3.19 × is not public, and the ratio is a property of the list: so ten seeded lists of
the same shape (lognormal lengths, sigma 1.55, five hours of work, a burst), each beside what a card without any
overhead would do with it. Lengths and needs are known beforehand, as Salus' jobs declare both. Without that:
  steps said    jobs declare their iterations; step times and needs are measured in their first turns
  nothing said  their first turns also show how many iterations their loops have
  blind         nobody ever knows a length: least attained service
`best blind` is a bound for the last: no rule that only knows how lengths are distributed does better. With these
lengths the chance to end soon rises for a while and then falls. So the best rule gives each job some time at once,
and what is left equal shares (Gittins); the time is chosen here with hindsight, for each list.

Side by side (PACK) two jobs slow each other down as the median pair that Gavel measured on the same card, a P100.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import StartJob
from carpool.core.node.events import DeviceAdded, HistoryLoaded, JobSubmitted
from carpool.core.node.model import History, JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.policies import POLICIES
from carpool.sim.ideal import Work, mean_completion_least, shared_completions
from carpool.sim.node_engine import NodeEngine
from carpool.sim.outcome import Outcome
from carpool.sim.pairs import pair_busy_milli
from carpool.sim.report import Cell, Study, Table, Target
from carpool.sim.scripts import Machine, Script
from carpool.sim.traces import TraceJob, read_salus
from carpool.sim.workload import lognormal, script_of
from carpool.units import GIB, SECOND

SEEDS = tuple(range(10))
JOBS = 100
CAPACITY_BYTES = 14 * GIB  # what Salus' code counts of a 16 GB P100
QUANTUM_NS = 5 * SECOND  # of five hours; shorter ones change the figures by less than a percent and take longer
ORDERS = 100  # random orders of the 33 configurations a seed
PUBLISHED = {"srtf": 3.19, "fair": 1.77, "pack": 1.17}
ARMS = ("srtf", "steps_said", "nothing_said", "blind", "fair", "pack")
BY_LENGTH = ARMS[:4]
SRTF_COLUMNS = {
    "ideal": "ideal_srtf",
    "SRTF": "srtf",
    "steps said": "steps_said",
    "nothing said": "nothing_said",
    "blind": "blind",
    "best blind": "ideal_best_blind",
}
SHARED_COLUMNS = {"FAIR": "fair", "ideal FAIR": "ideal_fair", "PACK": "pack", "ideal PACK": "ideal_pack"}
HEAD_STARTS_S = (0, 1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500)


def run(say: Callable[[str], None], *, quick: bool) -> Study:
    seeds = SEEDS[:1] if quick else SEEDS
    busy = pair_busy_milli()
    results = []
    for seed in seeds:
        results.append(_run_seed(seed, 30 if quick else JOBS, busy))
        say(f"salus: seed {seed}: " + ", ".join(f"{arm} {results[-1].ratio(arm):.2f}" for arm in ARMS))
    admitted = admission(seeds, 10 if quick else ORDERS)
    return Study(
        name="salus",
        title=f"Salus: {30 if quick else JOBS} jobs in a burst on one card of 14 GiB, {len(seeds)} seeds",
        tables=(
            *_ratio_tables(results),
            _memory_table(results),
            _admission_table(admitted),
        ),
        targets=_targets(results, admitted),
        notes=(
            "Salus' published ratios to FIFO, on its own list of jobs: SRTF 3.19, FAIR 1.77, PACK 1.17",
            f"side by side the device is busy {busy / 10:.1f} % of an iteration alone: the median P100 pair of Gavel",
            f"quantum {QUANTUM_NS // SECOND} s of five hours of work; a hand-over costs nothing here",
        ),
    )


def one_seed(seed: int) -> Study:
    """The first tables for one list of jobs; every run of the tests looks whether `docs/results.md` says the same."""
    return Study(
        name="salus", title="", tables=_ratio_tables([_run_seed(seed, JOBS, pair_busy_milli(), has_memory=False)])
    )


# --- the burst -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seed:
    """Mean completion times of one list of jobs; with `memory_` where the jobs' memory counts."""

    seed: int
    achieved: dict[str, float]
    ideal: dict[str, float]
    makespan: dict[str, float]

    def ratio(self, arm: str) -> float:
        return self.achieved["fifo"] / self.achieved[arm]

    def ideal_ratio(self, arm: str) -> float:
        return self.ideal["fifo"] / self.ideal[arm]

    def share(self, arm: str) -> float:
        return self.ratio(arm) / self.ideal_ratio(arm)


def _run_seed(seed: int, count: int, busy: int, *, has_memory: bool = True) -> _Seed:
    jobs = lognormal(count, seed=seed)
    runs = {
        "fifo": _simulate("fifo", [_resident(script_of(job)) for job in jobs]),
        "srtf": _simulate("srtf", [_resident(script_of(job)) for job in jobs]),
        "steps_said": _simulate("srtf", [_declared(script_of(job)) for job in jobs]),
        "nothing_said": _simulate("srtf", [_silent(script_of(job), tells_length=True) for job in jobs]),
        "blind": _simulate("srtf", [_silent(script_of(job), tells_length=False) for job in jobs]),
        "fair": _simulate("fair", [_resident(script_of(job)) for job in jobs]),
        "pack": _simulate("pack", [_resident(script_of(job, busy_milli=busy)) for job in jobs]),
    }
    for arm in PUBLISHED if has_memory else ():
        scripts = [script_of(job, busy_milli=busy if arm == "pack" else 1000) for job in jobs]
        runs[f"memory_{arm}"] = _simulate(arm, scripts)
    works = [Work(job.submit_ns, job.service_ns) for job in jobs]
    packed = [Work(job.submit_ns, job.service_ns, busy) for job in jobs]
    shortest = mean_completion_least(works, 1)
    return _Seed(
        seed=seed,
        achieved={arm: _mean(outcome) for arm, outcome in runs.items()},
        makespan={arm: float(outcome.makespan_ns) for arm, outcome in runs.items()},
        ideal={
            "fifo": _mean_in_turn(works),
            **dict.fromkeys(BY_LENGTH, shortest),
            "best_blind": best_blind(works),
            "fair": sum(shared_completions(works, 1)) / count,
            "pack": sum(shared_completions(packed, 1)) / count,
        },
    )


def _simulate(policy: str, scripts: Sequence[Script]) -> Outcome:
    quantum = QUANTUM_NS if POLICIES[policy].quantum_ns != 0 else None
    settings = Settings(quantum_ns=quantum, watch_ns=QUANTUM_NS, move_percent=0)  # Salus parks nobody
    return NodeEngine(policy, Machine(devices=(("p100", CAPACITY_BYTES),)), settings=settings).run(scripts)


def _resident(script: Script) -> Script:
    """The job without its memory: all are resident from the start."""
    return replace(script, needs=Needs(persistent_bytes=0, ephemeral_bytes=0))


def _declared(script: Script) -> Script:
    """Nothing is known but the declared number of iterations, and a cap that lets all be resident."""
    spec = replace(script.spec, fingerprint="", cap_bytes=1)
    return replace(_resident(script), spec=spec, is_known=False)


def _silent(script: Script, *, tells_length: bool) -> Script:
    """Not even that is declared; its loops may show it."""
    script = _declared(script)
    return replace(script, spec=replace(script.spec, steps=None), tells_length=tells_length)


def best_blind(works: Sequence[Work]) -> float:
    """The lowest mean completion time of a burst without any knowledge of its lengths but their distribution."""
    return min(_after_head_start(works, seconds * SECOND) for seconds in HEAD_STARTS_S)


def _after_head_start(works: Sequence[Work], head_ns: int) -> float:
    done = total = 0
    rest = []
    for work in works:
        done += min(work.service_ns, head_ns)
        if work.service_ns > head_ns:
            rest.append(Work(0, work.service_ns - head_ns))
        else:
            total += done
    return (total + sum(done + each for each in shared_completions(rest, 1))) / len(works)


def _mean(outcome: Outcome) -> float:
    return sum(job.completion_ns for job in outcome.jobs) / len(outcome.jobs)


def _mean_in_turn(works: Sequence[Work]) -> float:
    """One after the other in order of arrival; all came at once."""
    done = total = 0
    for work in works:
        done += work.service_ns
        total += done
    return total / len(works)


# --- admission -------------------------------------------------------------------------------------------------


def configurations() -> list[TraceJob]:
    """Salus' 33 programs, each once: its peak and how much of that stays between iterations."""
    return list({job.program: job for job in read_salus().jobs}.values())


def admission(seeds: Sequence[int], orders: int) -> dict[str, tuple[float, float]]:
    """Jobs admitted until the first that must wait, and their peaks by the capacity; means over random orders."""
    configs = configurations()
    rules: dict[str, Callable[[Sequence[TraceJob]], int]] = {
        "no sharing": _fit_whole,
        "the paper's rule": _fit_paper,
        "carpool, in turns": lambda order: _fit_carpool(order, "fair"),
        "carpool, side by side": lambda order: _fit_carpool(order, "pack"),
    }
    totals = {name: [0, 0] for name in rules}
    for seed in seeds:
        source = random.Random(seed)
        for _ in range(orders):
            order = source.sample(configs, len(configs))
            for name, rule in rules.items():
                count = rule(order)
                totals[name][0] += count
                totals[name][1] += sum(job.card_bytes for job in order[:count])
    runs = len(seeds) * orders
    return {name: (count / runs, peaks / runs / CAPACITY_BYTES) for name, (count, peaks) in totals.items()}


def _fit_whole(order: Sequence[TraceJob]) -> int:
    """Every job holds its peak all the time."""
    held = 0
    for count, job in enumerate(order):
        held += job.card_bytes
        if held > CAPACITY_BYTES:
            return count
    return len(order)


def _fit_paper(order: Sequence[TraceJob]) -> int:
    """As published: a new lane if it fits, else the tightest lane that is large enough, else a lane made larger."""
    persistent, lanes = 0, list[int]()
    for count, job in enumerate(order):
        room = CAPACITY_BYTES - persistent - job.persistent_bytes - sum(lanes)
        fitting = [size for size in lanes if size >= job.ephemeral_bytes]
        if room >= job.ephemeral_bytes:
            lanes.append(job.ephemeral_bytes)
        elif not fitting or room < 0:
            growth = job.ephemeral_bytes - max(lanes, default=0)
            if not lanes or not 0 < growth <= room:
                return count
            lanes[lanes.index(max(lanes))] += growth
        persistent += job.persistent_bytes
    return len(order)


def _fit_carpool(order: Sequence[TraceJob], policy: str) -> int:
    """Asks the scheduler itself: jobs of known needs are submitted until one is not started."""
    scheduler = Scheduler(POLICIES[policy])
    scheduler.handle(DeviceAdded(device=DeviceId("p100"), capacity_bytes=CAPACITY_BYTES), now=0)
    for count, job in enumerate(order):
        needs = Needs(persistent_bytes=job.persistent_bytes, ephemeral_bytes=job.ephemeral_bytes)
        past = History(needs=needs, steps=1, step_ns=1, served_ns=1)
        scheduler.handle(HistoryLoaded(fingerprint=job.id, history=past), now=0)
        submitted = JobSubmitted(job=JobId(job.id), spec=JobSpec(name=job.id, fingerprint=job.id))
        effects = scheduler.handle(submitted, now=0)
        if not any(isinstance(effect, StartJob) and effect.job == job.id for effect in effects):
            return count
    return len(order)


# --- tables ----------------------------------------------------------------------------------------------------


def _ratio_tables(results: Sequence[_Seed]) -> tuple[Table, Table]:
    return (
        _ratio_table(results, "Mean completion, FIFO by SRTF; all jobs resident", SRTF_COLUMNS),
        _ratio_table(results, "Mean completion, FIFO by FAIR and PACK; all jobs resident", SHARED_COLUMNS),
    )


def _ratio_table(results: Sequence[_Seed], title: str, arms: dict[str, str]) -> Table:
    """FIFO's mean completion time by that of each policy; columns by their names, `ideal_` where nothing costs."""

    def cells(of: Sequence[_Seed]) -> list[Cell]:
        found: list[Cell] = []
        for arm in arms.values():
            name = arm.removeprefix("ideal_")
            ratios = [each.ratio(arm) if arm == name else each.ideal_ratio(name) for each in of]
            found.append(round(median(ratios), 3))
        return found

    rows: list[tuple[Cell, ...]] = [(str(each.seed), *cells([each])) for each in results]
    return Table(title=title, columns=("seed", *arms), rows=(*rows, ("median", *cells(results))))


def _memory_table(results: Sequence[_Seed]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for arm, published in PUBLISHED.items():
        key = f"memory_{arm}"
        rows.append(
            (
                arm.upper(),
                published,
                round(_median(results, arm), 3),
                round(_median(results, key), 3),
                round(median(each.makespan[key] / each.makespan["fifo"] for each in results), 3),
            )
        )
    columns = ("policy", "Salus", "all resident", "with its memory", "makespan by FIFO's")
    return Table(
        title="Medians; `with its memory`: P and E of Salus' programs, no parking", columns=columns, rows=tuple(rows)
    )


def _admission_table(admitted: dict[str, tuple[float, float]]) -> Table:
    rows = tuple((name, round(count, 2), round(share, 3)) for name, (count, share) in admitted.items())
    columns = ("rule", "jobs", "peaks by capacity")
    return Table(title="Admission of the 33 configurations in random order", columns=columns, rows=rows)


def _targets(results: Sequence[_Seed], admitted: dict[str, tuple[float, float]]) -> tuple[Target, ...]:
    shares = {arm: median(each.share(arm) for each in results) for arm in ("srtf", "fair")}
    learnt = {
        said: round(min(each.share(arm) for each in results), 4)
        for arm, said in (("steps_said", "SRTF, steps said"), ("nothing_said", "SRTF, nothing said"))
    }
    makespan = median(each.makespan["srtf"] / each.makespan["fifo"] for each in results)
    return (
        Target(name="SRTF, share of the ideal ratio", seen=round(shares["srtf"], 4), limit=0.97, is_least=True),
        Target(name="FAIR, share of the ideal ratio", seen=round(shares["fair"], 4), limit=0.97, is_least=True),
        *(
            Target(name=f"{said}, share of the ideal, worst seed", seen=worst, limit=0.97, is_least=True)
            for said, worst in learnt.items()
        ),
        Target(name="SRTF, median ratio", seen=round(_median(results, "srtf"), 3), limit=3.19, is_least=True),
        Target(name="FAIR, median ratio", seen=round(_median(results, "fair"), 3), limit=1.77, is_least=True),
        Target(
            name="PACK with memory, median", seen=round(_median(results, "memory_pack"), 3), limit=1.17, is_least=True
        ),
        Target(name="makespan, SRTF by FIFO", seen=round(makespan, 4), limit=1.0086),
        Target(
            name="admitted by carpool, by capacity",
            seen=round(admitted["carpool, in turns"][1], 3),
            limit=2.8,
            is_least=True,
        ),
    )


def _median(results: Sequence[_Seed], arm: str) -> float:
    return median(each.ratio(arm) for each in results)
