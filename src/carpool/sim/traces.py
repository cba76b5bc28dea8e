"""Traces: lists of jobs with times, read from the public files under `data/traces/` or from a user's CSV.

Every reader yields the same frozen record. A row that cannot be a job is never dropped silently: it is kept in
`Trace.bad_rows` with its line and the reason, and the caller decides whether that is an error. Sources, licences and
columns of the public files are in `data/traces/README.md`; the columns of a user's file in `docs/sim.md`.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

from carpool.errors import RowError, UsageError
from carpool.units import BYTES_MAX, MIB, MS, SECOND, parse_bytes

WHOLE_CARD = 1000  # thousandths of a card
CARDS_MAX = 1 << 20
# What is not measured in Salus' table is its split of the peak; research on its hard-coded pairs gives these shares.
SALUS_PERSISTENT_PERCENT = {"vgg": 15.0, "": 6.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace: when it came, what it wants, and how long it runs when it has all of that, alone."""

    id: str
    submit_ns: int
    service_ns: int  # run time alone, without any cost of starting, switching or sharing
    cards: int = 1  # 0: processor cores only
    card_milli: int = WHOLE_CARD  # thousandths of each card
    card_bytes: int = 0  # of each card; 0: not said
    cpu_milli: int = 0
    memory_bytes: int = 0  # of the host
    models: frozenset[str] = frozenset()  # card models it accepts; empty: any
    tenant: str = "default"
    priority: int = 0
    weight_milli: int = 1000  # of its part among its tenant's jobs
    program: str = ""  # the name of the network or script
    batch: int = 0
    iterations: int = 0  # 0: not known
    stages_ns: tuple[int, ...] = ()  # time of one iteration on each kind of resource
    persistent_bytes: int = 0  # held for the job's whole life; 0: not known
    ephemeral_bytes: int = 0  # held only inside an iteration; 0: not known
    stall_ns: int = 0  # of each iteration: without the card, as for input or a request
    line: int = 0  # where in its file


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in order of arrival (ties: in order of their lines), and the rows that are none."""

    name: str
    source: str  # the file, as people know it
    jobs: tuple[TraceJob, ...]
    bad_rows: tuple[BadRow, ...] = ()
    is_public: bool = False  # one of ours: its bad rows are known, and nobody can correct them


Row = dict[str, str]
Parse = Callable[[Row, int], TraceJob]


def load(name: str) -> Trace:
    """A public trace by its name, or a user's CSV by its path."""
    if name in READERS:
        return READERS[name](name)
    path = Path(name)
    if not (path.suffix in (".csv", ".gz") or path.exists()):
        raise UsageError(f"there is no trace '{name}'; known are {', '.join(READERS)}, or a file FILE.csv")
    return read_user(path)


def first(trace: Trace, count: int) -> Trace:
    """The trace cut down to its first jobs, and to the bad rows that stand before the last of them."""
    jobs = trace.jobs[:count]
    last = max((job.line for job in jobs), default=0) if count < len(trace.jobs) else 1 << 60
    return replace(trace, jobs=jobs, bad_rows=tuple(row for row in trace.bad_rows if row.line <= last))


def data_file(name: str) -> Path:
    """Where a public trace lies: under CARPOOL_TRACES, else in this checkout's `data/traces`."""
    places = [Path(os.environ["CARPOOL_TRACES"])] if os.environ.get("CARPOOL_TRACES") else []
    places.append(Path(__file__).resolve().parents[3] / "data" / "traces")
    for place in places:
        if (place / name).exists():
            return place / name
    raise UsageError(f"the trace file {name} is not in {places[0]}; set CARPOOL_TRACES to a directory that has it")


# --- the user's own file ---------------------------------------------------------------------------------------

USER_REQUIRED = ("submit_s", "duration_s")
USER_COLUMNS = (
    *("job", *USER_REQUIRED, "cards", "card_milli", "card_bytes", "cpu_milli", "memory_bytes", "models", "tenant"),
    *("priority", "weight_milli", "program", "iterations", "persistent_bytes", "ephemeral_bytes", "stall_ns"),
)


def read_user(path: Path) -> Trace:
    """A CSV with the columns of docs/sim.md; any order, further columns are ignored."""
    seen: dict[str, int] = {}

    def parse(row: Row, line: int) -> TraceJob:
        job = _user_job(row, line)
        if job.id in seen:
            raise RowError(f"job '{job.id}' is in line {seen[job.id]} already")
        seen[job.id] = line
        return job

    return _read(path, str(path), parse, required=USER_REQUIRED)


