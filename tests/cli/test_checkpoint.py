"""`carpool checkpoint` and `run --from`: what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carpool.calls import CheckpointOrder
from carpool.cli.checkpoint import _check_program, _check_script, _check_target, _wait
from carpool.client import Client
from carpool.errors import RefusedError, UsageError
from carpool.wire.checkpoint import digest_of


def test_an_order_that_a_later_one_replaced_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.answer").write_text(json.dumps({"number": 2, "reason": "", "steps": 7, "bytes": 9}))
    with pytest.raises(RefusedError, match="another checkpoint of job a was ordered after this one"):
        _wait(Client(tmp_path), CheckpointOrder(job="a", number=1, directory=str(tmp_path), argv=[]))
    assert _wait(Client(tmp_path), CheckpointOrder(job="a", number=2, directory=str(tmp_path), argv=[]))["steps"] == 7


def test_words_with_spaces_are_quoted_so_that_they_can_be_copied() -> None:
    with pytest.raises(
        UsageError, match=r"python train.py --note 'a b'; give the same words, not: python x.py 'c d'"
    ):
        _check_program(Path("file"), ["train.py", "--note", "a b"], ["python", "x.py", "c d"])


def test_a_directory_is_no_file_and_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{tmp_path} is a directory; name a file: .* {tmp_path}/bert.ckpt"):
        _check_target("bert", tmp_path, may_replace=True)
    with pytest.raises(UsageError, match="none is not a directory; make it first"):
        _check_target("bert", tmp_path / "none" / "file", may_replace=False)
    file = tmp_path / "file"
    _check_target("bert", file, may_replace=False)
    file.write_text("of last night")
    with pytest.raises(UsageError, match="is there already; choose another name, or replace it with --force"):
        _check_target("bert", file, may_replace=False)
    _check_target("bert", file, may_replace=True)


def test_a_script_that_was_changed_is_named_before_anything_is_started(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("lr = 0.1")
    recorded = digest_of(script)
    _check_script(Path("file"), recorded, script)
    _check_script(Path("file"), None, script)  # a program without a file of its own
    script.write_text("lr = 0.2")
    with pytest.raises(RefusedError, match="train.py was changed since file was written"):
        _check_script(Path("file"), recorded, script)
