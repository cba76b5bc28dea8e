"""A4: a job's wall time is the sum of its rows, also when it was parked, and its waiting names who had the turn."""

from __future__ import annotations

from carpool.units import GIB, MS, SECOND
from tests.core.driver import CoreDriver, needs

SMALL = needs(GIB, GIB)


def wall_ns(core: CoreDriver, job: str) -> int:
    return sum(core.job(job).spent_ns.values())


def test_the_rows_of_jobs_that_share_add_up_to_the_wall_clock(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.wait(SECOND)
    core.settle_in("b", SMALL)
    core.run(10 * SECOND)
    assert wall_ns(core, "a") == core.now
    assert wall_ns(core, "b") == core.now - SECOND
    for job, other in (("a", "b"), ("b", "a")):
        picture = core.job(job)
        assert picture.spent_ns["run"] == picture.served_ns
        assert set(picture.waited_for_ns) == {other}
        assert picture.spent_ns["turn"] == picture.waited_ns == picture.waited_for_ns[other]


def test_the_rows_of_a_parked_job_add_up_to_the_wall_clock(core: CoreDriver) -> None:
    core.submit_known("a", SMALL)
    core.wait(3 * SECOND)
    core.ask("a")
    core.wait(2 * SECOND)
    core.suspend("a")
    core.wait(10 * MS)
    core.give_back("a")
    core.wait(40 * MS)
    core.parked("a", GIB)
    core.wait(7 * SECOND)
    core.resume("a")
    core.wait(60 * MS)
    core.unparked("a")
    core.wait(SECOND)
    core.exit("a")
    core.wait(5 * SECOND)
    assert core.job("a").spent_ns == {
        "start": 3 * SECOND,
        "run": 3 * SECOND + 10 * MS,
        "move": 100 * MS,
        "parked": 7 * SECOND,
    }


def test_a_job_in_the_queue_waits_for_memory(core: CoreDriver) -> None:
    core.settle_in("a", needs(10 * GIB, GIB))
    core.submit_known("b", needs(10 * GIB, GIB))
    core.wait(SECOND)
    assert core.job("b").spent_ns == {"memory": SECOND}
