"""What the owner of a GPU wants to know first: the same tests on the stand-in (`make test-torch-cuda`) and on a real
card (`pytest -m gpu`)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.wire import page as wire
from tests.e2e.node import Node, kill, wait_until
from tests.native.gpu import OUT_OF_MEMORY
from tests.torch_cuda.card import Card, own_gpu, reason_without_gpu, stand_in
from tests.torch_cuda.conftest import PROGRAMS, TRAIN, lines_of, start

pytestmark = pytest.mark.timeout(400)

GIB = 1 << 30
MIB = 1 << 20
DETERMINISTIC = str(PROGRAMS / "deterministic.py")
DRIVER = str(PROGRAMS / "driver.py")
GREEDY = str(PROGRAMS / "greedy.py")
NEEDS = str(PROGRAMS / "needs.py")
GPT = str(Path(__file__).parents[2] / "examples" / "train_gpt.py")
SMALL = ["--batch", "2", "--context", "16", "--width", "48", "--layers", "1"]  # what the stand-in multiplies quickly
ENDLESS = ["--steps", "1000000"]
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(reason_without_gpu()), reason=reason_without_gpu())]


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=ON_GPU)])
def card(request: pytest.FixtureRequest, tmp_path: Path) -> Card:
    if request.param == "gpu":
        return own_gpu()
    return stand_in(request.getfixturevalue("built"), request.getfixturevalue("settings"), tmp_path)


@pytest.fixture
def node(card: Card) -> Iterator[Node]:
    made = Node()
    made.use_whole_torch()
    made.environment |= card.environment
    yield made
    made.close()


def gpt(card: Card) -> list[str]:
    """The example as it is, or as small as the stand-in needs it."""
    return [GPT] if card.has_arithmetic else [GPT, *SMALL]


@pytest.mark.parametrize("allocator", ["backend:native", "backend:cudaMallocAsync"])
def test_needs_are_what_torchs_allocator_says_at_the_boundaries(card: Card, node: Node, allocator: str) -> None:
    node.environment["PYTORCH_ALLOC_CONF"] = allocator
    node.start(device=card.device)
    said = json.loads(lines_of(start(node, "needs", NEEDS))[-1])
    measured = node.journal("NeedsMeasured")[0]["needs"]
    assert measured["persistent_bytes"] == said["held_bytes"]
    assert measured["persistent_bytes"] + measured["ephemeral_bytes"] == said["peak_bytes"]
    assert 0 <= said["left_bytes"] - said["held_bytes"] <= card.aside_bytes_max, "when the cache was given back"
    assert 4 * 8 * MIB <= said["held_bytes"] <= 2 * 20 * MIB, "weights, gradients and two of the optimizer's"
    assert 48 * MIB <= measured["ephemeral_bytes"] < 96 * MIB
    assert node.job("needs")["steps"] == 6


@pytest.mark.parametrize("kind", ["linear", "gpt"])
def test_two_programs_share_the_card_and_print_what_each_prints_alone(card: Card, node: Node, kind: str) -> None:
    program = [DETERMINISTIC, *(gpt(card) if kind == "gpt" else [TRAIN, "--pause", "0.003"]), "--steps", "100"]
    expected = card.alone(*program)
    first_lines = card.alone(DETERMINISTIC, TRAIN, "--steps", "100")[:100]
    node.start(device=card.device, quantum="20ms")
    companion = start(node, "companion", DETERMINISTIC, TRAIN, *ENDLESS)
    companion.wait_line("step 3 ")
    with contextlib.closing(node.page("companion")) as shared:
        flags = [shared.words[wire.slot_base(slot) + wire.S_FLAGS] for slot in range(wire.SLOTS)]
    assert any(word & wire.FLAG_METERED for word in flags), "the library counts this program's bytes"
    assert not any(word & wire.FLAG_PACED for word in flags), "only the agent takes its turns"
    lines = lines_of(start(node, "beside", *program))
    assert len(lines) == len(expected)
    if card.has_arithmetic or kind == "linear":
        assert lines == expected
    assert node.job("beside")["steps"] == 100, "a wait for the device is no step of a torch program"
    assert min(node.turns("companion"), node.turns("beside")) >= 3
    companion.wait_lines(100)
    assert companion.lines[:100] == first_lines


def test_kill_9_of_one_leaves_the_other_its_numbers_and_the_daemon_right_books(card: Card, node: Node) -> None:
    program = [DETERMINISTIC, TRAIN, "--steps", "200"]
    expected = card.alone(*program)
    node.start(device=card.device, quantum="20ms")
    doomed = start(node, "doomed", DETERMINISTIC, TRAIN, *ENDLESS, "--table", "400")
    doomed.wait_line("step 3 ")
    neighbour = start(node, "neighbour", *program, "--pause", "0.05")
    neighbour.wait_line("step 3 ")
    used_bytes = card.used_bytes(node)
    kill(node.program_pid("doomed"))
    assert doomed.wait().code == 137
    assert node.wait_state("doomed", "failed")["promised_bytes"] == 0
    picture = node.ps(ended=False)
    (device,), (left,) = picture["devices"], picture["jobs"]
    assert (left["name"], device["promised_bytes"]) == ("neighbour", left["promised_bytes"])
    wait_until(lambda: card.used_bytes(node) <= used_bytes - 400 * MIB, "the card has its bytes back")
    assert lines_of(neighbour) == expected
    wait_until(lambda: not node.ps(ended=False)["jobs"], "the neighbour left the books")
    (device,) = node.status()["devices"]
    assert device["free_bytes"] == device["capacity_bytes"]


def test_beyond_the_cap_torch_raises_its_own_error_in_that_program_alone(card: Card, node: Node) -> None:
    node.start(device=card.device)
    neighbour = start(node, "neighbour", TRAIN, *ENDLESS, "--table", "700", "--pause", "0.01")
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
    assert node.job("neighbour")["live_bytes"] > 700 * MIB
    assert "carpool" not in neighbour.err


def test_a_suspended_job_leaves_the_card_and_comes_back_with_the_same_bytes(card: Card, node: Node) -> None:
    program = [DETERMINISTIC, TRAIN, "--steps", "60", "--table", "200"]
    expected = card.alone(*program)
    node.environment["CARPOOL_STUB"] = "1x512MiB"  # no room for both below; a real card is as large as it is
    node.start(device=card.device)
    job = start(node, "moved", *program, "--pause", "0.05", memory="400MiB")
    for step in (4, 12):
        node.wait_steps("moved", step)
        used_bytes = card.used_bytes(node)
        done = node.carpool("suspend", "--json", "moved")
        assert done.code == 0, done.err
        parked = json.loads(done.out)
        assert (parked["state"], parked["move_trouble"]) == ("parked", "")
        assert parked["parked_bytes"] >= 200 * MIB
        assert card.used_bytes(node) <= used_bytes - 200 * MIB
        other = start(node, "other", TRAIN, "--steps", "3", "--table", "350", memory="450MiB").wait()
        assert other.code == 0, other.err
        assert node.state("moved") == "parked"
        assert node.carpool("resume", "moved").code == 0
    assert lines_of(job) == expected


def test_a_program_of_the_driver_interface_is_capped(card: Card, node: Node) -> None:
    uncapped = json.loads(card.alone(DRIVER)[-1])
    assert (uncapped["held"], uncapped["code"]) == (GIB, 0)
    node.start(device=card.device)
    capped = json.loads(lines_of(start(node, "driver", DRIVER, memory="512MiB"))[-1])
    assert capped == {"total": 512 * MIB, "held": 512 * MIB, "code": OUT_OF_MEMORY}


def test_no_promised_limit_of_the_card_can_be_broken(card: Card, node: Node) -> None:
    done = node.carpool("verify", "--json", "--device", card.attacked, seconds=300)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    tried = {each["attack"] for each in found["attacks"] if each["verdict"] == "held"}
    assert found["broken"] == [] and {"plain memory", "child process", "kill -9 while holding memory"} <= tried
