"""`carpool checkpoint` and `run --from`: what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carpool.cli.checkpoint import _check_program, _wait
from carpool.errors import RefusedError, UsageError


def test_an_order_that_a_later_one_replaced_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.answer").write_text(json.dumps({"number": 2, "reason": "", "steps": 7, "bytes": 9}))
    with pytest.raises(RefusedError, match="another checkpoint of job a was ordered after this one"):
        _wait({"job": "a", "number": 1, "directory": str(tmp_path)})
    assert _wait({"job": "a", "number": 2, "directory": str(tmp_path)})["steps"] == 7


def test_words_with_spaces_are_quoted_so_that_they_can_be_copied() -> None:
    with pytest.raises(
        UsageError, match=r"python train.py --note 'a b'; give the same words, not: python x.py 'c d'"
    ):
        _check_program(Path("file"), ["train.py", "--note", "a b"], ["python", "x.py", "c d"])
