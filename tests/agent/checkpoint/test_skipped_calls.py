"""What a skipped call of a module gives: results like the last computed ones, of any layout and any size."""

from __future__ import annotations

import pytest
import torch

from carpool.agent.checkpoint import skipped_calls
from carpool.agent.checkpoint.skipped_calls import SkippedCalls


@pytest.fixture
def calls() -> SkippedCalls:
    return SkippedCalls(torch)


def test_a_skipped_call_gives_what_the_computed_one_gave(calls: SkippedCalls) -> None:
    calls.learn("key", {"a": [torch.arange(3.0), None], "b": 2})
    given = calls.result("key")
    assert given["a"][0].tolist() == [0, 1, 2]
    assert (given["a"][1], given["b"]) == (None, 2)
    given["a"][0].zero_()
    assert calls.result("key")["a"][0].tolist() == [0, 1, 2], "the program may change what it got"


def test_a_sparse_result_is_zeros(calls: SkippedCalls) -> None:
    calls.learn("key", torch.eye(3).to_sparse())
    given = calls.result("key")
    assert (given.shape, given.dtype) == ((3, 3), torch.float32)
    assert not given.any()


def test_only_what_is_kept_counts_under_the_bound(calls: SkippedCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipped_calls, "EXAMPLES_BYTES_MAX", 40)
    for key, count in (("large", 11), ("first", 5), ("second", 5), ("one too many", 1)):
        calls.learn(key, torch.ones(count))
    sums = {key: calls.result(key).sum().item() for key in ("large", "first", "second", "one too many")}
    assert sums == {"large": 0, "first": 5, "second": 5, "one too many": 0}
