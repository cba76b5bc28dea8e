"""What shares memory with the outside stays where it is; property: every alias has the same bytes, parked or not."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from carpool.agent import packages
from carpool.agent.parking import exports
from carpool.agent.parking.host_buffers import DiskBuffer
from carpool.agent.parking.storages import Storages

COUNT = 2048  # of float32: large enough to be worth a move
LIMIT_BYTES = 1 << 40
Read = Callable[[], bytes]


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """As in a job, where it is done right after the import of torch; other tests here have torch as it was."""
    owners = (torch, torch._C, torch.utils.dlpack, torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
    before = [(owner, dict(vars(owner))) for owner in owners]
    exports.install(torch)
    yield
    for owner, names in before:
        for name in vars(owner).keys() - names.keys():
            delattr(owner, name)
        for name in [name for name, value in names.items() if vars(owner).get(name) is not value]:
            setattr(owner, name, names[name])


@pytest.fixture
def storages(tmp_path: Path) -> Iterator[Storages]:
    made = Storages(torch, "cpu", DiskBuffer(tmp_path))
    yield made
    if made.away_bytes:
        made.move_in()


def by_array(base: torch.Tensor) -> Read:
    array = np.from_dlpack(base)
    return array.tobytes


def by_tensor(base: torch.Tensor) -> Read:
    other = torch.from_dlpack(base)
    return lambda: other.clone().numpy().tobytes()


def by_capsule(base: torch.Tensor) -> Read:
    other = torch.from_dlpack(torch.utils.dlpack.to_dlpack(base))
    return lambda: other.clone().numpy().tobytes()


def by_address(base: torch.Tensor) -> Read:
    address = base.data_ptr()
    return lambda: ctypes.string_at(address, COUNT * 4)


def by_tree_of_addresses(base: torch.Tensor) -> Read:
    (address,) = tree_map(torch.Tensor.data_ptr, [base])
    return lambda: ctypes.string_at(address, COUNT * 4)


def by_decorated_address(base: torch.Tensor) -> Read:
    address = torch.no_grad()(torch.Tensor.data_ptr)(base)
    return lambda: ctypes.string_at(address, COUNT * 4)


def by_storage_address(base: torch.Tensor) -> Read:
    address = base.untyped_storage().data_ptr() + 4 * int(base.storage_offset())
    return lambda: ctypes.string_at(address, COUNT * 4)


def by_buffer_on_address(base: torch.Tensor) -> Read:
    other = torch.frombuffer((ctypes.c_char * (4 * COUNT)).from_address(base.data_ptr()), dtype=torch.float32)
    return lambda: other.clone().numpy().tobytes()


def by_numpy(base: torch.Tensor) -> Read:
    array = base.numpy()
    return lambda: array.tobytes()


def by_array_protocol(base: torch.Tensor) -> Read:
    array = np.asarray(base)
    return lambda: array.tobytes()


def by_memory_view(base: torch.Tensor) -> Read:
    view = memoryview(base.numpy())
    return view.tobytes


def by_shared_memory(base: torch.Tensor) -> Read:
    base.share_memory_()
    return lambda: base.clone().numpy().tobytes()


def by_view(base: torch.Tensor) -> Read:
    view = base.view(-1, 2).t()
    return lambda: view.t().clone().numpy().tobytes()


def by_detached(base: torch.Tensor) -> Read:
    other = base.detach()
    return lambda: other.clone().numpy().tobytes()


WAYS = {each.__name__: each for each in (by_array, by_tensor, by_capsule, by_address, by_storage_address)}
WAYS |= {each.__name__: each for each in (by_buffer_on_address, by_numpy, by_array_protocol, by_memory_view)}
WAYS |= {each.__name__: each for each in (by_tree_of_addresses, by_decorated_address)}
WAYS |= {each.__name__: each for each in (by_shared_memory, by_view, by_detached)}
OUTSIDE = sorted(WAYS.keys() - {"by_view", "by_detached"})


def is_among(found: list[Any], tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage()._cdata in {storage._cdata for storage in found}


@pytest.mark.parametrize("way", OUTSIDE)
def test_a_tensor_whose_memory_is_known_outside_stays(way: str, storages: Storages) -> None:
    base, beside = torch.randn(COUNT), torch.randn(COUNT)
    read = WAYS[way](base)
    found = storages.find()
    assert (is_among(found, base), is_among(found, beside)) == (False, True)
    assert storages.move_out(LIMIT_BYTES) >= 4 * COUNT
    seen = read()
    storages.move_in()
    assert seen == base.clone().numpy().tobytes()


@pytest.mark.parametrize("make", ["from_numpy", "frombuffer", "from_file", "from_dlpack"])
def test_memory_that_torch_did_not_allocate_stays(make: str, storages: Storages, tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(bytes(4 * COUNT))
    array = np.zeros(COUNT, dtype=np.float32)
    made = {
        "from_numpy": lambda: torch.from_numpy(array),
        "frombuffer": lambda: torch.frombuffer(bytearray(4 * COUNT), dtype=torch.float32),
        "from_file": lambda: torch.from_file(str(tmp_path / "numbers"), size=COUNT),
        "from_dlpack": lambda: torch.from_dlpack(array),
    }[make]()
    assert not is_among(storages.find(), made)


def test_what_stays_is_told_with_the_line_that_gave_it_away(storages: Storages) -> None:
    mine = torch.randn(COUNT)
    array = np.from_dlpack(mine)
    words = storages.kept_words()
    del array
    assert "of its tensors stays there because the program gave it away (" in words
    assert "test_exports.py:" in words


def test_an_address_that_torch_asks_for_its_own_work_is_none_of_ours(storages: Storages, tmp_path: Path) -> None:
    base = torch.randn(COUNT)
    torch.save({"one": base, "two": base}, tmp_path / "saved")
    torch.nn.LSTM(8, 8).flatten_parameters()
    assert is_among(storages.find(), base)


def test_an_address_that_torch_asks_for_in_what_it_hands_to_a_tree_is_none_of_ours(storages: Storages) -> None:
    base = torch.randn(COUNT)
    ask = eval("lambda each: each.data_ptr()", {"__name__": "torch._functorch.of_torch"})
    assert tree_map(ask, [base]) == [torch.Tensor.data_ptr.__wrapped__(base)]
    assert is_among(storages.find(), base)


@pytest.mark.parametrize(("is_there", "stays"), [(False, True), (True, False)])
def test_a_module_of_the_programs_own_is_not_taken_for_a_package_that_only_compares(
    is_there: bool, stays: bool, storages: Storages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accelerate.py").write_text("def ask(tensor): return tensor.data_ptr()")
    if is_there:
        (tmp_path / "accelerate-1.0.dist-info").mkdir()
        (tmp_path / "accelerate-1.0.dist-info" / "METADATA").write_text("Name: accelerate\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    packages.is_installed.cache_clear()
    base = torch.randn(COUNT)
    importlib.import_module("accelerate").ask(base)
    assert is_among(storages.find(), base) is not stays
    monkeypatch.delitem(sys.modules, "accelerate")
    packages.is_installed.cache_clear()


def test_storages_that_are_gone_are_forgotten() -> None:
    noted = exports.Exports()
    for _ in range(3 * exports.SWEEP_MIN):
        noted.note(torch.zeros(1), "DLPack", torch)
    gc.collect()
    noted.note(torch.zeros(1), "DLPack", torch)
    assert len(noted._noted) <= exports.SWEEP_MIN


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from(sorted(WAYS)), max_size=3), min_size=1, max_size=5),
    steps=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6),
)
def test_every_alias_has_the_same_bytes_alone_and_parked(
    rows: list[list[str]], steps: list[tuple[int, bool]]
) -> None:
    """A program of random exports, aliases and steps, twice: once undisturbed, once parked between its steps."""
    with tempfile.TemporaryDirectory() as directory:
        alone = play(rows, steps, None)
        parked = play(rows, steps, Storages(torch, "cpu", DiskBuffer(Path(directory))))
    assert alone == parked


def play(rows: list[list[str]], steps: list[tuple[int, bool]], storages: Storages | None) -> list[list[bytes]]:
    """What is seen through every alias after every step; it is parked before the steps that say so."""
    generator = torch.Generator().manual_seed(3)
    bases = [torch.randn(COUNT, generator=generator) for _ in rows]
    # To share memory moves it, also in a program that runs alone: whoever has the address by then has lost it.
    ordered = [sorted(ways, key=lambda way: way != "by_shared_memory") for ways in rows]
    reads = [[WAYS[way](base) for way in ways] for base, ways in zip(bases, ordered, strict=True)]
    seen = []
    for which, is_parked in steps:
        if storages is not None and is_parked:
            storages.move_out(LIMIT_BYTES)
            churn = [torch.full((COUNT,), 7.0) for _ in range(8)]  # takes the places of those that left
            storages.move_in()
            del churn
        base = bases[which % len(bases)]
        base.mul_(3).add_(1)
        own = [each.clone().numpy().tobytes() for each in bases]
        seen.append([*own, *(read() for row in reads for read in row)])
    return seen
