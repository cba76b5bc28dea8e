"""`carpool verify --only-users` and `carpool bench users`: real programs of several users on one daemon."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from carpool.bench import other_users
from carpool.bench.node import PROGRAMS, plain_environment
from tests.e2e.machine import Population

SECONDS = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 60)]


def call(population: Population, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """One command of a carpool that everyone can use."""
    command = [population.python.python, "-m", "carpool.cli.main", *words]
    environment = plain_environment()
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, cwd="/", check=False, **options
    )


def test_one_user_can_do_nothing_to_another_or_to_the_daemon(population: Population) -> None:
    done = call(population, "verify", "--only-users", "--json")
    assert done.stdout, done.stderr
    outcomes = json.loads(done.stdout)["attacks"]
    assert {each["attack"] for each in outcomes} == {attack.title for attack in other_users.ATTACKS}
    failed = [f"{each['attack']}: {each['verdict']}, {each['why']}" for each in outcomes if each["verdict"] != "held"]
    assert not failed and done.returncode == 0, "\n".join([*failed, done.stderr])


def test_every_attack_of_a_user_is_in_the_program() -> None:
    source = (PROGRAMS / "attack_users.py").read_text()
    listed = re.findall(r"^        (\w+),$", source[source.index("ATTACKS:") :], re.MULTILINE)
    assert [attack.name for attack in other_users.ATTACKS] == listed


def test_bench_users_prints_its_figures(population: Population) -> None:
    done = call(population, "bench", "users", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    wanted = {"handover_between_users_over_inside", "ps_200_jobs_s", "daemon_core_fraction"}
    assert wanted <= set(metrics) and all(metrics[name] > 0 for name in wanted), metrics
    assert metrics["journal_bytes_per_million_handovers"] > 0


@pytest.mark.parametrize("words", [["verify", "--only-users"], ["bench", "users", "--quick"]])
def test_who_is_not_root_is_told_that_this_takes_root(population: Population, words: list[str]) -> None:
    done = call(population, *words, user=65534, group=65534, extra_groups=[])
    assert done.returncode == 2 and "only root can start them: use sudo" in done.stderr, done.stderr
