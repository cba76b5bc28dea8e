"""What of a program's reads is recorded, and what a replay does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from carpool.agent.checkpoint.read_log import ReadLog
from carpool.agent.checkpoint.read_recorder import Mode, ReadRecorder
from carpool.errors import DivergedError


def make(mode: Mode, log: ReadLog) -> tuple[ReadRecorder, Callable[[torch.Tensor], Any]]:
    recorder = ReadRecorder(torch, log, mode)
    return recorder, recorder.wrap_read(0, "item", torch.Tensor.item)


def test_x1_reads_inside_a_computation_are_not_the_programs() -> None:
    log, number = ReadLog(), torch.tensor(2.5)
    recorder, read = make(Mode.RECORD, log)
    for wrap in (recorder.wrap_call, recorder.wrap_backward, recorder.wrap_step):
        wrap(lambda *_: read(number))(object())
    assert log.reads == 0
    assert read(number) == 2.5
    assert log.reads == 1


def test_x1_a_read_inside_a_computation_is_not_answered_from_the_log() -> None:
    log = ReadLog()
    log.note(0, 1.5)
    recorder, read = make(Mode.SKIP, ReadLog(log.data))
    assert recorder.wrap_step(lambda *_: read(torch.tensor(7.0)))(object()) == 7.0
    assert read(torch.tensor(7.0)) == 1.5


@pytest.mark.parametrize("mode", [Mode.RECOMPUTE, Mode.TRIAL])
def test_x2_a_read_with_another_value_ends_the_replay(mode: Mode) -> None:
    log = ReadLog()
    log.note(0, 1.5)
    recorder, read = make(mode, ReadLog(log.data))
    ended: list[Exception] = []
    recorder.on_trouble = ended.append
    with pytest.raises(DivergedError, match=r"gives 7.0 at step 1, and gave 1.5 when recorded"):
        read(torch.tensor(7.0))
    assert [type(error) for error in ended] == [DivergedError]


def test_x2_a_read_too_many_ends_the_replay() -> None:
    recorder, read = make(Mode.SKIP, ReadLog())
    ended: list[Exception] = []
    recorder.on_trouble = ended.append
    with pytest.raises(DivergedError, match="where the recorded run had nothing more to read"):
        read(torch.tensor(7.0))
    assert len(ended) == 1


def test_the_first_reason_against_skipping_is_kept() -> None:
    recorder, _ = make(Mode.RECORD, ReadLog())
    recorder.cannot_skip("one")
    recorder.cannot_skip("another")
    assert recorder.unskippable == "one"


def test_a_backward_pass_that_makes_a_graph_is_computed_always() -> None:
    """Its nodes may be made by autograd's own threads, which count from 0."""
    recorder, _ = make(Mode.RECORD, ReadLog())
    loss, backward = torch.ones(1, requires_grad=True).square(), recorder.wrap_backward(torch.autograd.backward)
    backward(loss, None, True)
    assert recorder.unskippable == ""
    for arguments, named in (((None, None, True), {}), ((), {"create_graph": True})):
        recorder, _ = make(Mode.RECORD, ReadLog())
        recorder.wrap_backward(lambda *_, **__: None)(loss, *arguments, **named)
        assert recorder.unskippable == "it calls backward with create_graph"


def test_only_what_was_skipped_is_not_true_after_a_replay() -> None:
    for mode, is_true in ((Mode.SKIP, False), (Mode.RECOMPUTE, True)):
        recorder, _ = make(mode, ReadLog())
        kept = torch.ones(1, requires_grad=True).exp()
        recorder.stop_skipping()
        assert recorder.node_numbers.is_true(kept.grad_fn._sequence_nr()) is is_true


@pytest.mark.parametrize(("real_from", "first_real"), [(None, 8), (5, 5), (9, 8)])
def test_all_is_computed_from_the_last_rounds_on_or_from_what_is_kept(real_from: int | None, first_real: int) -> None:
    log, optimizer = ReadLog(), torch.optim.SGD([torch.ones(1)])
    for _ in range(10):
        log.note_step(255)
    recorder = ReadRecorder(torch, ReadLog(log.data), Mode.SKIP, last=10, real_from=real_from)
    real = []
    for _ in range(10):
        recorder.after_step(optimizer, (), {})
        real.append(recorder.is_real)
    assert real == [step < 3 or step >= first_real for step in range(1, 11)]
