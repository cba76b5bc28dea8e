"""What the CUDA guest costs a call, in instructions counted by callgrind: exact, so a change shows at once."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import MIB, Built, environment

pytestmark = pytest.mark.slow
COUNT = {0: 40_000, 1: 2_000, 2: 2_000}  # by what is called: lots decide which launches are measured
LAUNCH, ALLOC, OTHER = 0, 1, 2
LAUNCH_ADDED_MAX = 10
LAUNCH_CAPPED_ADDED_MAX = 100
ALLOC_ADDED_MAX = 700
MANY = 10_000


@pytest.fixture(scope="session")
def built(built: Built) -> Built:
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind: the guest's instructions are NOT counted")
    return built


def instructions(built: Built, env: dict[str, str], what: int, live: int) -> float:
    """Instructions a call, from two runs of different length: what is not the call cancels out."""
    totals = []
    for count in (COUNT[what], 2 * COUNT[what]):
        holding = "".join(f"alloc plain {slot % 9999} 4096\n" for slot in range(live))
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(built.probe), "link"]
        done = subprocess.run(
            command, env=env, input=f"{holding}bench {what} {count}\n", capture_output=True, text=True, timeout=120
        )
        found = re.search(r"Collected : (\d+)", done.stderr)
        assert found, done.stderr
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / COUNT[what]


def added(built: Built, page: Page, what: int, live: int = 0) -> float:
    books = page.path.with_name("books")
    guarded = environment(built, books, page=page.path)
    bare = {name: value for name, value in guarded.items() if name not in ("LD_PRELOAD", "CARPOOL_PAGE")}
    return instructions(built, guarded, what, live) - instructions(built, bare, what, live)


@pytest.fixture
def page(page: Page) -> Page:
    page.words[wire.H_CAP] = 2048 * MIB
    return page


def test_a_launch_costs_at_most_ten_instructions_more(built: Built, page: Page) -> None:
    cost = added(built, page, LAUNCH)
    print(f"launch_added_instructions {cost:.1f}")
    assert cost <= LAUNCH_ADDED_MAX


def test_a_launch_under_a_compute_limit_costs_at_most_a_hundred_instructions_more(built: Built, page: Page) -> None:
    page.words[wire.H_PRICE] = wire.PRICE_ONE
    cost = added(built, page, LAUNCH)
    print(f"launch_capped_added_instructions {cost:.1f}")
    assert cost <= LAUNCH_CAPPED_ADDED_MAX


def test_a_call_that_needs_no_limit_costs_nothing_more(built: Built, page: Page) -> None:
    cost = added(built, page, OTHER)
    print(f"unlimited_call_added_instructions {cost:.1f}")
    assert abs(cost) < 1


def test_an_allocation_and_its_free_cost_the_same_however_much_is_held(built: Built, page: Page) -> None:
    few, many = added(built, page, ALLOC), added(built, page, ALLOC, live=MANY)
    print(f"alloc_added_instructions {few:.1f} alloc_added_instructions_10k_live {many:.1f}")
    assert max(few, many) <= ALLOC_ADDED_MAX
    assert abs(few - many) <= 0.1 * ALLOC_ADDED_MAX
