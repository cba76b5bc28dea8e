"""Every tensor of a program has a name, and a state that was written comes back where the names lead."""

from __future__ import annotations

import gc
import os
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from carpool.agent.checkpoint import tensor_names
from carpool.agent.checkpoint.live_graphs import NodeNumbers
from carpool.agent.checkpoint.snapshot import Snapshot
from carpool.agent.parking.host_buffers import DiskBuffer
from carpool.agent.parking.storages import Storages
from carpool.errors import RefusedError
from carpool.wire.checkpoint import CheckpointFile, CheckpointWriter

TESTS = str(Path(__file__).parents[2]) + os.sep


@pytest.fixture(autouse=True)
def only_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of other tests are no part of the program: all that is in them would be searched."""
    files = [str(getattr(module, "__file__", None)) for module in list(sys.modules.values())]
    others = [file for file in files if file.startswith(TESTS) and file != __file__]
    monkeypatch.setattr(tensor_names, "_LIBRARIES", (*tensor_names._LIBRARIES, *others))


@pytest.fixture
def before() -> set[int]:
    """The tensors of other tests, and of torch itself."""
    return {id(each) for each in gc.get_objects() if issubclass(type(each), torch.Tensor)}


class Program:
    """A model with tied weights, an optimizer with state, a view, a closure and a generator of its own."""

    def __init__(self, seed: int, *, rounds: int = 2) -> None:
        torch.manual_seed(seed)
        random.seed(7)  # Python's and numpy's must be the same without help
        numpy.random.seed(7)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.flat = torch.randn(64)
        self.window = self.flat[8:24].view(4, 4).t()
        self.generator = torch.Generator().manual_seed(seed)
        mean = torch.randn(3)
        self.read: Callable[[], float] = lambda: float(mean.sum())
        self.rounds = rounds
        for _ in range(rounds):
            self.optimizer.zero_grad()
            loss: torch.Tensor = self.model(torch.randn(8, 4, generator=self.generator)).square().mean()
            loss.backward()
            self.optimizer.step()

    def numbers(self) -> list[float]:
        after = torch.randn(2, generator=self.generator).tolist() + torch.rand(2).tolist()
        held = [*self.model.state_dict().values(), self.window, *(each.grad for each in self.model.parameters())]
        moments = [each["exp_avg"] for each in self.optimizer.state.values()]
        return [*after, self.read(), *(float(each.double().sum()) for each in (*held, *moments) if each is not None)]


HELD: dict[str, Program] = {}  # a program's variable, to which both states give the same name


@pytest.fixture
def saved(before: set[int], tmp_path: Path) -> tuple[Path, str, list[float]]:
    """The state of one program, its hash, and the numbers that follow from it; the program is gone."""
    HELD["program"] = Program(1)
    taken, writer = Snapshot(torch, before, None), CheckpointWriter(tmp_path / "file")
    assert taken.obstacle() == ""
    writer.finish({"state": taken.write(writer)})
    digest, numbers = taken.digest(), HELD["program"].numbers()
    del taken, HELD["program"]
    gc.collect()
    return tmp_path / "file", digest, numbers


def test_a_state_comes_back_into_another_program_of_the_same_shape(
    before: set[int], saved: tuple[Path, str, list[float]]
) -> None:
    path, digest, numbers = saved
    program = HELD["program"] = Program(2)
    assert Snapshot(torch, before, None).digest() != digest
    with CheckpointFile(path) as file:
        Snapshot(torch, before, None).put_back(file)
    assert Snapshot(torch, before, None).digest() == digest
    assert program.numbers() == numbers
    assert program.model[2].weight is program.model[0].weight


def test_what_was_written_and_hashed_can_still_leave_the_device(before: set[int], tmp_path: Path) -> None:
    held = {"plain": torch.randn(5000), "turned": torch.randn(60, 90).t(), "half": torch.randn(5000).half()}
    copies = {name: tensor.tolist() for name, tensor in held.items()}
    taken, writer = Snapshot(torch, before, sys._getframe()), CheckpointWriter(tmp_path / "file")
    writer.finish({"state": taken.write(writer), "digest": taken.digest()})
    storages = Storages(torch, "cpu", DiskBuffer(tmp_path))
    storages.move_out(1 << 40)
    sizes = {name: tensor.untyped_storage().nbytes() for name, tensor in held.items()}
    storages.move_in()
    assert sizes == dict.fromkeys(held, 0)
    assert {name: tensor.tolist() for name, tensor in held.items()} == copies


def test_other_numbers_and_other_tensors_are_refused_by_name(
    before: set[int], saved: tuple[Path, str, list[float]]
) -> None:
    program = HELD["program"] = Program(2, rounds=3)
    with (
        CheckpointFile(saved[0]) as file,
        pytest.raises(RefusedError, match=r"rounds is 3 after the replay and was 2"),
    ):
        Snapshot(torch, before, None).put_back(file)
    program.rounds, program.flat = 2, torch.randn(65)
    with (
        CheckpointFile(saved[0]) as file,
        pytest.raises(RefusedError, match=r"shape \(65,\) here and .*\(64,\) there"),
    ):
        Snapshot(torch, before, None).put_back(file)


def test_a_snapshot_keeps_nothing_alive_that_the_program_lets_go(before: set[int]) -> None:
    def batches() -> Iterator[weakref.ref[torch.Tensor]]:
        batch = torch.ones(3)
        yield weakref.ref(batch)
        del batch
        yield weakref.ref(torch.ones(1))

    def step() -> None:
        tensor = torch.ones(3)
        seen = weakref.ref(tensor)
        assert Snapshot(torch, before, sys._getframe()).obstacle() == ""
        del tensor
        assert seen() is None

    running = batches()
    inside = next(running)
    step()
    next(running)
    assert inside() is None


def test_the_variables_a_program_asked_for_stay_its_own(before: set[int]) -> None:
    tensor = torch.ones(3)
    variables = locals()
    assert Snapshot(torch, before, sys._getframe()).obstacle() == ""
    assert variables["tensor"] is tensor


def test_a_tensor_that_no_variable_leads_to_is_an_obstacle(before: set[int]) -> None:
    hidden = iter([torch.ones(3)])  # a running iterator shows nobody what it holds
    assert (
        "1 tensors that none of its variables leads to, one of shape (3,)"
        in Snapshot(torch, before, sys._getframe()).obstacle()
    )
    next(hidden)


class Waiting:
    """A loss that waits for its backward pass; what is kept for that is in none of its variables."""

    def __init__(self, seed: int, *, power: int = 2) -> None:
        torch.manual_seed(seed)
        random.seed(7)
        numpy.random.seed(7)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.loss = self.model(torch.randn(8, 4)).pow(power).mean()

    def gradients(self) -> list[list[float]]:
        self.loss.backward()
        return [each.grad.flatten().tolist() for each in self.model.parameters() if each.grad is not None]


WAITING: dict[str, Waiting] = {}


def test_what_waits_for_a_backward_pass_comes_back_and_gives_the_same_gradients(
    before: set[int], tmp_path: Path
) -> None:
    WAITING["program"] = Waiting(1)
    taken, writer = Snapshot(torch, before, None), CheckpointWriter(tmp_path / "file")
    taken.hold_graph(taken.live_roots(NodeNumbers()))
    writer.finish({"state": taken.write(writer)})
    digest, gradients = taken.digest(), WAITING["program"].gradients()
    del taken, WAITING["program"]
    gc.collect()
    with CheckpointFile(tmp_path / "file") as file:
        graph = file.contents["state"]["graph"]
        assert graph["roots"]
        WAITING["program"] = Waiting(2, power=3)
        other = Snapshot(torch, before, None)
        other.hold_graph(graph["roots"])
        with pytest.raises(RefusedError, match="the 11 operations that wait for .* are not the 11 that did before"):
            other.compare_graph(file.contents["state"])
        WAITING["program"] = Waiting(2)
        here = Snapshot(torch, before, None)
        here.hold_graph(graph["roots"])
        here.compare_graph(file.contents["state"])
        here.put_back(file)
    assert here.digest() == digest
    assert WAITING.pop("program").gradients() == gradients


def test_one_number_that_was_spread_has_a_hash(before: set[int]) -> None:
    spread = torch.arange(3)[1:2].expand(1, 1)[0].as_strided((1,), (0,))
    digest = Snapshot(torch, before, sys._getframe()).digest()
    spread += 1
    assert Snapshot(torch, before, sys._getframe()).digest() != digest


def test_a_tensor_that_only_an_array_of_numpys_leads_to_has_a_name(before: set[int]) -> None:
    window = torch.ones(3).numpy()
    rows = numpy.array([(torch.ones(2), 1.0), (torch.ones(4), 2.0)], dtype=object)
    assert Snapshot(torch, before, sys._getframe()).obstacle() == ""
    assert (window.sum(), len(rows)) == (3.0, 2)


def test_an_array_that_shows_weights_is_noticed(before: set[int]) -> None:
    model = nn.Linear(3, 3)
    copied = model.weight.detach().clone().numpy()
    assert not Snapshot(torch, before, sys._getframe()).is_seen_by_numpy()
    row = model.weight.detach().numpy()[1]
    assert Snapshot(torch, before, sys._getframe()).is_seen_by_numpy()
    assert copied.shape == (3, *row.shape)
