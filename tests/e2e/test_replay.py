"""Journals of real daemons, replayed: every decision comes out again, whatever the daemon was told at its start."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from carpool.core.node.events import JobAdopted, NodeConfigured
from carpool.core.node.settings import Settings
from carpool.journal import reader
from carpool.journal.reader import Recording
from carpool.sim import journal
from tests.e2e.node import PROGRAMS, PYTHON, Node, Started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TRAINING = ["held.py", "groups", "--width", "250", "--pause", "0.005", "--steps", "1000000"]


def scripted(node: Node, name: str, *options: str, steps: int = 40, step_ms: int = 15) -> Started:
    """A small program that takes turns."""
    words = [PYTHON, str(PROGRAMS / "scripted.py"), "--steps", str(steps), "--step-ms", str(step_ms)]
    return node.run(*words, options=["--name", name, "--memory", "100MiB", *options])


def end(*jobs: Started) -> None:
    for job in jobs:
        job.process.terminate()
    for job in jobs:
        job.wait()


def replayed(node: Node) -> dict[str, Any]:
    """What `carpool sim --journal` says; every decision that is written down was compared and is as recorded (J2)."""
    done = node.carpool("sim", "--journal", "--json")
    answer: dict[str, Any] = json.loads(done.out)
    assert answer["difference"] == ""
    assert (done.code, answer["reproduced"], answer["not_replayed"]) == (0, True, [])
    lives = [reader.read(node.places.journal, run=life.run) for life in reader.lives(node.places.journal)]
    assert answer["effects"] == sum(len(call.effects) for life in lives for call in life.calls) > 10
    assert answer["events"] == sum(len(life.calls) for life in lives)
    assert all(isinstance(life.calls[0].event, NodeConfigured) for life in lives)
    return answer


def with_settings(recording: Recording, settings: Settings) -> Recording:
    """The same events, for a daemon that was told something else."""
    configured = replace(recording.configured, settings=settings)
    first = replace(recording.calls[0], event=configured)
    return replace(recording, configured=configured, calls=[first, *recording.calls[1:]])


def assert_settings_mattered(node: Node) -> None:
    """With a daemon's usual settings other decisions would have been made: equality is no accident."""
    recording = reader.read(node.places.journal)
    assert journal.replay(recording).difference == ""
    assert journal.replay(with_settings(recording, Settings())).difference != ""


def test_j2_a_journal_taken_with_a_host_budget_replays_exactly(node: Node) -> None:
    node.start(quantum="20ms", host_memory="1MiB")
    jobs = [node.run(*TRAINING, options=["--name", name]) for name in ("a", "b")]
    for name in ("a", "b"):
        node.wait_steps(name, 5)
    node.client.call("suspend", job="a")
    wait_until(lambda: "host" in str(node.job("a")["reason"]) or node.state("a") == "parked", "it cannot leave")
    node.wait_steps("b", node.job("b")["steps"] + 5)
    end(*jobs)
    replayed(node)
    assert_settings_mattered(node)


def test_j2_a_journal_taken_with_a_share_policy_and_weights_of_tenants_replays_exactly(node: Node) -> None:
    node.start(quantum="20ms", share_policy="equal:3", tenant_weights="ana=3,ben=1")
    jobs = [scripted(node, name, "--tenant", name) for name in ("ana", "ben")]
    assert [job.wait().code for job in jobs] == [0, 0]
    replayed(node)
    assert_settings_mattered(node)


def test_j2_a_journal_taken_with_a_patience_for_hogs_replays_exactly(node: Node) -> None:
    node.start(quantum="20ms", hog_after="200ms")
    other = scripted(node, "other", steps=100_000)
    node.wait_steps("other", 5)
    enough = node.files / "enough"
    hog = node.run("hog.py", "--steps", "10", "--seconds", "100", "--until", str(enough), options=["--name", "hog"])
    wait_until(lambda: len(node.journal("NameHog")) >= 2, "it is named and put last")
    enough.touch()
    end(other, hog)
    replayed(node)
    assert_settings_mattered(node)


def test_j2_a_journal_of_several_devices_and_a_job_that_moved_replays_exactly(node: Node) -> None:
    node.start(device="cpu:2x1GiB", quantum="20ms")
    jobs = [node.run(*TRAINING, options=["--name", name, "--memory", "400MiB"]) for name in ("a", "b", "c")]
    for name in ("a", "b", "c"):
        node.wait_steps(name, 5)
    here = node.job("a")["device"]
    there = "cpu1" if here == "cpu0" else "cpu0"
    node.client.call("migrate", job="a", device=there)
    wait_until(lambda: node.job("a")["device"] == there, "it moved")
    node.wait_steps("a", node.job("a")["steps"] + 5)
    end(*jobs)
    assert node.journal("MoveJob")
    replayed(node)


def test_j2_a_journal_of_daemons_that_were_killed_and_told_other_things_replays_exactly(node: Node) -> None:
    """Each life begins with its configuration, and with the jobs that outlived the one before."""
    node.start(quantum="20ms")
    jobs = [scripted(node, name, steps=100_000) for name in ("a", "b")]
    for name in ("a", "b"):
        node.wait_steps(name, 5)
    for policy, hog_after in (("las", "300ms"), ("srtf", "")):
        node.kill_daemon()
        node.start(policy=policy, quantum="30ms", hog_after=hog_after)
        for name in ("a", "b"):
            node.wait_steps(name, node.job(name)["steps"] + 20)
    end(*jobs)
    answer = replayed(node)
    assert [each["run"] for each in answer["runs"]] == [1, 2, 3]
    lives = [reader.read(node.places.journal, run=run) for run in (1, 2, 3)]
    assert [life.policy for life in lives] == ["fair", "las", "srtf"]
    adopted = [sum(isinstance(call.event, JobAdopted) for call in life.calls) for life in lives]
    assert adopted == [0, 2, 2]
    only = json.loads(node.carpool("sim", "--journal", "--run", "2", "--json").out)
    assert [each["run"] for each in only["runs"]] == [2]
