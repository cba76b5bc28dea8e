"""Every wait has a reason that says for whom or for what, with numbers, at any time, under every policy."""

from __future__ import annotations

import re

import pytest

from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings
from carpool.policies import names_for
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs

KNOWN = needs(GIB, GIB)
NUMBER = re.compile(r"\b\d+(\.\d+)? (ns|us|ms|s|min|h|B|KiB|MiB|GiB|TiB)\b")


TURN = re.compile(rf"waits {NUMBER.pattern}( for its turn on [\w/]+)?: (?P<why>.*)")
RANK = re.compile(r"\bpriority -?\d+")
LARGE = needs(GIB, 10 * GIB)  # two of them have no room for a lane each
STILL = (JobState.QUEUED, JobState.PARKED, JobState.BLOCKED)


def assert_explained(core: CoreDriver) -> None:
    jobs = core.scheduler.picture(now=core.now).jobs
    for job in jobs:
        assert job.reason, f"{job.id} in state {job.state} has no reason"
        if job.state in STILL:
            assert NUMBER.search(job.reason), f"no number in: {job.reason}"
        elif job.state is JobState.WAITING:
            assert_blames(job.reason, [other.name for other in jobs if other.id != job.id])


def assert_blames(reason: str, others: list[str]) -> None:
    """Who waits for a turn is told whose it is, and a number beside how long it has waited itself."""
    if reason.startswith("waits for memory: "):
        assert NUMBER.search(reason), f"no number in: {reason}"
        return
    found = TURN.fullmatch(reason)
    assert found, f"no turn that is waited for in: {reason}"
    why = found["why"]
    assert set(re.findall(r"\w+", why)) & set(others), f"nobody is named in: {reason}"
    _, is_held, rest = why.partition("has had it for ")
    rest = NUMBER.sub("", rest, count=1)  # how long it has had it
    is_told = NUMBER.search(rest) or RANK.search(rest) or rest.startswith("; the turn is already recalled")
    assert is_told or not is_held, f"no number of its own in: {reason}"


def preferences(core: CoreDriver, policy: str) -> list[str]:
    """What the policy says for its choice, in the reasons of those who wait."""
    said = [job.reason for job in core.scheduler.picture(now=core.now).jobs if job.state is JobState.WAITING]
    return [found for reason in said for found in re.findall(rf"\({policy}: (.*)\)(?:;|$)", reason)]


@pytest.mark.parametrize("policy", names_for("node"))
def test_everybody_who_waits_is_told_for_whom_with_a_number(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy, devices=0)
    core.add_device("cpu", 16 * GIB)  # a name without a digit, so that none is found by accident
    for job in ("ann", "bob", "cyd"):
        core.settle_in(job, KNOWN)
        assert_explained(core)
        core.wait(MS)
    core.submit("new", cap_bytes=2 * GIB)
    core.ask("new")
    core.submit("open")
    core.submit("queued")
    for index in range(20):
        core.submit(f"more{index}", cap_bytes=8 * GIB)
    for _ in range(80):
        assert_explained(core)
        core.tick(SECOND)
    for job in core.holders():
        core.give_back(job)
        assert_explained(core)
    if core.state("new") is JobState.PROFILING:
        core.measure("new", KNOWN)
    core.measure("bob", needs(30 * GIB, GIB))
    assert_explained(core)


@pytest.mark.parametrize("policy", names_for("node"))
@pytest.mark.parametrize("tenant", ["default", "other"])
def test_a_policy_defends_its_choice_with_a_number_of_its_own(make_core: MakeCore, policy: str, tenant: str) -> None:
    core = make_core(policy)
    core.settle_in("ann", LARGE)
    core.run(70 * MS)
    core.settle_in("bob", LARGE, priority=3, tenant=tenant)
    said: list[str] = []
    for _ in range(100):
        core.tick(7 * MS)
        assert_explained(core)
        said += preferences(core, policy)
        core.run(3 * MS)
    assert said
    for preference in said:
        assert {"ann", "bob", "default", "other"} & set(re.findall(r"\w+", preference)), preference
        assert NUMBER.search(preference) or RANK.search(preference), f"{policy} has no number in: {preference}"


