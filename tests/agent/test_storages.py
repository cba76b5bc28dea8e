"""Storages leave and come back: the same objects, the same bytes, each once; what may not be moved stays."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from carpool.agent.storages import LOCKED_BYTES, FileStore, PinnedStore, Storages

COUNT = 5000


@pytest.fixture
def storages(tmp_path: Path) -> Iterator[Storages]:
    made = Storages(torch, "cpu", FileStore(tmp_path))
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


def test_what_numpy_or_another_process_looks_at_stays(storages: Storages) -> None:
    seen, shared, small = torch.randn(COUNT), torch.randn(COUNT), torch.randn(3)
    array = seen.numpy()
    shared.share_memory_()
    assert not moved(storages, seen)
    assert not moved(storages, shared)
    assert not moved(storages, small)
    assert array.sum() == pytest.approx(seen.sum().item(), abs=1e-2)


def test_a_store_that_refuses_leaves_everything_where_it_is(storages: Storages) -> None:
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


def test_the_store_has_no_name_and_its_room_is_given_back(storages: Storages, tmp_path: Path) -> None:
    kept = torch.ones(COUNT)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        storages.move_out(1 << 40)
        assert list(tmp_path.iterdir()) == []
        storages.move_in()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert kept.sum().item() == COUNT


class LockingTorch:
    """As much of torch as a store of page-locked memory needs, on a host that has so many pieces."""

    uint8 = torch.uint8

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.sizes: list[int] = []
        self.is_emptied = False
        self._C = self

    def empty(self, size: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        if not self.left:
            raise RuntimeError("CUDA error: out of memory")
        self.left -= 1
        self.sizes.append(size)
        return torch.empty(size, dtype=dtype)

    def _host_emptyCache(self) -> None:  # noqa: N802 - it stands in for torch's
        self.is_emptied = True


def test_page_locked_memory_is_taken_in_pieces_and_kept() -> None:
    host = LockingTorch(4)
    store = PinnedStore(host)
    store.reserve(2 * LOCKED_BYTES + 5)
    store.reserve(LOCKED_BYTES)
    assert host.sizes == [LOCKED_BYTES, LOCKED_BYTES, 5]
    store.reserve(3 * LOCKED_BYTES)
    assert host.sizes[3:] == [LOCKED_BYTES], "only the short piece is replaced"


def test_a_host_without_room_keeps_nothing_locked_of_a_failed_reservation() -> None:
    host = LockingTorch(2)
    store = PinnedStore(host)
    store.reserve(100)
    with pytest.raises(MemoryError, match=f"no {3 * LOCKED_BYTES} bytes to lock"):
        store.reserve(3 * LOCKED_BYTES)
    assert host.is_emptied
    store.reserve(100)  # what it had, it still has
    assert len(host.sizes) == 2
