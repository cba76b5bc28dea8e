"""Storages leave and come back: the same objects, the same bytes, each once; what may not be moved stays."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from carpool.agent.cuda import LOCKED_BYTES, PinnedBuffer
from carpool.agent.parking import exports, find_and_copy, host_buffers, memory_pages
from carpool.agent.parking.host_buffers import DiskBuffer, HostBuffer, Piece, TmpfsBuffer
from carpool.agent.parking.storages import Storages
from carpool.agent.turns import torch_hooks
from carpool.errors import UsageError

COUNT = 5000
Kept = tuple[Storages, torch.Tensor, int]  # and a descriptor
MEMORY = Path("/dev/shm")


@pytest.fixture(params=["disk", "memory"])
def buffer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostBuffer]:
    if request.param == "disk":
        yield DiskBuffer(tmp_path)
        return
    if not MEMORY.is_dir():
        pytest.skip("no tmpfs to put a buffer into")
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        made = host_buffers.host_buffer_in(Path(directory))
        assert isinstance(made, TmpfsBuffer)
        yield made
        made._drop()


@pytest.fixture
def storages(buffer: HostBuffer) -> Iterator[Storages]:
    made = Storages(torch, "cpu", buffer)
    yield made
    if made.away_bytes:
        made.move_in()


def moved(storages: Storages, tensor: torch.Tensor) -> bool:
    """Whether this tensor's storage is among those that would leave."""
    found = {storage._cdata for storage in storages.find()}
    return tensor.untyped_storage()._cdata in found


def test_every_window_on_a_storage_is_there_again_with_its_bytes(storages: Storages) -> None:
    whole = torch.randn(COUNT)
    part, turned, same = whole[100:200], whole.view(50, 100).t(), torch.nn.Parameter(whole)
    expected = [each.detach().clone() for each in (whole, part, turned)]
    versions = [each._version for each in (whole, part, turned, same)]
    copies = [each.tolist() for each in expected]
    identity = whole.untyped_storage()._cdata
    out = storages.move_out(1 << 40)
    assert out >= whole.nbytes
    assert whole.untyped_storage().nbytes() == 0
    storages.move_in()
    assert whole.untyped_storage()._cdata == identity == same.untyped_storage()._cdata
    assert [each.tolist() for each in (whole, part, turned)] == copies
    assert [each._version for each in (whole, part, turned, same)] == versions


def test_a_gradient_nobody_has_read_is_found(storages: Storages) -> None:
    weight = torch.nn.Parameter(torch.randn(COUNT))
    (weight * 2).sum().backward()
    storages.move_out(1 << 40)
    assert weight.grad is not None
    assert weight.grad.untyped_storage().nbytes() == 0
    storages.move_in()
    assert weight.grad.tolist() == [2.0] * COUNT


def test_a_chosen_model_leaves_alone_and_parking_the_rest_meanwhile_does_not_touch_it(
    storages: Storages, tmp_path: Path
) -> None:
    model, other = torch.nn.Linear(90, 50), torch.nn.Linear(90, 50)
    weight, kept = model.weight.tolist(), other.weight.tolist()
    chosen = Storages.of(model, torch=torch, kind="cpu", buffer=DiskBuffer(tmp_path))
    size = sum(each.nbytes for each in model.parameters())
    assert chosen.move_out(size) == size, "the bias too, though it is small"
    assert [each.untyped_storage().nbytes() for each in model.parameters()] == [0, 0]
    assert other.weight.tolist() == kept
    storages.move_out(1 << 40)
    assert other.weight.untyped_storage().nbytes() == 0
    storages.move_in()
    assert other.weight.tolist() == kept
    assert model.weight.untyped_storage().nbytes() == 0
    with pytest.raises(UsageError, match=f"{size} bytes of these storages are away already"):
        chosen.move_out(size)
    chosen.move_in()
    assert model.weight.tolist() == weight


def test_of_what_is_chosen_the_bytes_that_cannot_leave_are_known(tmp_path: Path) -> None:
    seen, free = torch.randn(COUNT), torch.randn(COUNT)
    array = seen.numpy()
    chosen = Storages.of(seen, free, torch=torch, kind="cpu", buffer=DiskBuffer(tmp_path))
    assert (chosen.staying_bytes(), chosen.move_out(1 << 40)) == (seen.nbytes, free.nbytes)
    assert array.sum() == pytest.approx(seen.sum().item(), abs=1e-2)
    chosen.move_in()


