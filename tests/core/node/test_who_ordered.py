"""Who ordered what about a job stays in its account (I34)."""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import CancelAsked, CheckpointAsked, JobResized, JobSubmitted, ResumeAsked, SuspendAsked
from carpool.core.node.lifecycle import ORDERED, ORDERS_KEPT
from carpool.core.node.model import JobSpec, Order
from carpool.units import SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs

GIB = 1 << 30
A = JobId("a")


def test_orders_are_kept_with_whoever_gave_them_and_when_i34(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    core.wait(2 * SECOND)
    core.send(SuspendAsked(job=A, by="root"))
    core.wait(SECOND)
    core.send(ResumeAsked(job=A, by="ana"))
    core.send(JobResized(job=A, weight_milli=2000, by="eve"))
    core.send(CheckpointAsked(job=A, by="ana"))
    core.send(CancelAsked(job=A, by="root"))
    assert [(order.verb, order.by, order.after_ns // SECOND) for order in core.job("a").orders] == [
        ("suspended", "root", 2),
        ("resumed", "ana", 3),
        ("resized", "eve", 3),
        ("written to a file", "ana", 3),
        ("cancelled", "root", 3),
    ]


def test_where_one_user_is_served_nobody_is_named(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    core.send(SuspendAsked(job=A))
    assert core.job("a").orders == ()


def test_only_the_newest_orders_are_kept(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    for number in range(ORDERS_KEPT + 3):
        core.send(JobResized(job=A, weight_milli=1000 + number, by=f"user{number}"))
    kept = [order.by for order in core.job("a").orders]
    assert kept == [f"user{number}" for number in range(3, ORDERS_KEPT + 3)]


def test_they_survive_the_driver_i34(make_core: MakeCore) -> None:
    before, after = make_core(), make_core()
    before.submit("a", cap_bytes=GIB)
    before.send(JobResized(job=A, weight_milli=2000, by="root"))
    account = before.scheduler.account_of(A, now=before.now)
    assert account.orders == (Order(verb="resized", by="root", after_ns=0),)
    after.send(JobSubmitted(job=A, spec=JobSpec(name="a", cap_bytes=GIB), account=account))
    assert after.job("a").orders == account.orders


def test_every_order_of_people_has_a_word() -> None:
    assert len(set(ORDERED.values())) == len(ORDERED) == 6
