"""PyTorch's CUDA build on the stand-in GPU, without carpool: the card, memory, copies, streams, a training step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.torch_cuda.conftest import answer_of

GIB = 1 << 30
MIB = 1 << 20


def test_torch_sees_the_card_and_uses_it(run_bare: Callable[..., list[str]]) -> None:
    found = answer_of(run_bare("look.py", card="1x2GiB"))
    assert (found["is_available"], found["count"], found["name"]) == (True, 1, "carpool stand-in GPU")
    assert (found["total"], found["free"], found["capability"], found["processors"]) == (
        2 * GIB,
        2 * GIB,
        [8, 0],
        108,
    )
    assert found["is_same"] and found["is_same_locked"]
    assert found["is_pinned"] == [True, True, False]
    assert found["is_product"] and found["is_linear"]
    assert found["states"] == 5
    assert 10 * 0.2 <= found["ms"] < 1000  # ten kernels of 200 us
    assert "CUDA out of memory" in found["refusal"] and found["is_unchanged"]
    assert found["left"] < GIB < found["left_after"]


def test_a_program_really_trains_there(run_bare: Callable[..., list[str]]) -> None:
    by_card, by_host = (
        [float(line.split()[2]) for line in run_bare("train.py", "--device", device) if line.startswith("step")]
        for device in ("cuda", "cpu")
    )
    assert len(by_card) == 20
    assert by_card[-1] < 0.9 * by_card[0]
    assert all(abs(one - other) < 1e-3 * other for one, other in zip(by_card, by_host, strict=True))


@pytest.mark.parametrize("allocator", ["backend:native", "backend:cudaMallocAsync", "expandable_segments:True"])
def test_the_agent_moves_cuda_storages_out_and_in_with_every_byte(
    run_bare: Callable[..., list[str]], settings: dict[str, str], allocator: str
) -> None:
    settings["PYTORCH_ALLOC_CONF"] = allocator
    found = answer_of(run_bare("moves.py"))
    matrix = 300 * 200 * 4
    assert found["moved"] >= 150 * MIB + 12345 + 2 * matrix
    assert found["sizes_away"] == [0, 0, 0, 0, 0, 20000], "all but what another process may look at"
    assert found["held_before"] > 150 * MIB
    assert found["held_away"] <= 2 * MIB, "the segment of what was sent stays, cuBLAS's workspace does not"
    assert found["is_same"] and found["is_tied"]
    assert found["moved"] <= found["locked"] <= found["moved"] + 32 * MIB, "not 256 MiB, the next power of two"
    assert found["is_same_again"] and found["moved_again"] >= found["moved"] + 70 * MIB
    assert found["locked_again"] <= found["moved_again"] + 64 * MIB
    assert found["obstacle"] == ""
    assert "captured CUDA graphs" in found["obstacle_with_graph"]
