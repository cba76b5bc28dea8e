"""One workload under several policies: which engine runs it, what is left out and why, the figures side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.requests import NodeSpec
from carpool.core.node.accounts import TURN_NS
from carpool.core.node.settings import Settings
from carpool.errors import CarpoolError, UsageError
from carpool.policies import POLICIES, counts, find_policy, meaning_of
from carpool.sim.clusters import bytes_of, cards_of
from carpool.sim.engine import Plan, simulate
from carpool.sim.measures import Bounds, Measures, bound, measure, ratio
from carpool.sim.node_engine import NodeEngine
from carpool.sim.outcome import JobOutcome, Outcome
from carpool.sim.pairs import as_median_pair, pair_busy_milli, rates_for
from carpool.sim.scripts import Machine
from carpool.sim.story import Story
from carpool.sim.traces import WHOLE_CARD, Trace, TraceJob
from carpool.sim.workload import script_of
from carpool.units import SECOND, format_bytes, format_ns

SCHEDULERS = {  # which one runs, by the name of the engine around it
    "node": "the node's scheduler, turn by turn",
    "cluster": "the cluster's scheduler, whole cards",
}
QUANTA_IN_ALL = 10_000  # a turn-by-turn run of much work has a longer quantum, so that it ends this year

Progress = Callable[[str, int, int], None]  # policy, jobs ended, jobs in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How to simulate."""

    nodes: tuple[NodeSpec, ...]
    policies: tuple[str, ...]
    turns: bool = False  # turn by turn on one device, even if the cluster has more
    quantum_ns: int | None = None
    latency_ns: int | None = None  # None: the daemon's own
    change_ns: int = 0  # what a change of turn costs each job
    is_unknown: bool = False  # turn by turn: needs and lengths are learnt, not known from earlier runs
    shares_milli: Mapping[str, int] = field(default_factory=dict)
    weights_milli: Mapping[str, int] = field(default_factory=dict)  # of tenants; for fair only
    skips_bad: bool = False
    explain: str = ""  # a job whose story is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The figures of every policy, the bounds, and what was left out."""

    trace: str
    engine: str
    cards: int
    jobs: int
    left_out: tuple[tuple[int, str], ...]  # line and reason
    rows: tuple[tuple[str, Measures], ...]
    references: tuple[str, ...]  # of the same policies, as they were asked for
    bounds: Bounds
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...]
    stories: tuple[Story, ...] = ()  # of the job that is to be explained, one a policy

    def as_json(self) -> dict[str, object]:
        first = self.rows[0][1].as_json()
        return {
            "trace": self.trace,
            "engine": self.engine,
            "scheduler": SCHEDULERS[self.engine],
            "cards": self.cards,
            "jobs": self.jobs,
            "left_out": [{"line": line, "reason": reason} for line, reason in self.left_out],
            "policies": [
                {
                    "policy": policy,
                    "reference": reference,
                    **figures.as_json(),
                    "ratio_to_first": _ratios(figures.as_json(), first),
                }
                for (policy, figures), reference in zip(self.rows, self.references, strict=True)
            ],
            "bound": self.bounds.as_json(),
            "notes": list(self.notes),
            **({"stories": self._told()} if self.stories else {}),
        }

    def _told(self) -> list[dict[str, object]]:
        return [
            {
                "policy": policy,
                "job": story.job,
                "lines": [{"at_s": at / SECOND, "says": said} for at, said in story.lines],
                "left_out": story.left_out,
            }
            for (policy, _), story in zip(self.rows, self.stories, strict=True)
        ]


def _ratios(figures: dict[str, object], first: dict[str, object]) -> dict[str, float | None]:
    found = {}
    for key, value in figures.items():
        before = first[key]
        if isinstance(value, int | float) and isinstance(before, int | float) and key != "jobs":
            found[key] = ratio(value, before)
    return found


def compare(trace: Trace, choice: Choice, progress: Progress | None = None) -> Comparison:
    """Run the trace under each policy. What cannot run is an error, or left out and counted if that was asked for."""
    is_node = is_turn_by_turn(choice)
    names = check_policies(choice.policies, is_node=is_node)
    if choice.weights_milli and not any(find_policy(policy).by_tenant for policy in choice.policies):
        raise UsageError("--weights counts under fair; no other policy reads it")
    jobs, left_out = _fitting(trace, choice, is_node=is_node)
    if choice.explain and choice.explain not in {job.id for job in jobs}:
        raise UsageError(f"--explain {choice.explain}: {trace.name} has no such job; its first is {jobs[0].id}")
    stories = [Story(job=choice.explain) for _ in choice.policies]
    outcomes = [
        _run(policy, jobs, choice, progress, story, is_node=is_node)
        for policy, story in zip(choice.policies, stories, strict=True)
    ]
    return Comparison(
        trace=trace.name,
        engine="node" if is_node else "cluster",
        cards=outcomes[0].cards,
        jobs=len(jobs),
        left_out=tuple(left_out),
        rows=tuple((name, measure(outcome)) for name, outcome in zip(names, outcomes, strict=True)),
        references=tuple(choice.policies),
        bounds=bound(outcomes[0]),
        outcomes=tuple(outcomes),
        notes=tuple(_notes(choice, jobs, is_node=is_node)),
        stories=tuple(stories) if choice.explain else (),
    )


