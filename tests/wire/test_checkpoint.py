"""The file of a checkpoint: whole or refused, and nothing half written is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.errors import RefusedError
from carpool.wire.checkpoint import CheckpointFile, CheckpointWriter


def make(path: Path) -> list[list[int]]:
    writer = CheckpointWriter(path)
    pieces = [writer.add(b"first"), writer.add(b""), writer.add(bytes(100_000))]
    assert not path.exists(), "not before it is whole"
    assert writer.finish({"pieces": pieces}) == path.stat().st_size
    return pieces


def test_pieces_come_back(tmp_path: Path) -> None:
    pieces = make(tmp_path / "file")
    with CheckpointFile(tmp_path / "file") as file:
        assert file.contents["pieces"] == pieces
        assert [bytes(file.read(piece)) for piece in pieces] == [b"first", b"", bytes(100_000)]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("at", [0, 20, 50_000, -50, -1])
def test_a_changed_byte_is_seen_wherever_it_is(tmp_path: Path, at: int) -> None:
    make(tmp_path / "file")
    data = bytearray((tmp_path / "file").read_bytes())
    data[at] ^= 1
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(RefusedError, match=r"is damaged|is no checkpoint"):
        CheckpointFile(tmp_path / "file")


@pytest.mark.parametrize("left", [0, 10, 60, 50_000])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, left: int) -> None:
    make(tmp_path / "file")
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:left])
    with pytest.raises(RefusedError):
        CheckpointFile(tmp_path / "file")


def test_a_draft_that_is_dropped_leaves_nothing_and_spares_the_old_file(tmp_path: Path) -> None:
    make(tmp_path / "file")
    old = (tmp_path / "file").read_bytes()
    writer = CheckpointWriter(tmp_path / "file")
    writer.add(b"new")
    writer.drop()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == old
