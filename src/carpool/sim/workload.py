"""Workloads made from a seed, and jobs of a trace as scripts of iterations.

Two generators, both published here so that anybody can make the same jobs again.
  lognormal  Heavy-tailed lengths: `random.Random(seed)`, one `lognormvariate(0, sigma)` a job, in order of arrival,
             scaled to a mean (Salus': 100 jobs in five hours). Arrival in a burst, or Poisson at a load. Memory and
             iteration time are those of one of Salus' 33 measured configurations.
  mixed      The case no public trace has, tenants and fractions and memory together: arrivals, lengths, cards and
             tenants are jobs of ITP or Philly; a one-card job draws its share of the card from the one-card pods of
             Alibaba 2023 (44 % ask for a part); memory and iteration time are those of one of Salus' 33 measured
             configurations that fits this share of a 16 GiB card.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from carpool.core.kernel.ids import TenantId
from carpool.core.node.model import JobSpec, Needs
from carpool.errors import UsageError
from carpool.sim.scripts import Script
from carpool.sim.traces import USER_COLUMNS, WHOLE_CARD, TraceJob, read_alibaba, read_itp, read_philly, read_salus
from carpool.units import GIB, MS, SECOND

CARD_BYTES = 16 * GIB  # of the card on which `mixed` measures shares of memory
STEP_NS = 200 * MS  # of a job whose trace does not say how many iterations it makes: about the median of Salus'
BURST, POISSON = "burst", "poisson"
ARRIVALS = (BURST, POISSON)


def lognormal(
    count: int,
    *,
    seed: int,
    sigma: float = 1.55,
    mean_s: float = 180.0,
    load: float | None = None,
    tenants: int = 1,
    fractions: bool = False,
) -> list[TraceJob]:
    """Jobs of one card with heavy-tailed lengths; `load` is the offered load of a Poisson arrival, None a burst."""
    source = random.Random(seed)
    sizes = [source.lognormvariate(0, sigma) for _ in range(count)]
    scale = mean_s * SECOND * count / sum(sizes)
    lengths = [max(1, round(size * scale)) for size in sizes]
    submits = _arrivals(source, lengths, load)
    shares = _share_draws() if fractions else [WHOLE_CARD]
    configs = read_salus().jobs
    jobs = []
    for number, (length, submit) in enumerate(zip(lengths, submits, strict=True)):
        tenant = f"tenant{source.randrange(tenants)}" if tenants > 1 else "default"
        job = TraceJob(id=f"job{number:04d}", submit_ns=submit, service_ns=length, tenant=tenant)
        jobs.append(_with_program(job, source, source.choice(shares), configs))
    return jobs


def _arrivals(source: random.Random, lengths: Sequence[int], load: float | None) -> list[int]:
    if load is None:
        return [0] * len(lengths)
    gap_ns = sum(lengths) / len(lengths) / load
    now, times = 0.0, []
    for _ in lengths:
        times.append(round(now))
        now += source.expovariate(1 / gap_ns)
    return times


def mixed(count: int, *, seed: int, base: str = "itp") -> list[TraceJob]:
    """The first `count` jobs of ITP or Philly with fractions of Alibaba's pods and memory of Salus' programs."""
    if base not in ("itp", "philly"):
        raise UsageError(f"--base is '{base}'; mixed draws from itp or philly")
    source = random.Random(seed)
    shares, configs = _share_draws(), read_salus().jobs
    arrivals = (read_itp() if base == "itp" else read_philly()).jobs[:count]
    begin_ns = arrivals[0].submit_ns if arrivals else 0
    jobs = []
    for job in arrivals:
        milli = source.choice(shares) if job.cards == 1 else WHOLE_CARD
        jobs.append(_with_program(replace(job, submit_ns=job.submit_ns - begin_ns), source, milli, configs))
    return jobs


def _with_program(job: TraceJob, source: random.Random, card_milli: int, configs: Sequence[TraceJob]) -> TraceJob:
    """Give a job a share of its card and one of Salus' programs that fits it, or the smallest one."""
    room = card_milli * CARD_BYTES // WHOLE_CARD
    fitting = [each for each in configs if each.card_bytes <= room] or [min(configs, key=_bytes_of)]
    config = source.choice(fitting)
    return replace(
        job,
        card_milli=card_milli,
        card_bytes=config.card_bytes,
        program=config.program,
        iterations=max(1, job.service_ns * config.iterations // config.service_ns),
        persistent_bytes=config.persistent_bytes,
        ephemeral_bytes=config.ephemeral_bytes,
    )


def _bytes_of(job: TraceJob) -> int:
    return job.card_bytes


def _share_draws() -> list[int]:
    """The shares that Alibaba's one-card pods ask for, each as often as it occurs."""
    return [job.card_milli for job in read_alibaba().jobs if job.cards == 1]


# --- files -----------------------------------------------------------------------------------------------------


def write_csv(jobs: Sequence[TraceJob], path: Path) -> None:
    """The jobs as a file that `--trace` and `carpool bench jct --workload` read back exactly."""
    try:
        path.write_text(to_csv(jobs))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def to_csv(jobs: Sequence[TraceJob]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(USER_COLUMNS)
    for job in jobs:
        cells = {"job": job.id, "submit_s": _decimal(job.submit_ns), "duration_s": _decimal(job.service_ns)}
        rest = {name: getattr(job, name) for name in USER_COLUMNS if name not in cells}
        rest["models"] = "|".join(sorted(job.models))
        writer.writerow([{**cells, **rest}[name] for name in USER_COLUMNS])
    return text.getvalue()


def _decimal(span_ns: int) -> str:
    """Seconds with all nine digits that are not zero: reading it back gives the same nanosecond."""
    whole, rest = divmod(span_ns, SECOND)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


# --- scripts ---------------------------------------------------------------------------------------------------


def script_of(job: TraceJob, *, is_known: bool = True, busy_milli: int = WHOLE_CARD) -> Script:
    """A job of a trace as a loop of iterations on one device; without a known count they take STEP_NS each."""
    steps = job.iterations or max(1, job.service_ns // STEP_NS)
    step_ns = max(1, job.service_ns // steps - job.stall_ns)
    if job.persistent_bytes or job.ephemeral_bytes:
        needs = Needs(persistent_bytes=job.persistent_bytes, ephemeral_bytes=job.ephemeral_bytes)
    else:
        needs = Needs(persistent_bytes=job.card_bytes, ephemeral_bytes=0)
    spec = JobSpec(
        name=job.id,
        tenant=TenantId(job.tenant),
        priority=job.priority,
        weight_milli=job.weight_milli,
        steps=steps if is_known else None,
        fingerprint=job.id if is_known else "",
    )
    return Script(
        id=job.id,
        submit_ns=job.submit_ns,
        spec=spec,
        needs=needs,
        steps=steps,
        step_ns=step_ns,
        stall_ns=job.stall_ns,
        busy_milli=busy_milli,
        is_known=is_known,
    )
