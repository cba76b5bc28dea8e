"""Answers as they travel: quick for what is usual, and right for what only the standard library writes."""

from __future__ import annotations

import json

import pytest

from carpool import calls
from carpool.client import from_json
from carpool.daemon.peers import to_json


@pytest.mark.parametrize(
    "value", [{"argv": ["a", "ä", "\udcff"]}, {"number": 1 << 70}, {"jobs": [{"id": "a-1", "needs": None}]}]
)
def test_whatever_an_answer_says_comes_back(value: dict[str, object]) -> None:
    assert from_json(to_json(value)) == value
    assert from_json(json.dumps(value).encode()) == value, "as an older daemon writes it"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a": nothing}'])
def test_what_is_no_json_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(body)


def test_arguments_are_cut_where_they_are_longer_than_a_list_has_room_for() -> None:
    fits = ["x" * (calls.ARGUMENTS_MAX - 4), "ab"]
    assert calls.cut_arguments(fits) == fits
    cut = calls.cut_arguments(["x" * (calls.ARGUMENTS_MAX - 3), "ab"])
    assert cut[1] == "… 1 more, 2 B"
