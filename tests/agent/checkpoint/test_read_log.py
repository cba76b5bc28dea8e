"""What goes in the log comes back the same; what is asked for out of order is a divergence."""

from __future__ import annotations

import math

import numpy
import pytest

from carpool.agent.checkpoint import read_log as read_log
from carpool.agent.checkpoint.read_log import ReadLog
from carpool.errors import DivergedError

VALUES = [0.1, -0.0, math.inf, 7, -(2**60), True, "tensor(1.)", [[1, 2.5], [True, -3]], list(range(5000)), "x" * 2000]


def test_every_kind_of_value_comes_back_the_same() -> None:
    made = ReadLog()
    for kind, value in enumerate(VALUES):
        made.note(kind, value)
        made.note_step(kind)
    again = ReadLog(bytes(made.data))
    for kind, value in enumerate(VALUES):
        found = again.next(kind, "item")
        assert (type(found), repr(found)) == (type(value), repr(value))
        again.next_step(kind)
    assert again.is_over
    assert math.isnan(_through(math.nan))


def _through(value: float) -> float:
    made = ReadLog()
    made.note(0, value)
    found: float = ReadLog(made.data).next(0, "item")
    return found


def test_an_array_comes_back_with_its_type_and_shape() -> None:
    made = ReadLog()
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    made.note(7, array)
    dtype, shape, data = ReadLog(made.data).next(7, "numpy")
    assert (numpy.frombuffer(data, dtype).reshape(shape) == array).all()


def test_another_read_another_step_and_a_read_too_many_are_divergences() -> None:
    made = ReadLog()
    made.note(0, 1.5)
    made.note_step(0)
    again = ReadLog(made.data)
    with pytest.raises(
        DivergedError, match=r"it calls tolist after 0 reads, where the recorded run did something else"
    ):
        again.next(6, "tolist")
    again.next(0, "item")
    with pytest.raises(DivergedError, match="optimizer 1 made a step where optimizer 0 had made one"):
        again.next_step(1)
    with pytest.raises(DivergedError, match="nothing more to read"):
        again.next(0, "item")


def test_what_cannot_be_recorded_spoils_the_log_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ReadLog()
    made.note(5, 1 + 2j)
    assert made.trouble == "it read a complex out of a tensor"
    monkeypatch.setattr(read_log, "LOG_BYTES_MAX", 100)
    full = ReadLog()
    for _ in range(20):
        full.note(0, 0.5)
    assert "fills more than" in full.trouble


def test_a_spoiled_log_holds_no_memory_and_grows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_log, "LOG_BYTES_MAX", 100)
    for spoil in (lambda log: log.note(5, 1 + 2j), lambda log: [log.note_step(0) for _ in range(60)]):
        log = ReadLog()
        log.note(0, 0.5)
        spoil(log)
        why = log.trouble
        assert why
        for _ in range(20):
            log.note(0, "x" * 50)
            log.note_step(0)
        assert (len(log.data), log.trouble) == (0, why)
