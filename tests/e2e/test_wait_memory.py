"""An allocation that finds no memory waits for it instead of failing; others go on meanwhile."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

GREEDY = ["eats_memory.py", "--mib", "32", "--steps", "12"]
SUDDEN = ["eats_memory.py", "--mib", "200", "--steps", "3"]
SLEEPER = "echo ready; exec sleep 300"


def test_a_job_waits_for_anothers_memory_while_a_third_goes_on(node: Node, alone: Alone) -> None:
    """400 MiB of 800 are promised to a program that sleeps; the greedy one needs more than is left."""
    node.start(device="cpu:800MiB", quantum="20ms")
    sleeper = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "sleeper", "--memory", "400MiB"])
    sleeper.wait_line("ready")
    node.run("plain_loop.py", "--steps", "10000000", options=["--name", "third", "--memory", "200MiB"])
    wait_until(lambda: (node.find("third") or {"needs": None})["needs"], "the third is measured")
    greedy = node.run(*SUDDEN, options=["--name", "greedy", "--wait-memory"])
    node.wait_state("greedy", "blocked")
    stuck = node.job("greedy")
    assert stuck["pending_bytes"] >= 200 << 20
    assert re.match(r"an allocation of 200 MiB waits for memory: the job holds \d+ MiB", stuck["reason"]), stuck
    lines = len(greedy.lines)
    node.wait_steps("third", node.job("third")["steps"] + 50)
    assert len(greedy.lines) == lines, "it does not compute"
    assert node.job("greedy")["state"] == "blocked"

    sleeper.process.terminate()
    assert sleeper.wait().code == 143
    ended = greedy.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(*SUDDEN)
    spent = node.wait_state("greedy", "finished")["spent_ns"]
    assert spent["memory"] > 0


def test_at_the_deadline_the_program_gets_its_own_error_and_carpools_sentence(node: Node) -> None:
    node.start()
    options = ["--name", "late", "--memory", "250MiB", "--wait-memory", "1500ms"]
    ended = node.run(*GREEDY, "--catch", options=options).wait()
    assert ended.code == 0, ended.err
    assert [line for line in ended.lines if line.startswith("caught: ")]
    assert ended.lines[-1].startswith("done steps=12 "), "it went on without"
    said = re.match(
        r"carpool: memory cap reached: job late-1 may hold 250 MiB, holds (\d+) MiB and asked for 32\.0 MiB more, and"
        r" waited \S+ s, as long as --wait-memory allows; raise the cap with --memory, or while it waits with carpool"
        r" resize; the program gets its own out-of-memory error\n$",
        ended.err,
    )
    assert said is not None, ended.err
    assert 250 - 32 < int(said[1]) <= 250


def test_a_larger_cap_frees_a_waiting_allocation(node: Node, alone: Alone) -> None:
    node.start()
    job = node.run(*GREEDY, options=["--name", "a", "--memory", "250MiB", "--wait-memory=10m"])
    node.wait_state("a", "blocked")
    assert "and may hold 250 MiB; go on with: carpool resize a-1 --memory SIZE" in node.job("a")["reason"]
    assert node.carpool("resize", "a", "--memory", "1GiB").code == 0
    ended = job.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(*GREEDY)


def test_ctrl_c_ends_the_wait_each_time_and_a_harmless_signal_does_not(node: Node) -> None:
    """The program is inside malloc, where Python cannot run its handlers; nobody has to wait for the deadline."""
    node.start()
    options = ["--name", "a", "--memory", "100MiB", "--wait-memory", "10m"]
    job = node.run("is_interrupted.py", options=options)
    job.wait_line("ready")
    for attempt in (1, 2):
        wait_until(lambda: node.job("a")["pending_bytes"], "it waits")
        job.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        assert node.job("a")["pending_bytes"], "it still waits"
        job.process.send_signal(signal.SIGINT)
        job.wait_line(f"interrupted {attempt} usr1={attempt}")
    ended = job.wait()
    assert ended.code == 7
    assert re.match(
        r"carpool: job a-1 holds \d+\.?\d* MiB and asked for 16\.0 MiB more, and was told to end while it waited for"
        r" that; the program gets its own out-of-memory error\n",
        ended.err,
    ), ended.err
    assert node.wait_state("a", "cancelled", "failed")["state"] == "cancelled"