@pytest.mark.parametrize("policy", names_for("node"))
def test_who_is_parked_is_told_so_with_a_number(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy)
    core.settle_in("ann", KNOWN)
    core.settle_in("bob", KNOWN)
    core.run(SECOND)
    core.suspend("ann")
    core.run(SECOND)
    assert core.state("ann") is JobState.PARKED
    assert core.reason("ann").startswith("suspended for ")
    assert "1.00 GiB is on the host" in core.reason("ann")
    core.measure("bob", needs(15 * GIB, GIB))
    core.resume("ann")
    core.wait(20 * MS)
    assert core.state("ann") is JobState.PARKED
    assert "it needs 2.00 GiB to come back and" in core.reason("ann")
    assert_explained(core)


@pytest.mark.parametrize("policy", names_for("node"))
def test_whose_allocation_waits_is_told_so_with_the_bytes(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy)
    core.settle_in("ann", needs(4 * GIB, GIB), wait_memory_ns=60 * SECOND)
    core.settle_in("bob", needs(9 * GIB, GIB))
    core.block("ann", 4 * GIB, 7 * GIB)
    assert core.state("ann") is JobState.BLOCKED
    core.wait(20 * MS)
    assert "an allocation of 7.00 GiB waits for memory: the job holds 4.00 GiB" in core.reason("ann")
    assert_explained(core)


