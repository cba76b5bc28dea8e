"""Storages: whatever windows there are, exactly what is chosen leaves, and it comes back bit for bit (K3)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from carpool.agent.parking.host_buffers import Moved
from carpool.agent.parking.storages import Storages

DTYPES = (torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.complex64)
WINDOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all of it": lambda base: base.detach(),
    "turned": lambda base: base.detach().t(),
    "a part": lambda base: base.detach()[1:],
    "every other": lambda base: base.detach()[:, ::2],
    "bytes": lambda base: base.detach().reshape(-1).view(torch.uint8),
}
LIMIT_BYTES = 1 << 40


class PlainBuffer:
    """Bytes on the heap, copied by this thread; fails when it is told to."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.fails = ""

    def _stumble(self, where: str) -> None:
        if self.fails == where:
            raise OSError(f"{where} failed")

    def reserve(self, count: int) -> None:
        self._stumble("reserve")
        self.data = bytearray(count)

    def write(self, moves: Sequence[Moved]) -> None:
        for moved in moves:
            self.data[moved.offset : moved.offset + moved.count] = bytes_of(moved.storage)
        self._stumble("write")

    def read(self, moves: Sequence[Moved]) -> None:
        self._stumble("read")
        for moved in moves:
            part = bytes(self.data[moved.offset : moved.offset + moved.count])
            ctypes.memmove(moved.storage.data_ptr(), part, moved.count)

    def clear(self) -> None:
        self.data = bytearray()


@dataclass(frozen=True)
class Wanted:
    """A storage of the program, the windows on it, and how it is chosen, if it is."""

    dtype: int
    rows: int
    columns: int
    windows: list[str]
    chosen_as: str


wanted = st.builds(
    Wanted,
    dtype=st.integers(0, len(DTYPES) - 1),
    rows=st.integers(1, 20),
    columns=st.integers(0, 300),
    windows=st.lists(st.sampled_from(sorted(WINDOWS)), max_size=3),
    chosen_as=st.sampled_from(
        ["", "", "tensor", "window", "parameter", "buffer", "gradient", "tensor and parameter"]
    ),
)


@dataclass
class Made:
    base: torch.Tensor
    windows: list[torch.Tensor]
    is_chosen: bool

    def look(self) -> list[object]:
        each = [self.base, *self.windows]
        shapes = [(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor._version) for tensor in each]
        storages = {tensor.untyped_storage()._cdata for tensor in each}
        return [bytes_of(self.base.untyped_storage()), shapes, storages]


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def make_one(row: Wanted, generator: torch.Generator) -> Made:
    dtype = DTYPES[row.dtype]
    count = row.rows * row.columns * dtype.itemsize
    random = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    base = random.view(dtype).view(row.rows, row.columns) if count else torch.empty(row.rows, 0, dtype=dtype)
    return Made(base, [WINDOWS[name](base) for name in row.windows], bool(row.chosen_as))


def choose(one: Made, chosen_as: str) -> torch.Tensor | nn.Module:
    """What stands for this storage among those that are chosen."""
    module = nn.Module()
    match chosen_as:
        case "gradient" if one.base.is_floating_point():
            module.weight = nn.Parameter(torch.zeros_like(one.base))
            module.weight.grad = one.base
        case "buffer":
            module.register_buffer("state", one.base)
        case "parameter":
            module.weight = nn.Parameter(one.base, requires_grad=False)
        case _:
            return one.windows[0] if chosen_as == "window" and one.windows else one.base
    return nn.Sequential(module)


def make(rows: list[Wanted]) -> tuple[list[Made], list[torch.Tensor | nn.Module]]:
    """The tensors of a program, and what of them is chosen."""
    generator = torch.Generator().manual_seed(5)
    made = [make_one(row, generator) for row in rows]
    chosen = [choose(one, row.chosen_as) for one, row in zip(made, rows, strict=True) if row.chosen_as]
    return made, [*chosen, nn.Module()]


def other_bytes(holders: list[torch.Tensor | nn.Module]) -> int:
    """Of the parameters whose gradients were chosen."""
    modules = [each for each in holders if isinstance(each, nn.Module)]
    parameters = [each for module in modules for each in module.parameters() if each.grad is not None]
    return sum(each.untyped_storage().nbytes() for each in parameters)


@given(st.lists(wanted, min_size=1, max_size=6))
def test_exactly_what_is_chosen_leaves_and_comes_back_bit_for_bit(rows: list[Wanted]) -> None:
    made, holders = make(rows)
    before, buffer = [each.look() for each in made], PlainBuffer()
    storages = Storages.of(*holders, torch=torch, kind="cpu", buffer=buffer)
    sizes = [each.base.untyped_storage().nbytes() for each in made]
    expected = other_bytes(holders) + sum(size for size, each in zip(sizes, made, strict=True) if each.is_chosen)
    for _ in range(2):
        left = storages.move_out(LIMIT_BYTES)
        away = [each.base.untyped_storage().nbytes() == 0 for each in made]
        looks = [each.look() for each in made if not each.is_chosen]
        storages.move_in()  # before anything fails: to show a tensor that is away would crash
        assert left == expected
        assert away == [each.is_chosen or not size for each, size in zip(made, sizes, strict=True)]
        assert looks == [look for look, each in zip(before, made, strict=True) if not each.is_chosen]
        assert [each.look() for each in made] == before
        assert (storages.away_bytes, bytes(buffer.data)) == (0, b"")


@pytest.mark.parametrize("where", ["reserve", "write"])
@given(rows=st.lists(wanted, min_size=1, max_size=4))
def test_k3_a_move_out_that_fails_changes_nothing(where: str, rows: list[Wanted]) -> None:
    made, holders = make(rows)
    before, buffer = [each.look() for each in made], PlainBuffer()
    storages = Storages.of(*holders, torch=torch, kind="cpu", buffer=buffer)
    buffer.fails = where
    with pytest.raises(OSError, match="failed"):
        storages.move_out(LIMIT_BYTES)
    assert [each.look() for each in made] == before
    assert storages.away_bytes == 0


@given(rows=st.lists(wanted, min_size=1, max_size=4))
def test_k3_a_return_that_fails_can_be_made_again(rows: list[Wanted]) -> None:
    made, holders = make(rows)
    before, buffer = [each.look() for each in made], PlainBuffer()
    storages = Storages.of(*holders, torch=torch, kind="cpu", buffer=buffer)
    storages.move_out(LIMIT_BYTES)
    buffer.fails = "read"
    with pytest.raises(OSError, match="read failed"):
        storages.move_in()
    storages.undo_move_in()
    buffer.fails = ""
    storages.move_in()
    assert [each.look() for each in made] == before
