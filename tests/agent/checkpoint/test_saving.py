"""A program that is told to write itself to a file: whatever goes wrong there, its own steps go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from carpool.agent.checkpoint.read_log import ReadLog
from carpool.agent.checkpoint.read_recorder import Mode, ReadRecorder
from carpool.agent.checkpoint.replay_guard import ReplayGuard
from carpool.agent.checkpoint.saving import Saving
from carpool.wire import page as pages

PROGRAM = """
import signal, sys
from pathlib import Path
import torch
from carpool.agent.checkpoint import saving
from carpool.agent.checkpoint.replay_guard import ReplayGuard
from carpool.agent.checkpoint.read_recorder import Mode, ReadRecorder
from carpool.agent.checkpoint.read_log import ReadLog
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, lambda *_: print("deaf", flush=True))
saving.REST_SECONDS = saving.KILL_AFTER_SECONDS = 0.2
recorder = ReadRecorder(torch, ReadLog(), Mode.RECORD)
saving = saving.Saving(torch, recorder, ReplayGuard("", ""), Path(sys.argv[1]))
saving._seen = 0
for _ in range(3):
    saving.on_step()
print("a further step", flush=True)
"""

WAITING = """
import sys
from pathlib import Path
import torch
from carpool.agent.checkpoint import saving
from carpool.agent.checkpoint.replay_guard import ReplayGuard
from carpool.agent.checkpoint.read_recorder import Mode, ReadRecorder
from carpool.agent.checkpoint.read_log import ReadLog
saving.TRIES_MAX = 10
saving = saving.Saving(torch, ReadRecorder(torch, ReadLog(), Mode.RECORD), ReplayGuard("", ""), Path(sys.argv[1]))
saving._seen = 0
held = torch.zeros(3)
held[1:] = torch.ones(2, requires_grad=True).exp()
for _ in range(9):
    saving.on_step()
print((Path(sys.argv[1]) / "checkpoint.answer").exists())
saving.on_step()
"""


@pytest.fixture
def page(tmp_path: Path) -> pages.Page:
    return pages.Page.create(tmp_path / "page")


def saving_in(directory: Path) -> Saving:
    return Saving(torch, ReadRecorder(torch, ReadLog(), Mode.RECORD), ReplayGuard("", ""), directory)


def give_order(page: pages.Page, text: str) -> None:
    (page.path.parent / "checkpoint.order").write_text(text)
    page.words[pages.H_CHECKPOINT] += 1


def answer_in(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "checkpoint.answer").read_bytes())
    return found


def test_x3_an_order_that_cannot_be_read_is_answered_and_the_program_goes_on(
    page: pages.Page, tmp_path: Path
) -> None:
    saving = saving_in(tmp_path)
    give_order(page, '{"number": 1, "fi')
    saving.on_step()
    assert answer_in(tmp_path)["number"] == 1
    assert answer_in(tmp_path)["reason"] != ""
    give_order(page, "[1]")
    saving.on_step()
    assert answer_in(tmp_path)["number"] == 2
    (tmp_path / "checkpoint.order").unlink()
    page.words[pages.H_CHECKPOINT] += 1
    saving.on_step()
    assert answer_in(tmp_path)["number"] == 3
    assert "No such file" in answer_in(tmp_path)["reason"]


def test_x3_a_full_disk_is_answered_leaves_no_draft_and_the_program_goes_on(page: pages.Page, tmp_path: Path) -> None:
    """As with a real full disk, bytes that wait in a buffer are refused when the file is closed, too."""
    (tmp_path / "to").mkdir()
    saving = saving_in(tmp_path)
    give_order(page, json.dumps({"number": 1, "file": str(tmp_path / "to" / "file"), "stop": False}))
    saving.on_step()
    assert [path.name for path in (tmp_path / "to").iterdir()] == [f".file.{os.getpid()}"]
    assert saving._draft is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, saving._draft.writer._file.fileno())
    os.close(full)
    saving.on_step()
    assert "No space left" in answer_in(tmp_path)["reason"]
    assert list((tmp_path / "to").iterdir()) == []


def test_x3_what_spoils_the_log_in_the_last_step_is_answered(page: pages.Page, tmp_path: Path) -> None:
    saving = saving_in(tmp_path)
    give_order(page, json.dumps({"number": 1, "file": str(tmp_path / "file"), "stop": False}))
    saving.on_step()
    saving.recorder.log.note(5, 1 + 2j)
    saving.on_step()
    assert answer_in(tmp_path)["reason"] == "it read a complex out of a tensor"
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(("kind", "ended_by"), [("plain", signal.SIGTERM), ("deaf", signal.SIGKILL)])
def test_a_program_that_was_told_to_stop_ends_without_anybodys_help(
    page: pages.Page, tmp_path: Path, kind: str, ended_by: signal.Signals
) -> None:
    """The command that told it may be gone by then."""
    file = tmp_path / "file"
    give_order(page, json.dumps({"number": 1, "file": str(file), "stop": True}))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer_in(tmp_path)["reason"] == ""
    assert file.exists()
    assert (done.returncode, "a further step" in done.stdout) == (-ended_by, False), done.stderr


def test_x3_what_stays_in_the_way_is_refused_with_the_number_of_steps(page: pages.Page, tmp_path: Path) -> None:
    give_order(page, json.dumps({"number": 1, "file": str(tmp_path / "file"), "stop": False}))
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n", "it is tried again"
    assert answer_in(tmp_path)["reason"] == (
        "torch::autograd::CopySlices, which waits for its backward pass, keeps values in C++ that Python cannot read;"
        " use detach() on what is kept, or order the checkpoint after backward() (tried at 10 steps)"
    )
    assert not (tmp_path / "file").exists()
