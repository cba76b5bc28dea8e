"""The cluster in virtual time: small cases worked out by hand, and the published figures of Muri's third trace."""

from __future__ import annotations

import pytest

from carpool.core.cluster.events import RatesMeasured, Tick
from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.requests import NodeSpec
from carpool.sim.engine import Plan, Result, _Engine, make_inventory, members_of, simulate
from carpool.sim.studies import itp, muri, philly
from carpool.sim.traces import TraceJob, load
from carpool.units import SECOND

NODES = (NodeSpec(name="a", cards=2), NodeSpec(name="b", cards=2))


def job(name: str, submit: float, run: float, cards: int = 1, **more: str | int) -> TraceJob:
    return TraceJob(
        id=name,
        submit_ns=int(submit * SECOND),
        service_ns=int(run * SECOND),
        cards=cards,
        **more,  # type: ignore[arg-type] # str or int by name
    )


def ends(result: Result) -> dict[str, float]:
    return {outcome.job.id: (outcome.ended_ns or 0) / SECOND for outcome in result.outcomes}


def test_fifo_by_hand() -> None:
    jobs = [job("a", 0, 10, 4), job("b", 1, 5, 2), job("c", 2, 5, 4)]
    result = simulate(jobs, Plan(nodes=NODES, order="fifo"))
    assert ends(result) == {"a": 10, "b": 15, "c": 20}
    assert result.mean_completion_ns == (10 + 14 + 18) * SECOND // 3
    assert result.mean_queue_ns == (0 + 9 + 13) * SECOND // 3
    assert result.makespan_ns == 20 * SECOND


def test_srsf_by_hand() -> None:
    jobs = [job("wide", 0, 10, 4), job("thin", 1, 5, 1)]
    result = simulate(jobs, Plan(nodes=NODES, order="srsf", knows_lengths=True))
    assert ends(result) == {"wide": 15, "thin": 6}
    assert result.parks == 1


def test_a_restart_costs_work() -> None:
    jobs = [job("wide", 0, 10, 4), job("thin", 1, 5, 1)]
    plan = Plan(nodes=NODES, order="srsf", knows_lengths=True, restart_cost=lambda _: 3 * SECOND)
    assert ends(simulate(jobs, plan)) == {"wide": 18, "thin": 6}


def test_whenever_anything_happens_running_jobs_lose_work_but_never_more_than_they_did() -> None:
    jobs = [job("a", 0, 10), job("b", 1, 12)]
    plan = Plan(nodes=NODES, order="fifo", shake_cost=lambda _: 4 * SECOND)
    assert ends(simulate(jobs, plan)) == {"a": 11, "b": 17}


def test_side_by_side_jobs_go_at_their_measured_speeds() -> None:
    jobs = [job("a", 0, 10, 1, program="p"), job("b", 0, 10, 1, program="q")]
    plan = Plan(nodes=(NodeSpec(name="n", cards=1),), order="pack", rates=lambda group: (800,) * len(group))
    assert ends(simulate(jobs, plan)) == {"a": 12.5, "b": 12.5}


def test_a_pair_that_is_slower_together_runs_one_after_the_other() -> None:
    jobs = [job("a", 0, 10, 1, program="p"), job("b", 0, 10, 1, program="q")]
    plan = Plan(nodes=(NodeSpec(name="n", cards=1),), order="pack", rates=lambda group: (400,) * len(group))
    assert ends(simulate(jobs, plan)) == {"a": 10, "b": 20}


def test_a_refused_job_is_told_with_its_sentence_and_the_others_run() -> None:
    result = simulate([job("big", 0, 1, 8), job("a", 0, 1)], Plan(nodes=NODES, order="fifo"))
    assert result.outcomes[0].refusal == "job big can never run: it wants 8 cards, the cluster has 4; ask for fewer"
    assert [outcome.job.id for outcome in result.ended] == ["a"]


def test_lending_by_hand() -> None:
    jobs = [job("a1", 0, 10, 2, tenant="a"), job("a2", 0, 10, 2, tenant="a"), job("b1", 4, 3, 2, tenant="b")]
    result = simulate(jobs, Plan(nodes=NODES, order="fifo", shares_milli={"a": 2000, "b": 2000}))
    assert ends(result) == {"a1": 10, "a2": 13, "b1": 7}
    assert [outcome.is_loaned for outcome in result.outcomes] == [False, True, False]


