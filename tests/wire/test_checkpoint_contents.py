"""Checkpoints whose hash is right and whose contents are not: each is refused with one sentence."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carpool.cli.checkpoint import recorded_environment
from carpool.errors import RefusedError
from carpool.wire.checkpoint import CHECKPOINT_MAGIC, CheckpointFile, CheckpointWriter

ROW = ["model.weight", 0, "torch.float32", [2, 2], [2, 1], 0, True, "cpu"]
NUMPY = ["MT19937", [1, 2], 624, 0, 0.0]
ARGV = ["train.py", "--epochs", "3"]
RIGHT: dict[str, Any] = {
    "carpool": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11",
    "kind": "cpu",
    "argv": ARGV,
    "hash_seed": "77",
    "sources": {"__main__": "ab" * 16},
    "unskippable": "",
    "files": {"rows": [["/out/log", "appended", 7]], "directories": ["/out"]},
    "writer": ["boot", "17", "1234", "stops"],
    "first": 4,
    "second": 5,
    "made_after": 3,
    "digest_first": "ab" * 32,
    "digest_second": "cd" * 32,
    "begun": {"torch": [1, 2, 255], "python": [3, [1, 2], None], "numpy": NUMPY},
    "state": {
        "tensors": [ROW],
        "random": {"torch": "abcd", "python": [3, [1, 2], 0.5], "numpy": NUMPY, "cuda": ["ab"], "at loader.g": "ab"},
        "compared": {"epoch": 1},
        "put_back": {"optimizer.lr": 0.1},
        "graph": {"roots": ["main()['loss']"], "nodes": ["MeanBackward0 [] []"]},
    },
}


def write(path: Path, change: Callable[[dict[str, Any]], object] = lambda contents: None) -> Path:
    writer = CheckpointWriter(path)
    contents = copy.deepcopy(RIGHT)
    contents["state"]["storages"] = [writer.add(bytes(16))]
    contents["read_log"] = writer.add(b"log")
    change(contents)
    writer.finish(contents)
    return path


def go_on(path: Path) -> dict[str, str]:
    options = {"from_file": path, "recompute": False, "checkpointable": False}
    return recorded_environment(options, ["python", *ARGV], None)


def put(value: object, *where: str) -> Callable[[dict[str, Any]], object]:
    def change(contents: dict[str, Any]) -> None:
        for name in where[:-1]:
            contents = contents[name]
        contents[where[-1]] = value

    return change


def test_contents_as_carpool_writes_them_are_taken(tmp_path: Path) -> None:
    assert go_on(write(tmp_path / "file"))["PYTHONHASHSEED"] == "77"


WRONG = [
    (put([], "files"), "files"),
    (put([["log", "made", 0]], "files", "rows"), "files"),
    (put([["/log", "moved", 0]], "files", "rows"), "files"),
    (put([["/log", "made", -1]], "files", "rows"), "files"),
    (put([3], "files", "directories"), "files"),
    (put(["boot", "17"], "writer"), "writer"),
    (put("abc", "hash_seed"), "hash_seed"),
    (put("4294967296", "hash_seed"), "hash_seed"),
    (put(7, "hash_seed"), "hash_seed"),
    (put("train.py", "argv"), "argv"),
    (put(["train.py", 3], "argv"), "argv"),
    (put(None, "sources"), "sources"),
    (put({"__main__": 3}, "sources"), "sources"),
    (put(-1, "first"), "first"),
    (put(True, "second"), "second"),
    (put("no hash", "digest_first"), "digest_first"),
    (put(-1, "made_after"), "made_after"),
    (put({"roots": []}, "state", "graph"), "state.graph"),
    (put({"roots": [], "nodes": [3]}, "state", "graph"), "state.graph"),
    (put({"torch": [300], "python": [3, [1], None], "numpy": None}, "begun"), "begun"),
    (put({"torch": [1]}, "begun"), "begun"),
    (put([0, 1 << 40], "read_log"), "read_log"),
    (put([-5, 2], "read_log"), "read_log"),
    (put("here", "read_log"), "read_log"),
    (put([], "state"), "state"),
    (put([[*ROW[:3], "2x2", *ROW[4:]]], "state", "tensors"), "state.tensors"),
    (put([ROW[:4]], "state", "tensors"), "state.tensors"),
    (put([[16, 1 << 50]], "state", "storages"), "state.storages"),
    (put({"torch": "xyz", "python": [3, [1], None]}, "state", "random"), "state.random"),
    (put({"torch": "ab", "python": "seed"}, "state", "random"), "state.random"),
    (put([], "state", "put_back"), "state.put_back"),
]


@pytest.mark.parametrize(("change", "field"), WRONG)
def test_a_wrong_field_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], object], field: str) -> None:
    with pytest.raises(RefusedError, match=f"its field '{field}' is not .*; write it anew: carpool checkpoint$"):
        go_on(write(tmp_path / "file", change))


@pytest.mark.parametrize("name", [*RIGHT, "read_log"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError, match=f"lacks its field '{name}'"):
        go_on(write(tmp_path / "file", lambda contents: contents.pop(name)))


@pytest.mark.parametrize("name", [*RIGHT["state"], "storages"])
def test_a_missing_field_of_the_state_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError, match=f"lacks its field 'state.{name}'"):
        go_on(write(tmp_path / "file", lambda contents: contents["state"].pop(name)))


def sealed(path: Path, text: bytes, *, length: int | None = None) -> Path:
    """A file with the right hash around any contents."""
    data = CHECKPOINT_MAGIC + text + (len(text) if length is None else length).to_bytes(8, "little")
    path.write_bytes(data + hashlib.blake2b(data, digest_size=32).digest())
    return path


@pytest.mark.parametrize(
    ("text", "length", "said"),
    [
        (b"{", None, "are not JSON"),
        (b"\xff\xfe", None, "are not JSON"),
        (b"[" * 100_000, None, "are not JSON"),
        (b"", None, "are not JSON"),
        (b"[1]", None, "are no JSON object"),
        (b"null", None, "are no JSON object"),
        (b"{}", 1 << 60, "contents of 1152921504606846976 bytes in"),
        (b"{}", 30, "contents of 30 bytes in"),
        (b"{}", None, "has format None, this carpool reads 1"),
        (json.dumps({"format": [1]}).encode(), None, "has format"),
    ],
)
def test_contents_that_are_none_are_refused(tmp_path: Path, text: bytes, length: int | None, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        CheckpointFile(sealed(tmp_path / "file", text, length=length))
