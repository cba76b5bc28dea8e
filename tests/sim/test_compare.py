"""Several policies over one workload: clusters, what is left out, and what is used when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carpool.errors import UsageError
from carpool.sim.clusters import bytes_of, cards_of, parse_cluster
from carpool.sim.compare import Choice, compare
from carpool.sim.outcome import JobOutcome, Outcome, Span
from carpool.sim.pairs import as_median_pair, pair_busy_milli, rates_for
from carpool.sim.plot import usage
from carpool.sim.story import LINES_MAX
from carpool.sim.traces import BadRow, Trace, TraceJob, first, load
from carpool.units import GIB, SECOND


def trace(*jobs: TraceJob, bad: tuple[BadRow, ...] = (), is_public: bool = False) -> Trace:
    return Trace(name="tiny", source="tiny.csv", jobs=jobs, bad_rows=bad, is_public=is_public)


def job(name: str, *, service: int, at: int = 0, cards: int = 1, tenant: str = "a") -> TraceJob:
    return TraceJob(
        id=name, submit_ns=at * SECOND, service_ns=service * SECOND, cards=cards, tenant=tenant, line=2 + len(name)
    )


def test_a_cluster_is_groups_of_nodes_with_cards_of_a_model() -> None:
    nodes = parse_cluster("2x8x16GiB,1x4x80GiB:A100")
    assert [(node.cards, node.card_bytes // GIB, node.model) for node in nodes] == [
        (8, 16, ""),
        (8, 16, ""),
        (4, 80, "A100"),
    ]
    assert (cards_of(nodes), bytes_of(nodes)) == (20, 16 * 16 * GIB + 4 * 80 * GIB)
    assert bytes_of(parse_cluster("2x8")) == 0


def test_a_seed_shuffles_the_order_of_the_nodes() -> None:
    names = [node.name for node in parse_cluster("20x1x1GiB", seed=1)]
    assert sorted(names) == sorted(node.name for node in parse_cluster("20x1x1GiB"))
    assert names == [node.name for node in parse_cluster("20x1x1GiB", seed=1)]
    assert names != [node.name for node in parse_cluster("20x1x1GiB")]


def test_the_published_cluster_has_its_cards() -> None:
    nodes = parse_cluster("alibaba2023")
    assert (len(nodes), cards_of(nodes)) == (1213, 6212)


def test_two_jobs_on_two_cards_of_a_cluster_by_hand() -> None:
    found = compare(
        trace(job("a", service=10), job("bb", service=4, at=1), job("ccc", service=2, at=2, cards=2)),
        Choice(nodes=parse_cluster("1x2x16GiB"), policies=("fifo", "srsf")),
    )
    assert found.engine == "cluster"
    fifo, srsf = (figures for _, figures in found.rows)
    assert fifo.makespan_s == 12.0  # the gang of two runs when the first job is over
    assert fifo.average_s == pytest.approx((10 + 4 + 10) / 3)
    assert srsf.average_s < fifo.average_s
    assert found.bounds.makespan_s == 10.0
    assert found.outcomes[0].busy_cards[0] == (0, 1000)


def test_bad_rows_of_a_public_trace_are_left_out_and_counted() -> None:
    bad = (BadRow(line=9, reason="never ran"),)
    choice = Choice(nodes=parse_cluster("1x1x16GiB"), policies=("fifo",))
    assert compare(trace(job("a", service=1), bad=bad, is_public=True), choice).left_out == ((9, "never ran"),)
    with pytest.raises(UsageError, match="tiny.csv line 9: never ran"):
        compare(trace(job("a", service=1), bad=bad), choice)


def test_a_job_larger_than_the_cluster_is_an_error_for_public_traces_too() -> None:
    choice = Choice(nodes=parse_cluster("1x2x16GiB"), policies=("fifo",))
    with pytest.raises(UsageError, match="job big wants 3 cards; the cluster has 2"):
        compare(trace(job("big", service=1, cards=3), is_public=True), choice)


def test_tenants_with_shares_are_simulated_and_one_without_is_an_error() -> None:
    choice = Choice(nodes=parse_cluster("1x2x16GiB"), policies=("fifo",), shares_milli={"a": 1000, "b": 1000})
    jobs = (job("a", service=10), job("aa", service=10, tenant="a"), job("bbb", service=1, at=1, tenant="b"))
    found = compare(trace(*jobs), choice)
    assert {each.id: each.end_ns // SECOND for each in found.outcomes[0].jobs}[
        "bbb"
    ] == 2  # the loan gave way at once
    with pytest.raises(UsageError, match="tenant c has no share"):
        compare(trace(*jobs, job("cccc", service=1, tenant="c")), choice)


def test_every_policy_runs_on_both_engines() -> None:
    jobs = first(load("salus"), 8)
    for cluster in ("1x1x16GiB", "2x2x16GiB"):
        policies = ("fifo", "srtf", "srsf", "las", "fair", "priority", "pack")
        choice = Choice(nodes=parse_cluster(cluster), policies=policies, quantum_ns=2 * SECOND)
        found = compare(jobs, choice)
        assert [figures.jobs for _, figures in found.rows] == [8] * 7
        packed = found.rows[6][1].average_s
        assert all(
            figures.average_s * 1.001 >= found.bounds.average_s for name, figures in found.rows if name != "pack"
        )
        assert packed > 0


def test_side_by_side_jobs_go_as_fast_as_the_median_pair_or_as_their_stages_say() -> None:
    jobs = load("salus").jobs[:2]
    assert rates_for(jobs) is as_median_pair
    assert as_median_pair(jobs) == (1_000_000 // (2 * pair_busy_milli()),) * 2
    assert 500 < as_median_pair(jobs)[0] < 700
    assert rates_for(load("muri1").jobs) is not as_median_pair


def test_usage_over_time_is_drawn_from_turns_and_from_cards_in_use() -> None:
    done = JobOutcome(id="a", tenant="a", submit_ns=0, start_ns=0, end_ns=4000, service_ns=2000)
    turns = Outcome(policy="p", jobs=(done,), cards=1, busy_milli_ns=0, spans=(Span("lane", "a", 0, 2000),))
    assert [share for _, share in usage(turns)] == [1.0] * 1000 + [0.0] * 1001
    cards = Outcome(policy="p", jobs=(done,), cards=2, busy_milli_ns=0, busy_cards=((0, 1000), (2000, 2000)))
    assert [share for _, share in usage(cards)][:2000] == [0.5] * 1000 + [1.0] * 1000


def test_what_is_asked_for_and_not_used_is_noted() -> None:
    urgent = replace(job("a", service=10), priority=3)
    choice = Choice(nodes=parse_cluster("1x2x16GiB"), policies=("fifo",), quantum_ns=SECOND)
    notes = compare(trace(urgent, job("bb", service=4)), choice).notes
    assert "the priorities of the trace count only under policy priority" in notes
    assert any(note.startswith("--quantum, --latency and --change count only turn by turn") for note in notes)
    used = Choice(nodes=parse_cluster("1x1x16GiB"), policies=("priority",), quantum_ns=SECOND)
    notes = compare(trace(urgent, job("bb", service=4)), used).notes
    assert not any("count" in note and "only" in note for note in notes), notes


# --- one job's story ---------------------------------------------------------------------------------------------


def test_the_story_of_a_job_says_where_it_ran_and_what_it_waited_for_in_a_cluster() -> None:
    found = compare(
        trace(job("a", service=10), job("bb", service=4, at=1), job("ccc", service=2, at=2, cards=2)),
        Choice(nodes=parse_cluster("1x2x16GiB"), policies=("fifo", "srsf"), explain="ccc"),
    )
    fifo, _ = found.stories
    said = [(at // SECOND, line) for at, line in fifo.lines]
    assert said[0][0] == 2 and said[0][1].startswith("it waits")
    assert [at for at, line in said if line.startswith("it runs on ") and "(2 cards)" in line] == [10]
    assert said[-1] == (12, "it ended")
    assert [each["policy"] for each in found._told()] == ["fifo", "srsf"]


def test_the_story_of_a_job_on_one_card_is_the_nodes_and_is_cut() -> None:
    jobs = [replace(job(name, service=60), card_bytes=GIB) for name in ("a", "bb")]
    choice = Choice(nodes=parse_cluster("1x1x16GiB"), policies=("fair", "fifo"), explain="bb")
    fair, fifo = compare(trace(*jobs), choice).stories
    assert any("it starts on card0" in said for _, said in fifo.lines)
    assert any(said.startswith("it waits ") and "a has had it" in said for _, said in fifo.lines)
    assert (fifo.lines[-1][1], fair.lines[-1][1]) == ("it ended", "it ended")
    assert len(fair.lines) <= LINES_MAX + 1


def test_a_job_that_is_not_there_cannot_be_explained() -> None:
    choice = Choice(nodes=parse_cluster("1x1x16GiB"), policies=("fifo",), explain="z")
    with pytest.raises(UsageError, match="tiny has no such job; its first is a"):
        compare(trace(job("a", service=1)), choice)


def test_without_a_job_to_explain_nobody_is_told_a_story() -> None:
    found = compare(trace(job("a", service=1)), Choice(nodes=parse_cluster("1x1x16GiB"), policies=("fifo",)))
    assert (found.stories, "stories" in found.as_json()) == ((), False)
