"""PyTorch's CUDA build under `carpool run`: the agent's CUDA code with a real torch, the guest library beside it.

What a real GPU must show too is in test_cards.py."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.node import Node
from tests.native.gpu import true_bytes
from tests.torch_cuda.conftest import PROGRAMS, TRAIN, lines_of, start

pytestmark = pytest.mark.timeout(400)

GIB = 1 << 30
MIB = 1 << 20
LOOK = str(PROGRAMS / "look.py")
GROWING = str(PROGRAMS / "growing.py")


def held_on_card(node: Node, name: str) -> int:
    """Bytes the driver has given to the job's program."""
    return true_bytes(node.directory / "books")[node.program_pid(name)]


def test_a_capped_program_sees_a_card_of_its_size(node: Node) -> None:
    node.start(device="stub:1x16GiB")
    done = start(node, "look", LOOK, memory="2GiB").wait()
    assert done.code == 0, done.err
    found = json.loads(done.lines[-1])
    assert (found["is_available"], found["total"], found["free"]) == (True, 2 * GIB, 2 * GIB)
    assert "total capacity of 2.00 GiB" in found["refusal"]
    assert found["is_same"] and found["is_product"]


def test_more_memory_for_a_running_program_counts_at_its_next_allocation(node: Node) -> None:
    node.start(device="stub:1x16GiB")
    job = node.run(GROWING, options=["--name", "growing", "--memory", "128MiB"], stdin=subprocess.PIPE)

    def take(expected: str) -> None:
        assert job.process.stdin is not None
        count = len(job.lines)
        job.process.stdin.write(b"\n")
        job.process.stdin.flush()
        job.wait_lines(count + 1)
        assert job.lines[-1] == expected

    job.wait_line("ready")
    take("held 64 MiB")
    for _ in range(2):
        take("refused")
    assert job.err.count("carpool: memory cap reached: job growing-") == job.err.count("carpool") == 1, job.err
    done = node.carpool("resize", "growing", "--memory", "512MiB")
    assert done.code == 0, done.err
    take("held 128 MiB")
    take("held 192 MiB")


def test_jobs_that_do_not_fit_together_rotate_and_their_numbers_stay(
    node: Node, run_bare: Callable[..., list[str]]
) -> None:
    words = ["--steps", "120", "--table", "200", "--pause", "0.05"]
    expected = run_bare("train.py", *words[:4])
    node.start(device="stub:1x400MiB", quantum="50ms")
    jobs = [start(node, name, TRAIN, *words, memory="300MiB") for name in ("one", "two")]
    for job in jobs:
        assert lines_of(job) == expected
    assert node.journal("ParkJob")  # how often depends on how fast this machine moves them
    assert node.journal("JobUnparked")


def test_a_job_goes_on_from_its_checkpoint_in_a_new_process(
    node: Node, run_bare: Callable[..., list[str]], tmp_path: Path
) -> None:
    program = [TRAIN, "--steps", "40", "--pause", "0.1"]
    expected = run_bare("train.py", *program[1:3])
    node.start(device="stub:1x16GiB")
    first = node.run(*program, options=["--name", "first", "--memory", "1GiB", "--checkpointable"])
    node.wait_steps("first", 6)
    file = tmp_path / "first.ckpt"
    done = node.carpool("checkpoint", "first", str(file), "--stop")
    assert done.code == 0, done.err
    second = node.run(*program, options=["--from", str(file), "--memory", "1GiB"])
    assert first.wait().lines + lines_of(second) == expected
    assert second.out


def test_a_program_with_a_captured_graph_is_not_moved_and_says_why(node: Node) -> None:
    node.start(device="stub:1x16GiB")
    start(node, "graph", TRAIN, "--steps", "1000000", "--pause", "0.02", "--graph")
    node.wait_steps("graph", 5)
    done = node.carpool("suspend", "graph")
    assert "captured CUDA graphs" in done.err + done.out.decode()
    assert held_on_card(node, "graph") > 8 * MIB
    assert node.carpool("resume", "graph").code == 0
    steps = node.job("graph")["steps"]
    node.wait_steps("graph", steps + 3)


def test_a_job_waits_for_its_kernels_before_it_gives_its_turn_away(node: Node) -> None:
    """Kernels of 5 ms are in the card's queue when a turn is recalled; none of them may run in the other's turn."""
    node.environment["CARPOOL_STUB_KERNEL"] = "5ms"
    node.start(device="stub:1x16GiB", quantum="30ms")
    backlog = str(PROGRAMS / "backlog.py")
    jobs = [start(node, name, backlog) for name in ("one", "two")]
    spans = [[tuple(map(int, line.split())) for line in lines_of(job)] for job in jobs]
    first, second = spans
    assert first and second
    overlaps = [(a, b) for a in first for b in second if a[0] < b[1] and b[0] < a[1]]
    assert overlaps == []
