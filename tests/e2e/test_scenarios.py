"""One scenario, every driver: the simulator and a real daemon with real processes make the same decisions."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from carpool.core.node.effects import CloseJob
from carpool.core.node.model import JobState
from carpool.errors import AnsweredError
from carpool.journal import reader
from carpool.sim import journal
from carpool.testing.scenario import Scenario, decisions, load_scenario, run_scenario
from carpool.units import MIB, MS, parse_bytes
from tests.e2e.machine import Machine
from tests.e2e.node import PROGRAMS, PYTHON, Node

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.toml"))
NAMES = [path.stem for path in SCENARIOS]


@pytest.mark.parametrize("path", SCENARIOS, ids=NAMES)
def test_the_simulator_makes_the_decisions_of_the_scenario(path: Path) -> None:
    scenario = load_scenario(path)
    assert run_scenario(scenario) == list(scenario.expected)


@pytest.mark.slow
@pytest.mark.parametrize("path", SCENARIOS, ids=NAMES)
def test_the_daemon_makes_the_same_decisions_and_its_journal_replays_exactly(
    path: Path, request: pytest.FixtureRequest
) -> None:
    scenario = load_scenario(path)
    node = request.getfixturevalue("machine" if scenario.tenants else "node")  # terms are of the machine's daemon
    assert isinstance(node, Node)
    play(scenario, node)
    recording = reader.read(node.places.journal)
    effects = [effect for each in recording.calls for effect in each.effects]
    assert decisions(effects, scenario) == list(scenario.expected)
    closed = {effect.job: effect.state for effect in effects if isinstance(effect, CloseJob)}
    assert scenario.until == "" or set(closed.values()) == {JobState.FINISHED}, "and nobody loses anything"
    replayed = journal.replay(recording)
    assert replayed.difference == ""
    assert replayed.effects == sum(len(each.effects) for each in recording.calls) > 0
    done = node.carpool("sim", "--journal", "--add-device", "4GiB", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["reproduced"], answer["events"]) == (0, True, replayed.events)
    same, more = answer["simulated"]
    assert more["wait_s"] < same["wait_s"]


@pytest.mark.slow
def test_the_journal_of_a_running_daemon_is_read_up_to_the_last_event(node: Node) -> None:
    node.start(policy="fifo", device="cpu:1GiB")
    done = node.carpool("run", "--", PYTHON, str(PROGRAMS / "scripted.py"), "--steps", "5", "--step-ms", "10")
    assert done.code == 0, done.err
    answer = json.loads(node.carpool("sim", "--journal", "--json").out)
    assert (answer["jobs"], answer["recorded"]["completion_jobs"], answer["cut_off"]) == (1, 1, False)
    assert answer["reproduced"]


def play(scenario: Scenario, node: Node) -> None:
    """The scenario's jobs as processes, each submitted at its time; returns when all are over."""
    if isinstance(node, Machine):
        node.start_machine(settings_of(scenario))
    else:
        node.start(policy=scenario.policy, device=f"cpu:{scenario.device}")
    begin = time.monotonic_ns()
    for job in scenario.jobs:
        time.sleep(max(0, begin + job.at_ns - time.monotonic_ns()) / 1e9)
        steps = ["--steps", str(job.steps), "--step-ms", str(job.step_ns // MS)]
        steps += ["--hold-mib", str(job.holds // MIB)] if job.holds else []
        spec = {
            "name": job.name,
            "tenant": job.tenant,
            "weight_milli": 1000,
            "priority": job.priority,
            "cap_bytes": parse_bytes(job.memory),
            "steps": job.steps,
            "fingerprint": "",
        }
        argv = [PYTHON, "scripted.py", *steps]
        with contextlib.suppress(AnsweredError):  # a refusal is a decision like any other
            node.client.call("submit", spec=spec, argv=argv, cwd=str(PROGRAMS), environment=node.environment)
    for job in scenario.jobs:
        node.wait_state(job.name, "finished", "failed")
    node.ps()
    assert node.daemon is not None
    node.daemon.process.terminate()
    node.daemon.process.wait(20)


def settings_of(scenario: Scenario) -> str:
    """carpool.toml for the machine's daemon; root, who plays, is a member of every tenant."""
    tenants = {job.tenant: dict(scenario.tenants.get(job.tenant, {})) for job in scenario.jobs}
    lines = [f'policy = "{scenario.policy}"', f'device = "cpu:{scenario.device}"']
    for name, table in tenants.items():
        lines += [f"[tenant.{name}]", 'members = ["root"]']
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines)