def test_a_waiting_job_is_told_who_has_the_lane_and_why(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.wait(41 * MS)
    assert core.reason("b") == (
        "waits 41 ms for its turn on gpu0/1: a has had it for 41 ms and keeps it for another 59 ms of its quantum"
    )
    core.tick(60 * MS)
    assert core.reason("b") == (
        "waits 101 ms for its turn on gpu0/1: a has had it for 101 ms (fair: b is behind its share by 101 ms);"
        " the turn is already recalled"
    )


@pytest.mark.parametrize("policy", ["srtf", "las", "fair"])
def test_a_policy_is_not_asked_to_defend_a_quantum(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy, settings=Settings(quantum_ns=SECOND))
    core.remember("long", KNOWN, steps=6000, step_ns=10 * MS, served_ns=60 * SECOND)
    core.remember("short", KNOWN, steps=100, step_ns=10 * MS, served_ns=SECOND)
    core.submit("old", fingerprint="long")
    core.ask("old")
    core.submit("young", fingerprint="short")
    core.ask("young")
    core.wait(5 * MS)
    assert core.reason("young") == (
        "waits 5.0 ms for its turn on gpu0/1: old has had it for 5.0 ms"
        " and keeps it for another 995 ms of its quantum"
    )


def test_the_policy_defends_a_holder_it_still_prefers_after_its_quantum(make_core: MakeCore) -> None:
    core = make_core("srtf")
    for job, served_ns in (("short", 2 * SECOND), ("long", 60 * SECOND)):
        core.remember(job, KNOWN, served_ns=served_ns)
        core.submit(job, fingerprint=job)
        core.ask(job)
    core.wait(SECOND)
    core.report("short", steps=50)
    assert core.reason("long").endswith("(srtf: short has 1.0 s left, long has 1 min 0 s left)")


def test_between_two_looks_the_policy_says_what_it_will_decide(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN, weight_milli=4000)
    core.settle_in("b", KNOWN)
    core.tick(99 * MS)
    core.wait(2 * MS)
    assert core.reason("b").endswith("(fair: b is behind its share by 25 ms); the turn is about to be recalled")


def test_who_is_not_the_next_is_told_who_is(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("holder", KNOWN, priority=5)
    core.settle_in("low", KNOWN)
    core.settle_in("high", KNOWN, priority=9)
    said = core.reason("low")
    assert "; the turn is already recalled for high (priority: high has priority 9, low 0;" in said
    assert core.reason("high").endswith(
        "(priority: high has priority 9, holder 5; nobody waits longer than 30.0 s for a turn);"
        " the turn is already recalled"
    )


def test_the_starvation_bound_is_named_when_it_decides(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("old", KNOWN)
    core.settle_in("young", KNOWN)
    core.wait(31 * SECOND)
    core.report("old", steps=3100)
    assert core.reason("young").endswith(
        "(priority: young has waited 31.0 s; nobody waits longer than 30.0 s for a turn);"
        " the turn is already recalled"
    )


def test_a_turn_recalled_for_memory_is_not_blamed_on_the_policy(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("first", KNOWN)
    core.settle_in("high", KNOWN, priority=9)
    core.give_back("first")
    core.measure("high", needs(30 * GIB, GIB))
    core.wait(MS)
    said = core.reason("first")
    assert said.endswith("high has had it for 1.0 ms; the turn is already recalled"), said


def test_tenants_are_named_when_they_decide(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN, tenant="red")
    core.settle_in("b", KNOWN, tenant="blue")
    core.tick(100 * MS)
    assert "tenant blue has had 100 ms less for its weight than tenant red" in core.reason("b")


def test_a_job_waits_while_another_is_measured(core: CoreDriver) -> None:
    core.submit_known("a", KNOWN)
    core.submit("new")
    core.ask("new")
    core.ask("a")
    core.wait(5 * MS)
    assert core.reason("a") == (
        "waits 5.0 ms for its turn on gpu0/1: new runs alone for its first turns, so that its memory can be measured"
    )


def test_a_device_that_is_cleared_for_a_newcomer_explains_both_sides(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.submit("new", cap_bytes=GIB)
    core.ask("new")
    core.give_back("b")
    core.wait(3 * MS)
    assert core.reason("new") == "waits 3.0 ms: it is to be measured alone on gpu0, after a"
    assert core.reason("b") == "waits 3.0 ms: new is to be measured alone on gpu0, after a"


def test_jobs_that_do_not_wait_say_what_they_do(core: CoreDriver) -> None:
    core.submit("a")
    core.wait(1500 * MS)
    assert core.reason("a") == "started 1.5 s ago"
    core.suspend("a")
    assert core.reason("a") == "started 1.5 s ago; it is suspended at its next boundary"
    core.resume("a")
    core.wait(4 * SECOND)
    assert core.reason("a") == "its program has run for 5.5 s and has not reached an iteration boundary yet"
    core.ask("a")
    core.wait(20 * MS)
    assert core.reason("a") == "has held one of its first turns for 20 ms; its memory is being measured"
    core.measure("a", KNOWN)
    core.wait(20 * MS)
    assert core.reason("a") == "has had the device for 20 ms"
    core.give_back("a", wants_more=False)
    core.wait(2 * SECOND)
    assert core.reason("a") == "has wanted no turn for 2.0 s: it loads data, saves, or is between its loops"
    core.exit("a")
    assert core.reason("a") == "finished: exit code 0; had the device 40 ms, waited 0 ns for turns"


def test_a_holder_whose_turn_is_recalled_says_so(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.tick(100 * MS)
    assert core.reason("a") == "has had the device for 100 ms; its turn is recalled"


def test_a_job_that_ended_without_a_turn_is_said_to_have_taken_none(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=16 * GIB)
    core.submit("b", cap_bytes=16 * GIB)
    core.wait(20 * SECOND)
    core.exit("a")
    assert core.reason("a") == "finished: exit code 0; it took no turns"
    core.wait(SECOND)
    core.exit("b", code=1)
    assert core.reason("b") == "failed: exit code 1; it took no turns, waited 20.0 s for memory"
    core.settle_in("c", KNOWN)
    core.wait(SECOND)
    core.exit("c")
    assert core.reason("c").startswith("finished: exit code 0; had the device 1.0")