def _user_job(row: Row, line: int) -> TraceJob:
    cards = _whole(row, "cards", default=1, most=CARDS_MAX)
    milli = _whole(row, "card_milli", default=WHOLE_CARD, least=1, most=WHOLE_CARD)
    if cards > 1 and milli != WHOLE_CARD:
        raise RowError(f"card_milli is {milli} with {cards} cards; only a job of one card may ask for a part of it")
    return TraceJob(
        id=row.get("job") or f"row{line}",
        submit_ns=_seconds(row, "submit_s"),
        service_ns=_positive(_seconds(row, "duration_s"), "duration_s"),
        cards=cards,
        card_milli=milli,
        card_bytes=_bytes(row, "card_bytes"),
        cpu_milli=_whole(row, "cpu_milli", default=0),
        memory_bytes=_bytes(row, "memory_bytes"),
        models=frozenset(name for name in row.get("models", "").split("|") if name),
        tenant=row.get("tenant") or "default",
        priority=_whole(row, "priority", default=0, least=-(1 << 31)),
        weight_milli=_whole(row, "weight_milli", default=1000, least=1, most=1_000_000),
        program=row.get("program", ""),
        iterations=_whole(row, "iterations", default=0),
        persistent_bytes=_bytes(row, "persistent_bytes"),
        ephemeral_bytes=_bytes(row, "ephemeral_bytes"),
        stall_ns=_whole(row, "stall_ns", default=0),
        line=line,
    )


# --- the public ones -------------------------------------------------------------------------------------------


def read_philly(name: str = "philly") -> Trace:
    """Microsoft Philly 2017 as cleaned by the Pollux authors; a virtual cluster is a tenant."""
    return _read_jobs("philly2017/jobs.csv.gz", name, tenant="vc")


def read_itp(name: str = "itp") -> Trace:
    """Microsoft ITP 2021; each of its ten clusters is a tenant."""
    return _read_jobs("msitp2021/jobs.csv.gz", name, tenant="cluster")


def _read_jobs(file: str, name: str, *, tenant: str) -> Trace:
    """A list of whole-card jobs whose tenant stands in the column of this name."""

    def parse(row: Row, line: int) -> TraceJob:
        return TraceJob(
            id=row["job"],
            submit_ns=_seconds(row, "submit_s"),
            service_ns=_positive(_seconds(row, "duration_s"), "duration_s"),
            cards=_whole(row, "gpus", least=1),
            tenant=row[tenant],
            line=line,
        )

    return _read_public(file, name, parse, required=("job", "submit_s", "duration_s"))


def read_muri(name: str) -> Trace:
    """Muri's Philly-derived traces, `muri1` to `muri4`, and its `muri-testbed`; run time = steps × step time."""
    file = "testbed" if name == "muri-testbed" else f"trace{name.removeprefix('muri')}"

    def parse(row: Row, line: int) -> TraceJob:
        iterations = _whole(row, "iterations", least=1)
        return TraceJob(
            id=row["job_id"],
            submit_ns=_milliseconds(row, "submit_time"),
            service_ns=iterations * _positive(_milliseconds(row, "iteration_time"), "iteration_time"),
            cards=_whole(row, "num_gpu", least=1),
            priority=_whole(row, "priority", default=0),
            program=row["model_name"],
            batch=_whole(row, "batch_size", default=0),
            iterations=iterations,
            stages_ns=tuple(_milliseconds(row, f"resource_time_{number}") for number in range(3)),
            line=line,
        )

    return _read_public(f"muri2022/{file}.csv.gz", name, parse, required=("job_id", "submit_time", "iterations"))


def read_alibaba(name: str = "alibaba2023") -> Trace:
    """The pods of Alibaba's 2023 GPU-sharing cluster as jobs; one that never ran has no run time and is no job."""

    def parse(row: Row, line: int) -> TraceJob:
        if not row["scheduled_time"]:
            raise RowError(f"pod {row['name']} never ran, so its run time is not known")
        cards = _whole(row, "num_gpu")
        service_ns = _seconds(row, "deletion_time") - _seconds(row, "scheduled_time")
        return TraceJob(
            id=row["name"],
            submit_ns=_seconds(row, "creation_time"),
            service_ns=_positive(service_ns, "deletion_time - scheduled_time"),
            cards=cards,
            card_milli=_whole(row, "gpu_milli") if cards else WHOLE_CARD,
            cpu_milli=_whole(row, "cpu_milli"),
            memory_bytes=_whole(row, "memory_mib") * MIB,
            models=frozenset(each for each in row["gpu_spec"].split("|") if each),
            tenant=row["qos"],
            line=line,
        )

    return _read_public("alibaba2023/pods_default.csv.gz", name, parse, required=("name", "creation_time"))