def is_turn_by_turn(choice: Choice) -> bool:
    """Whether the node's scheduler runs, and not the cluster's."""
    return choice.turns or cards_of(choice.nodes) == 1


def check_policies(policies: Sequence[str], *, is_node: bool) -> list[str]:
    """Whether all of them can run; returns the names they have."""
    names = [find_policy(policy, place="node" if is_node else "cluster").name for policy in policies]
    if len(set(names)) != len(names) or not names:
        raise UsageError("name each policy once: --policy fifo,srtf")
    return names


# --- what can run ----------------------------------------------------------------------------------------------


def _fitting(trace: Trace, choice: Choice, *, is_node: bool) -> tuple[list[TraceJob], list[tuple[int, str]]]:
    """The jobs as this cluster can run them, and the lines that it cannot, with reasons."""
    left_out = [(row.line, row.reason) for row in trace.bad_rows]
    is_counted = any(node.cpu_milli for node in choice.nodes)
    jobs = []
    for job in trace.jobs:
        wanted = job if is_counted else replace(job, cpu_milli=0, memory_bytes=0)
        reason = _why_not(wanted, choice, is_node=is_node)
        if reason is None:
            jobs.append(wanted)
        else:
            left_out.append((job.line, reason))
    is_fault = len(left_out) > len(trace.bad_rows) if trace.is_public else bool(left_out)
    if is_fault and not choice.skips_bad:
        raise UsageError(_complaint(trace, left_out[len(trace.bad_rows) :] if trace.is_public else left_out))
    if not jobs:
        raise UsageError(f"{trace.source}: no job of the trace can run here: {left_out[0][1] if left_out else ''}")
    return jobs, left_out


def _complaint(trace: Trace, left_out: list[tuple[int, str]]) -> str:
    said = "\n".join(f"  {trace.source} line {line}: {reason}" for line, reason in left_out[:20])
    more = f"\n  and {len(left_out) - 20} more" if len(left_out) > 20 else ""
    count = len(left_out)
    rows = "1 row is no job" if count == 1 else f"{count} rows are no jobs"
    total = len(trace.jobs) + len(trace.bad_rows)
    return f"{rows} that can run here, of {total}:\n{said}{more}\nCorrect them, or leave them out with --skip-bad"


def _why_not(job: TraceJob, choice: Choice, *, is_node: bool) -> str | None:
    """Why the job can never run on this cluster."""
    if not job.cards and is_node:
        return f"job {job.id} wants no card"
    if choice.shares_milli and job.tenant not in choice.shares_milli:
        return f"job {job.id}: tenant {job.tenant} has no share; name it in --shares"
    total = 1 if is_node else cards_of(choice.nodes)
    if job.cards > total:
        return f"job {job.id} wants {job.cards} cards; the cluster has {total}"
    allowed = [node for node in choice.nodes if not job.models or node.model in job.models]
    if not allowed:
        return f"job {job.id} wants a card of {'|'.join(sorted(job.models))}; the cluster has none"
    widest = max(allowed, key=lambda node: (node.card_bytes or 1 << 60, node.cpu_milli, node.name))
    needed = max(job.card_bytes, job.persistent_bytes + job.ephemeral_bytes)
    if widest.card_bytes and needed > widest.card_bytes:
        return f"job {job.id} wants {format_bytes(needed)} of a card; a card has {format_bytes(widest.card_bytes)}"
    if job.cpu_milli > max(node.cpu_milli for node in allowed):
        return f"job {job.id} wants {job.cpu_milli} thousandths of a core; no node has so many"
    return None


# --- runs ------------------------------------------------------------------------------------------------------


def _run(
    policy: str,
    jobs: Sequence[TraceJob],
    choice: Choice,
    progress: Progress | None,
    story: Story,
    *,
    is_node: bool,
) -> Outcome:
    try:
        outcome = (_run_node if is_node else _run_cluster)(policy, jobs, choice, progress, story)
        story.end(next((job.end_ns for job in outcome.jobs if job.id == story.job), None))
        return outcome
    except Exception as error:
        if policy in POLICIES or isinstance(error, CarpoolError):
            raise
        raise UsageError(
            f"policy {policy} raised {type(error).__name__}: {error}; look at it with carpool policy check {policy}"
        ) from error


def _run_node(
    policy: str, jobs: Sequence[TraceJob], choice: Choice, progress: Progress | None, story: Story
) -> Outcome:
    device_bytes = choice.nodes[0].card_bytes or 1 << 50
    machine = Machine(devices=(("card0", device_bytes),))
    busy = pair_busy_milli() if find_policy(policy).lanes_max > 1 else WHOLE_CARD
    scripts = [
        replace(script_of(job, is_known=not choice.is_unknown, busy_milli=busy), change_ns=choice.change_ns)
        for job in jobs
    ]
    watch = story.watch if story.job else None
    engine = NodeEngine(policy, machine, settings=node_settings(policy, jobs, choice), watch=watch)
    story.ask = lambda at: engine.why_waits(story.job, at)
    outcome = engine.run(scripts, progress=_counter(progress, policy, len(jobs)))
    return replace(outcome, policy=policy, capacity_bytes=bytes_of(choice.nodes[:1]) if outcome.held_byte_ns else 0)