def test_only_tensors_and_modules_have_storages(tmp_path: Path) -> None:
    for wrong, why in (([[torch.ones(5)]], "not of a list"), ([], "name the tensors or modules")):
        with pytest.raises(UsageError, match=why):
            Storages.of(*wrong, torch=torch, kind="cpu", buffer=DiskBuffer(tmp_path))


def test_what_numpy_or_another_process_looks_at_stays(storages: Storages) -> None:
    seen, shared, small = torch.randn(COUNT), torch.randn(COUNT), torch.randn(3)
    array = seen.numpy()
    shared.share_memory_()
    assert not moved(storages, seen)
    assert not moved(storages, shared)
    assert not moved(storages, small)
    assert array.sum() == pytest.approx(seen.sum().item(), abs=1e-2)


def test_k3_a_buffer_that_refuses_leaves_everything_where_it_is(storages: Storages) -> None:
    kept = torch.arange(COUNT)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(OSError):
            storages.move_out(1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert storages.away_bytes == 0
    assert kept.tolist() == list(range(COUNT))
    with pytest.raises(MemoryError, match="were reserved on the host"):
        storages.move_out(10)
    assert kept.tolist() == list(range(COUNT))


def test_the_buffer_has_no_name_and_its_room_is_given_back(tmp_path: Path) -> None:
    storages = Storages(torch, "cpu", DiskBuffer(tmp_path))
    kept = torch.ones(COUNT)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        storages.move_out(1 << 40)
        assert list(tmp_path.iterdir()) == []
        storages.move_in()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert kept.sum().item() == COUNT


class LockingTorch:
    """As much of torch as a buffer of page-locked memory needs, on a host that has so many pieces."""

    uint8 = torch.uint8

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._made: list[weakref.ref[torch.Tensor]] = []
        self._C = self

    def _used(self) -> list[torch.Tensor]:
        return [tensor for each in self._made if (tensor := each()) is not None]

    def locked(self) -> list[int]:
        """The sizes of the pieces in use, and how many are kept beside them."""
        return [tensor.numel() for tensor in self._used()] + [0] * (len(self._made) - len(self._used()))

    def empty(self, size: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        if len(self._made) == self._pieces:
            raise RuntimeError("CUDA error: out of memory")
        made = torch.empty(size, dtype=dtype)
        self._made.append(weakref.ref(made))
        return made

    def _host_emptyCache(self) -> None:  # noqa: N802 - it stands in for torch's
        self._made = [each for each in self._made if each() is not None]


def test_page_locked_memory_is_taken_in_pieces_and_given_back_with_the_bytes() -> None:
    host = LockingTorch(4)
    buffer = PinnedBuffer(host)
    buffer.reserve(2 * LOCKED_BYTES + 5)
    assert host.locked() == [LOCKED_BYTES, LOCKED_BYTES, 5]
    buffer.clear()
    assert host.locked() == [], "a job that is back holds nothing that the host's budget does not count"
    buffer.reserve(4 * LOCKED_BYTES)


def test_a_host_without_room_keeps_nothing_locked_of_a_failed_reservation() -> None:
    host = LockingTorch(2)
    buffer = PinnedBuffer(host)
    with pytest.raises(MemoryError, match=f"no {3 * LOCKED_BYTES} bytes to lock"):
        buffer.reserve(3 * LOCKED_BYTES)
    assert host.locked() == []
    buffer.reserve(100)


@pytest.mark.parametrize("way", ["C", "plain"])
def test_large_and_odd_sizes_come_back_whole_again_and_again(
    storages: Storages, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of several threads, parts of several files, pages that are kept: sizes that are no multiple of any."""
    if way == "plain":
        monkeypatch.setattr(find_and_copy, "native", None)
    sizes = [
        4096,
        3 * host_buffers.PIECE_BYTES + 13,
        5000,
        host_buffers.PIECE_BYTES,
        host_buffers.PIECE_BYTES + 1,
        777_777,
    ]
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    copies = [tensor.clone().numpy().tobytes() for tensor in tensors]
    for _ in range(3):
        storages.move_out(1 << 40)
        assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
        storages.move_in()
        assert [tensor.clone().numpy().tobytes() for tensor in tensors] == copies
        tensors[1] += 1  # what is written over kept pages is not what was there
        copies[1] = tensors[1].clone().numpy().tobytes()


def test_many_small_storages_come_back_whole(storages: Storages) -> None:
    """Hundreds in one block of memory, and some that lie across two."""
    tensors = [torch.full((1024 + 16 * number,), float(number)) for number in range(700)]
    storages.move_out(1 << 40)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    storages.move_in()
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))


def test_a_block_of_memory_is_one_threads_work() -> None:
    tensors = [
        torch.empty(size, dtype=torch.uint8) for size in (5000, 9 * host_buffers.PIECE_BYTES + 5, 70_000, 8192)
    ]
    offset, moves_out = 0, []
    for tensor in tensors:
        moves_out.append(host_buffers.Moved(tensor.untyped_storage(), tensor.nbytes, offset))
        offset += tensor.nbytes
    found = host_buffers.blocks(moves_out)
    for block in found:
        assert (
            len(
                {
                    end // host_buffers.PIECE_BYTES
                    for each in block
                    for end in (each.address, each.address + each.count - 1)
                }
            )
            == 1
        )
    assert len({block[0].address // host_buffers.PIECE_BYTES for block in found}) == len(found)
    covered = sorted((piece.offset, piece.count, piece.address) for block in found for piece in block)
    whole = [(begin, count) for begin, count, _ in covered]
    assert [begin for begin, _ in whole] == [
        sum(count for _, count in whole[:number]) for number in range(len(whole))
    ]
    assert sum(count for _, count in whole) == offset
    for moved in moves_out:
        mine = [(o, a) for o, _, a in covered if moved.offset <= o < moved.offset + moved.count]
        assert all(a - moved.storage.data_ptr() == o - moved.offset for o, a in mine)


def test_a_return_without_memory_fails_and_can_be_tried_again(
    storages: Storages, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.arange(COUNT)
    storages.move_out(1 << 40)
    if not isinstance(storages._buffer, TmpfsBuffer):
        pytest.skip("a buffer on a disk asks for no pages")

    def refuse(address: int, count: int, how: int) -> None:
        raise OSError(12, "there was no page to be had")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no page"):
        patch.setattr(host_buffers, "populate", refuse)
        storages.move_in()
    storages.undo_move_in()
    assert storages.away_bytes > 0
    assert weights.untyped_storage().nbytes() == 0
    storages.move_in()
    assert weights.tolist() == list(range(COUNT))


def test_neighbours_share_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def note(address: int, count: int, how: int) -> bool:
        assert how == memory_pages.MADV_HUGEPAGE
        asked.append((address, count))
        return True

    monkeypatch.setattr(memory_pages, "advise", note)
    huge, start = memory_pages.HUGE_BYTES, 64 * memory_pages.HUGE_BYTES
    near = [(start + 64, huge), (start + huge + 128, huge // 2), (start + 3 * huge // 2 + 192, huge)]
    memory_pages.prefer_large_pages(
        [(start + 10 * huge - 1, 2 * huge), *reversed(near), (start + 20 * huge, huge // 2)]
    )
    assert asked == [(start + huge, huge), (start + 10 * huge, huge)]


def test_pages_in_memory_are_kept_only_where_there_is_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    if not MEMORY.is_dir():
        pytest.skip("no tmpfs to put a buffer into")
    buffer = TmpfsBuffer(MEMORY)
    storages, weights = Storages(torch, "cpu", buffer), torch.ones(COUNT)
    storages.move_out(1 << 40)
    storages.move_in()
    assert buffer._room >= weights.nbytes
    monkeypatch.setattr(host_buffers, "KEPT_PART", 1 << 40)
    storages.move_out(1 << 40)
    storages.move_in()
    assert buffer._room == 0
    assert weights.sum().item() == COUNT


class Functions(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Notes each call of torch that a mode can see; so does Calls, one level below."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(call))
        return call(*args, **(kwargs or {}))


class Calls(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(call))
        return call(*args, **(kwargs or {}))


class Own(torch.nn.Parameter):  # type: ignore[misc]  # torch has no types here
    """A program's own class of tensors, which notes calls too."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(call))
        return super().__torch_function__(call, types, args, kwargs or {})


def test_modes_and_tensor_classes_of_the_program_see_no_call_of_carpools(storages: Storages) -> None:
    own, weights = Own(torch.ones(COUNT)), torch.ones(COUNT, requires_grad=True)
    (own.sum() + weights.sum()).backward()
    optimizer = torch.optim.SGD([own, weights])
    Own.seen.clear()
    with Functions() as functions, Calls() as calls:
        assert torch_hooks.gradient_bytes(torch, optimizer) == 8 * COUNT
        assert len(storages.find()) >= 4
        exports.exports.note(own, "DLPack", torch)
        assert storages.kept_words()
        storages.move_out(1 << 40)
        storages.move_in()
    assert (functions.seen, calls.seen, Own.seen) == ([], [], [])


def take_number(number: int, directory: Path) -> BinaryIO:
    """A file of the program's own that gets this number, after the program closed what was there (os.closerange)."""
    os.close(number)
    mine = (directory / "mine").open("w+b", buffering=0)
    if mine.fileno() != number:
        os.dup2(mine.fileno(), number)
        mine.close()
        mine = os.fdopen(number, "w+b", buffering=0)
    mine.write(b"mine" * 4096)
    return mine


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Storages that were away once, in a buffer that keeps its pages, and the number of its descriptor."""
    if not MEMORY.is_dir():
        pytest.skip("no tmpfs to put a buffer into")
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        buffer = TmpfsBuffer(Path(directory))
        weights = torch.arange(COUNT)
        storages = Storages.of(weights, torch=torch, kind="cpu", buffer=buffer)
        storages.move_out(1 << 40)
        storages.move_in()
        (number,) = numbers_in(directory)
        yield storages, weights, number


def numbers_in(directory: str) -> list[int]:
    """The descriptors of files in this directory."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is gone
            if Path(directory) in each.readlink().parents:
                found.append(int(each.name))
    return found


def test_b7_a_file_of_the_programs_with_the_number_of_the_buffer_is_not_written_to(
    kept: Kept, tmp_path: Path
) -> None:
    storages, weights, number = kept
    with take_number(number, tmp_path) as mine:
        for _ in range(2):
            assert storages.move_out(1 << 40) == weights.nbytes
            storages.move_in()
        mine.seek(0)
        assert mine.read() == b"mine" * 4096
        assert torch.equal(weights, torch.arange(COUNT))
        storages._buffer.clear()
        cast(TmpfsBuffer, storages._buffer)._drop()
        assert os.fstat(number).st_size == 4 * 4096, "it is still open"


def test_b7_a_buffer_that_the_program_closed_is_made_anew(kept: Kept) -> None:
    storages, weights, number = kept
    os.close(number)
    assert storages.move_out(1 << 40) == weights.nbytes
    storages.move_in()
    assert torch.equal(weights, torch.arange(COUNT))


def test_b7_a_forked_child_keeps_its_file_with_the_number_of_the_buffer(kept: Kept, tmp_path: Path) -> None:
    with take_number(kept[2], tmp_path) as mine:
        child = os.fork()
        if not child:
            try:
                os.fstat(mine.fileno())
            except OSError:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_b7_a_store_that_was_closed_while_it_is_needed_reads_no_file_of_the_programs(tmp_path: Path) -> None:
    weights = torch.arange(COUNT)
    storages = Storages.of(weights, torch=torch, kind="cpu", buffer=DiskBuffer(tmp_path))
    storages.move_out(1 << 40)
    number = numbers_in(str(tmp_path))[0]
    with take_number(number, tmp_path) as mine:
        with pytest.raises(OSError, match="the program closed the store"):
            storages.move_in()
        storages._buffer.clear()
        assert os.fstat(mine.fileno()).st_size == 4 * 4096


def test_a_forked_child_does_not_hold_the_buffer(storages: Storages) -> None:
    kept = torch.ones(COUNT)
    storages.move_out(1 << 40)
    storages.move_in()
    buffer = storages._buffer
    child = os.fork()
    if not child:
        os._exit(0 if not isinstance(buffer, TmpfsBuffer) or buffer._file is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kept.sum().item() == COUNT


def test_an_error_in_any_thread_is_raised_after_all_have_ended() -> None:
    pieces = [Piece(address=0, count=1, offset=number) for number in range(200)]
    busy: set[int] = set()

    def work(piece: Piece) -> None:
        busy.add(threading.get_ident())
        if piece.offset == 7:
            raise OSError("this piece cannot be copied")
        busy.discard(threading.get_ident())

    with pytest.raises(OSError, match="this piece"):
        host_buffers.share_out(pieces, work)
    assert len(busy) == 1, "only the one that failed did not come to its end"
