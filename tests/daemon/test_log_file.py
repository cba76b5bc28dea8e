"""daemon.log: a disk that hangs stops nobody, and what it did not take is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.daemon import log_file
from carpool.daemon.log_file import LogFile, dropped_lines, log


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = log.level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(before)


def test_lines_are_written_in_their_order(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "daemon.log")
    for number in range(100):
        log.info("line.%d", number)
    file.close()
    assert [line.rpartition(".")[2] for line in (tmp_path / "daemon.log").read_text().splitlines()] == [
        str(number) for number in range(100)
    ]


def test_nobody_waits_for_a_disk_that_hangs_and_dropped_lines_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "LINES_MAX", 10)
    monkeypatch.setattr(log_file, "CLOSE_SECONDS", 30.0)
    file, goes_on, hangs = LogFile(tmp_path / "daemon.log"), threading.Event(), threading.Event()
    really = file._file.emit

    def emit(record: logging.LogRecord) -> None:
        hangs.set()
        assert goes_on.wait(60)
        really(record)

    monkeypatch.setattr(file._file, "emit", emit)
    log.info("first")
    assert hangs.wait(60)
    for number in range(50):
        log.info("line.%d", number)
    assert dropped_lines() == 40
    goes_on.set()
    for _ in range(1000):
        if file._waiting.empty():
            break
        threading.Event().wait(0.01)
    log.info("last")
    file.close()
    text = (tmp_path / "daemon.log").read_text().splitlines()
    assert (len(text), text[-1].endswith("INFO last")) == (13, True)
    assert text[-2].endswith("WARNING log.dropped lines=40 reason=the disk did not take them")
    assert dropped_lines() == 0, "of a daemon that writes no log any more"