def node_settings(policy: str, jobs: Sequence[TraceJob], choice: Choice) -> Settings:
    """The daemon's settings; the quantum is the policy's own, or chosen as the daemon does. It is a share of all the
    work if that is longer, unless it was said what is to be chosen by."""
    own, default = find_policy(policy).quantum_ns, Settings()
    quantum = own if choice.quantum_ns is None else choice.quantum_ns
    if choice.quantum_ns is None and own != 0 and not (own is None and (choice.latency_ns or choice.change_ns)):
        share_ns = sum(job.service_ns for job in jobs) // QUANTA_IN_ALL
        quantum = share_ns if share_ns > (own or TURN_NS) else own
    return Settings(
        quantum_ns=quantum,
        latency_ns=choice.latency_ns or default.latency_ns,
        watch_ns=max(default.watch_ns, quantum or 0),
        tenant_weights_milli=choice.weights_milli,
    )


def _run_cluster(
    policy: str, jobs: Sequence[TraceJob], choice: Choice, progress: Progress | None, story: Story
) -> Outcome:
    rule = find_policy(policy)
    plan = Plan(
        nodes=choice.nodes,
        order=policy,
        knows_lengths=True,  # srtf and srsf go by it
        shares_milli=choice.shares_milli,
        weights_milli=choice.weights_milli if rule.by_tenant else {},
        rates=rates_for(jobs) if rule.lanes_max > 1 else None,
        settings=ClusterSettings(explains=bool(story.job)),
        watch=story.watch if story.job else None,
    )
    result = simulate(jobs, plan, step=_counter(progress, policy, len(jobs)))
    done = [
        JobOutcome(
            id=each.job.id,
            tenant=each.job.tenant,
            submit_ns=each.job.submit_ns,
            start_ns=each.started_ns or 0,
            end_ns=each.ended_ns or 0,
            service_ns=each.job.service_ns,
            cards_milli=each.job.cards * each.job.card_milli,
            preemptions=each.parks,
        )
        for each in result.ended
    ]
    return Outcome(
        policy=policy,
        jobs=tuple(done),
        cards=cards_of(choice.nodes),
        busy_milli_ns=sum(job.service_ns * job.cards_milli for job in done),
        capacity_bytes=bytes_of(choice.nodes),
        held_byte_ns=sum(each.job.service_ns * each.job.cards * each.job.card_bytes for each in result.ended),
        refused=tuple((each.job.id, each.refusal) for each in result.outcomes if each.refusal),
        busy_cards=_levels(result.usage),
        events=result.events,
    )


def _levels(changes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Changes of use as the use from each moment on."""
    levels: dict[int, int] = {}
    level = 0
    for time, change in changes:
        level += change
        levels[time] = level
    return tuple(levels.items())


def _counter(progress: Progress | None, policy: str, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda ended: progress(policy, ended, total)


def _said(quantum_ns: int | None) -> str:
    return "chosen" if quantum_ns is None else format_ns(quantum_ns) if quantum_ns else "none"


def _notes(choice: Choice, jobs: Sequence[TraceJob], *, is_node: bool) -> list[str]:
    notes = []
    if any(find_policy(policy).lanes_max > 1 for policy in choice.policies):
        is_measured = not is_node and rates_for(jobs) is not as_median_pair
        notes.append(
            f"side by side: {'the stages of the trace' if is_measured else 'as the median P100 pair of Gavel'}"
        )
    if is_node:
        quanta = {name: node_settings(name, jobs, choice).quantum_ns for name in choice.policies}
        said = ", ".join(f"{name} {_said(quantum)}" for name, quantum in quanta.items())
        notes.append(f"turn by turn on one device; quantum: {said}")
        if "srsf" in choice.policies:
            notes.append("srsf on one device is srtf")
    if not is_node and (choice.quantum_ns is not None or choice.latency_ns or choice.change_ns):
        only = "count only turn by turn (on one card, or with --turns); a cluster gives whole cards"
        notes.append(f"--quantum, --latency and --change {only}")
    rules = [find_policy(policy) for policy in choice.policies]
    if any(job.priority for job in jobs) and not any(counts(rule, "--priority") for rule in rules):
        meaning = meaning_of("--priority", place="node" if is_node else "cluster")
        notes.append(f"the priorities of the trace count {meaning}")
    if not is_node and not any(node.cpu_milli for node in choice.nodes):
        notes.append("the nodes' cores and host memory are not counted: --cluster names none")
    if not any(job.card_bytes or job.persistent_bytes for job in jobs):
        notes.append("the trace says nothing of memory")
    return notes
