"""PyTorch's CUDA build under `carpool run`: the agent's CUDA code with a real torch, the guest library beside it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.wire import page as wire
from tests.e2e.node import Node, Started
from tests.native.gpu import true_bytes
from tests.torch_cuda.conftest import PROGRAMS

pytestmark = pytest.mark.timeout(400)

GIB = 1 << 30
MIB = 1 << 20
TRAIN = str(PROGRAMS / "train.py")
LOOK = str(PROGRAMS / "look.py")
NEEDS = str(PROGRAMS / "needs.py")
GREEDY = str(PROGRAMS / "greedy.py")
GROWING = str(PROGRAMS / "growing.py")


def start(node: Node, name: str, *program: str, memory: str = "1GiB") -> Started:
    return node.run(*program, options=["--name", name, "--memory", memory])


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


@pytest.mark.parametrize("allocator", ["backend:native", "backend:cudaMallocAsync"])
def test_needs_are_what_torchs_allocator_says_at_the_boundaries(node: Node, allocator: str) -> None:
    node.environment["PYTORCH_ALLOC_CONF"] = allocator
    node.start(device="stub:1x16GiB")
    done = start(node, "needs", NEEDS).wait()
    assert done.code == 0, done.err
    said = json.loads(done.lines[-1])
    measured = node.journal("NeedsMeasured")[0]["needs"]
    assert measured["persistent_bytes"] == said["held_bytes"]
    assert measured["persistent_bytes"] + measured["ephemeral_bytes"] == said["peak_bytes"]
    assert said["held_bytes"] == said["left_bytes"], "what the driver says when the cache was given back"
    assert 4 * 8 * MIB <= said["held_bytes"] <= 2 * 20 * MIB, "weights, gradients and two of the optimizer's"
    assert 48 * MIB <= measured["ephemeral_bytes"] < 96 * MIB


def test_beyond_the_cap_torch_raises_its_own_error_in_that_program_alone(node: Node) -> None:
    node.start(device="stub:1x16GiB")
    neighbour = start(node, "neighbour", TRAIN, "--steps", "1000000", "--table", "700", "--pause", "0.01")
    neighbour.wait_line("step 3 ")
    done = start(node, "greedy", GREEDY, memory="512MiB").wait()
    assert done.code == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.err
    assert done.lines[-1] == "held 448 MiB"
    sentence = re.search(
        r"carpool: memory cap reached: job greedy-\d+ may hold 512 MiB and holds (\S+ \S+);", done.err
    )
    assert sentence, done.err
    steps = node.job("neighbour")["steps"]
    node.wait_steps("neighbour", steps + 5)
    assert held_on_card(node, "neighbour") > 700 * MIB


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
    take("refused")
    done = node.carpool("resize", "growing", "--memory", "512MiB")
    assert done.code == 0, done.err
    take("held 128 MiB")
    take("held 192 MiB")


def losses(started: Started) -> list[str]:
    done = started.wait(seconds=200)
    assert done.code == 0, done.err
    return done.lines


def test_turns_change_hands_at_optimizer_steps_and_the_library_stays_out_of_it(
    node: Node, run_bare: Callable[..., list[str]]
) -> None:
    expected = run_bare("train.py", "--steps", "150")
    node.start(device="stub:1x16GiB", quantum="20ms")
    jobs = {name: start(node, name, TRAIN, "--steps", "150") for name in ("one", "two")}
    node.wait_steps("two", 10)
    for name in jobs:
        with contextlib.closing(node.page(name)) as shared:
            flags = [shared.words[wire.slot_base(slot) + wire.S_FLAGS] for slot in range(wire.SLOTS)]
        assert not any(word & wire.FLAG_PACED for word in flags), "only the agent takes this program's turns"
    for name, started in jobs.items():
        assert losses(started) == expected
        assert node.job(name)["steps"] == 150, "a wait for the device is no step of a torch program"
        assert node.turns(name) >= 3


def test_a_suspended_job_leaves_the_card_and_comes_back_with_the_same_bytes(
    node: Node, run_bare: Callable[..., list[str]]
) -> None:
    expected = run_bare("train.py", "--steps", "60", "--table", "200")
    node.start(device="stub:1x512MiB")
    job = start(node, "moved", TRAIN, "--steps", "60", "--table", "200", "--pause", "0.05", memory="400MiB")
    for step in (4, 12):
        node.wait_steps("moved", step)
        done = node.carpool("suspend", "--json", "moved")
        assert done.code == 0, done.err
        parked = json.loads(done.out)
        assert (parked["state"], parked["move_trouble"]) == ("parked", "")
        assert parked["parked_bytes"] >= 200 * MIB
        assert held_on_card(node, "moved") <= 4 * MIB
        other = start(node, "other", TRAIN, "--steps", "3", "--table", "350", memory="450MiB").wait()
        assert other.code == 0, other.err
        assert node.state("moved") == "parked"
        assert node.carpool("resume", "moved").code == 0
    assert losses(job) == expected


def test_jobs_that_do_not_fit_together_rotate_and_their_numbers_stay(
    node: Node, run_bare: Callable[..., list[str]]
) -> None:
    words = ["--steps", "120", "--table", "200", "--pause", "0.05"]
    expected = run_bare("train.py", *words[:4])
    node.start(device="stub:1x400MiB", quantum="50ms")
    jobs = [start(node, name, TRAIN, *words, memory="300MiB") for name in ("one", "two")]
    for job in jobs:
        assert losses(job) == expected
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
    assert first.wait().lines + losses(second) == expected
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
    spans = [[tuple(map(int, line.split())) for line in losses(job)] for job in jobs]
    first, second = spans
    assert first and second
    overlaps = [(a, b) for a in first for b in second if a[0] < b[1] and b[0] < a[1]]
    assert overlaps == []