def test_a_large_job_is_one_request_a_node() -> None:
    assert [member.cards for member in members_of(job("x", 0, 1, 11), 4)] == [4, 4, 3]
    assert [member.cards for member in members_of(job("x", 0, 1, 4), 4)] == [4]


def test_shares_of_cards_run_with_the_placer() -> None:
    jobs = [job("a", 0, 10, card_milli=500), job("b", 0, 10, card_milli=500), job("c", 0, 10, card_milli=600)]
    one_card = (NodeSpec(name="n", cards=1),)
    assert ends(simulate(jobs, Plan(nodes=one_card, order="fifo"))) == {"a": 10, "b": 10, "c": 20}
    assert type(make_inventory(jobs, one_card)).__name__ == "PlacerInventory"


@pytest.mark.parametrize("order", ["las", "srsf", "pack", "fair"])
def test_equal_traces_give_equal_results(order: str) -> None:
    jobs = load("philly").jobs[:800]
    plan = Plan(nodes=philly.NODES[:4], order=order, knows_lengths=order == "srsf")
    first, second = (
        [(each.ended_ns, each.started_ns, each.parks, each.refusal) for each in simulate(jobs, plan).outcomes]
        for _ in range(2)
    )
    assert first == second


def test_progress_is_told() -> None:
    told: list[int] = []
    simulate(load("philly").jobs[:800], Plan(nodes=philly.NODES, order="fifo"), step=told.append)
    assert told


def test_a_round_of_two_programs_is_worked_out_by_hand() -> None:
    loads = job("loads", 0, 1_000, program="l", iterations=1000, stages_ns=(900_000_000, 100_000_000, 0))  # type: ignore[arg-type] # a tuple by name
    computes = job("computes", 0, 1_000, program="c", iterations=1000, stages_ns=(0, 1_000_000_000, 0))  # type: ignore[arg-type] # a tuple by name
    assert muri.together([loads, computes]) == (693, 693)  # a round of 1.1 s, times 1.33 / 1.015


@pytest.mark.slow
@pytest.mark.parametrize(("row", "seconds"), [(0, 193_082), (1, 185_022), (2, 347_529), (3, 321_174)])
def test_muri_trace_3_gives_the_published_averages(row: int, seconds: int) -> None:
    result = simulate(muri.read_jobs(3), muri.ROWS[row].plan)
    assert round(result.mean_completion_ns / SECOND) == seconds
    order = muri.ROWS[row].plan.order
    if order in muri.GAP_MAX:
        published = muri.PUBLISHED_S[order][2]
        assert abs(seconds / published - 1) <= muri.GAP_MAX[order]
    else:
        assert seconds <= muri.PUBLISHED_S["tiresias"][2]


@pytest.mark.slow
def test_muri_trace_3_packed_with_a_bound_for_gangs_is_below_muri_l() -> None:
    plan = Plan(nodes=muri.NODES, order="pack", rates=muri.together, settings=ClusterSettings(gang_wait_ns=muri.DAY))
    assert simulate(muri.read_jobs(3), plan).mean_completion_ns <= muri.PUBLISHED_S["muri-l"][2] * SECOND


@pytest.mark.slow
@pytest.mark.parametrize("study", [philly, itp, muri])
def test_the_quick_form_of_each_study_has_rows_and_targets(study: object) -> None:
    found = study.run(lambda _: None, quick=True)  # type: ignore[attr-defined] # three modules of one form
    assert all(table.rows for table in found.tables)
    assert found.targets
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)


def test_thousands_of_rates_may_be_found_in_one_instant() -> None:
    """Each was told from inside the one before, until Python had enough of it."""
    engine = _Engine([job("a", 0, 10)], Plan(nodes=NODES, order="pack"))
    engine._to_report = [
        RatesMeasured(size_milli=1000, programs=(f"p{number}", "q"), rates_milli=(500, 500)) for number in range(3000)
    ]
    engine._tell(Tick(), 0)
    assert (engine._events, engine._to_report) == (3001, [])
