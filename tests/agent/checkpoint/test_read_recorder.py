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