def read_salus(name: str = "salus") -> Trace:
    """Salus' 99 measured jobs as one burst, in the order of its table; see SALUS_PERSISTENT_PERCENT for the bytes.

    One name stands there twice (the ten-minute vgg16_100 is called a one-minute one); its second job gets a number.
    """
    names: dict[str, int] = {}

    def parse(row: Row, line: int) -> TraceJob:
        times = names[row["name"]] = names.get(row["name"], 0) + 1
        peak_bytes = int(_number(row, "peak_mem_mb") * 1_000_000)
        persistent_bytes = salus_persistent_bytes(row["model"], peak_bytes)
        return TraceJob(
            id=row["name"] if times == 1 else f"{row['name']}-{times}",
            submit_ns=0,
            service_ns=_positive(_seconds(row, "jct_s"), "jct_s"),
            card_bytes=peak_bytes,
            program=f"{row['model']}_{row['batch']}",
            batch=_whole(row, "batch"),
            iterations=_whole(row, "iterations", least=1),
            persistent_bytes=persistent_bytes,
            ephemeral_bytes=peak_bytes - persistent_bytes,
            line=line,
        )

    return _read_public("salus2019/workloads.csv.gz", name, parse, required=("name", "jct_s", "peak_mem_mb"))


def salus_persistent_bytes(model: str, peak_bytes: int) -> int:
    """How much of a Salus job's peak stays between iterations: 15 % for VGG, else 6.5 %."""
    percent = SALUS_PERSISTENT_PERCENT["vgg" if model.startswith("vgg") else ""]
    return int(peak_bytes * percent / 100)


READERS: dict[str, Callable[[str], Trace]] = {
    "philly": read_philly,
    "itp": read_itp,
    "alibaba2023": read_alibaba,
    "muri1": read_muri,
    "muri2": read_muri,
    "muri3": read_muri,
    "muri4": read_muri,
    "muri-testbed": read_muri,
    "salus": read_salus,
}


# --- rows and cells --------------------------------------------------------------------------------------------


def read_table(path: Path) -> tuple[tuple[str, ...], list[tuple[int, Row]]]:
    """The header and the rows of a CSV, plain or gzip, with their line numbers."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {why}") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    header = tuple(cell.strip() for cell in next(reader, []))
    rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                row = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
                if len(cells) != len(header):
                    row[""] = f"{len(cells)} cells, the header has {len(header)}"
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num}: {error}") from error
    return header, rows


def _read_public(file: str, name: str, parse: Parse, *, required: Iterable[str]) -> Trace:
    return replace(_read(data_file(file), name, parse, required=required), is_public=True)


def _read(path: Path, name: str, parse: Parse, *, required: Iterable[str]) -> Trace:
    header, rows = read_table(path)
    if not rows and not header:
        raise UsageError(f"{path} line 1: the trace is empty")
    missing = [column for column in required if column not in header]
    if missing:
        raise UsageError(
            f"{path} line 1: the column {missing[0]} is missing; it has {', '.join(header) or 'nothing'}"
        )
    jobs: list[TraceJob] = []
    bad: list[BadRow] = []
    for line, row in rows:
        try:
            if "" in row:
                raise RowError(row[""])
            jobs.append(parse(row, line))
        except RowError as error:
            bad.append(BadRow(line=line, reason=str(error)))
    if not rows:
        raise UsageError(f"{path} line 1: the trace is empty: there is no row below the header")
    jobs.sort(key=lambda job: (job.submit_ns, job.line))
    return Trace(name=name, source=str(path), jobs=tuple(jobs), bad_rows=tuple(bad))


def _number(row: Row, column: str) -> Decimal:
    text = row.get(column, "")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise RowError(f"{column} is '{text}', not a number") from None
    if not value.is_finite():
        raise RowError(f"{column} is '{text}', not a finite number")
    if value < 0:
        raise RowError(f"{column} is {text}, below 0")
    return value


def _time_ns(row: Row, column: str, unit: int) -> int:
    """Exact to the nanosecond, however many digits there are."""
    text = row.get(column, "")
    span = int(text) * unit if text.isdecimal() else int(_number(row, column) * unit)
    if span >= 1 << 62:
        raise RowError(f"{column} is {text}: longer than a century")
    return span


def _seconds(row: Row, column: str) -> int:
    return _time_ns(row, column, SECOND)


def _milliseconds(row: Row, column: str) -> int:
    return _time_ns(row, column, MS)


def _positive(span_ns: int, column: str) -> int:
    if span_ns <= 0:
        raise RowError(f"{column} is {span_ns / SECOND:g} s; a job runs for more than 0 s")
    return span_ns


def _whole(row: Row, column: str, *, default: int | None = None, least: int = 0, most: int = 1 << 40) -> int:
    text = row.get(column, "")
    if not text and default is not None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise RowError(f"{column} is '{text}', not a whole number") from None
    if not least <= value <= most:
        raise RowError(f"{column} is {value}; it must be between {least} and {most}")
    return value


def _bytes(row: Row, column: str) -> int:
    """A number of bytes, or one with a unit such as 4GiB; nothing and 0 are "not said"."""
    text = row.get(column, "")
    if text in ("", "0"):
        return 0
    if text.isdecimal() and int(text) <= BYTES_MAX:
        return int(text)
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise RowError(f"{column}: {error}") from None
