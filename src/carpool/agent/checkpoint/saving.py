"""Writes a checkpoint of this program when the daemon says so.

A checkpoint is taken at a step A: it holds the read log up to there and the state. The program then makes one more
step, B, and the hash of its state after B goes into the file too. A replay puts the state back at A and makes step B
for real. It goes on only if every read of B and the state after it are the same to the last bit. That proves that
nothing was forgotten, so the continued run begins behind step B.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from carpool.agent.checkpoint.conditions import facts, first_random_states
from carpool.agent.checkpoint.read_recorder import ReadRecorder
from carpool.agent.checkpoint.replay_guard import ReplayGuard, this_process
from carpool.agent.checkpoint.snapshot import Snapshot
from carpool.agent.threads import thread_in_the_way
from carpool.errors import RefusedError
from carpool.wire import page
from carpool.wire.checkpoint import CheckpointWriter

GRAPHLESS_TRIES = 8  # steps at which it waits for one where no forward pass waits: that file is smaller
TRIES_MAX = 64  # steps after which what is in the way is refused
REST_SECONDS = 10.0  # for the command that gave the order to cancel the job
KILL_AFTER_SECONDS = 10.0  # as the daemon does it


class Draft:
    """A checkpoint whose state is written and whose proof is missing."""

    def __init__(self, writer: CheckpointWriter, contents: dict[str, Any]) -> None:
        self.writer = writer
        self.contents = contents


class Saving:
    """The side that writes checkpoints."""

    def __init__(self, torch: Any, recorder: ReadRecorder, guard: ReplayGuard, directory: Path) -> None:
        self._torch = torch
        self.recorder = recorder
        self._guard = guard
        recorder.log.on_trouble = guard.refuse
        self._directory = directory
        self._words = page.Page.open(directory / "page").words
        self._seen = self._words[page.H_CHECKPOINT]
        self._order: dict[str, Any] | None = None
        self._draft: Draft | None = None
        self._tries = 0
        self._is_over = False  # the file is written, and somebody goes on from it
        self.before = {id(each) for each in gc.get_objects() if issubclass(type(each), torch.Tensor)}
        self.begun: dict[str, Any] = first_random_states(torch)

    def on_step(self) -> None:
        if self._words[page.H_CHECKPOINT] != self._seen:
            self._seen = self._words[page.H_CHECKPOINT]
            self._drop()
            self._order, self._tries = {"number": self._seen}, 0
        if self._order is None:
            return
        recorder, self._guard.is_ours = self.recorder, True
        recorder.depth = 1
        try:
            if "file" not in self._order:
                self._order |= json.loads((self._directory / "checkpoint.order").read_bytes())
            if self._draft is None:
                self._begin(Path(self._order["file"]))
            else:
                self._finish()
        except Exception as error:  # noqa: BLE001 - our trouble is not the program's (X3)
            self._answer(reason=str(error) or type(error).__name__)
        finally:
            recorder.depth, self._guard.is_ours = 0, False
        if self._is_over:
            self._rest()

    def _obstacle(self) -> str:
        torch = self._torch
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return "it is one of several ranks of a distributed run"
        return self.recorder.log.trouble or self._guard.trouble or thread_in_the_way()

    def _begin(self, path: Path) -> None:
        obstacle = self._obstacle()
        if obstacle:
            raise RefusedError(obstacle)
        snapshot, numbers = Snapshot(self._torch, self.before, sys._getframe()), self.recorder.node_numbers
        roots = snapshot.live_roots(numbers)
        self._tries += 1
        if roots and self._tries < GRAPHLESS_TRIES:
            return
        graph = snapshot.hold_graph(roots)
        transient = graph.obstacle
        if numbers.first_true is not None:  # it may be left of the replay, in variables that soon have other values
            transient = transient or snapshot.why_no_name()
        if transient and self._tries < TRIES_MAX:
            return
        if transient:
            raise RefusedError(f"{transient} (tried at {TRIES_MAX} steps)")
        if obstacle := snapshot.obstacle():
            raise RefusedError(obstacle)
        if snapshot.is_seen_by_numpy():
            self.recorder.cannot_skip("it keeps an array of numpy's that shows its weights")
        writer = CheckpointWriter(path)
        self._draft = Draft(writer, {})
        self._draft.contents = {
            "first": self.recorder.steps,
            "made_after": graph.made_after(numbers),
            "state": snapshot.write(writer),
            "digest_first": snapshot.digest(),
        }

    def _finish(self) -> None:
        assert self._draft is not None
        contents, writer = self._draft.contents, self._draft.writer
        recorder = self.recorder
        if recorder.log.trouble or self._guard.trouble:
            raise RefusedError(recorder.log.trouble or self._guard.trouble)
        contents |= {
            **facts(self._torch),
            "begun": self.begun,
            "second": recorder.steps,
            "digest_second": Snapshot(self._torch, self.before, sys._getframe()).digest(),
            "read_log": writer.add(recorder.log.data),
            "unskippable": recorder.unskippable,
            "files": self._guard.files.contents(),
            "writer": this_process(is_stopped=bool(self._order and self._order.get("stop"))),
        }
        size = writer.finish(contents)
        self._draft = None
        self._is_over = bool(self._order and self._order.get("stop"))
        self._answer(steps=recorder.steps, bytes=size)

    def _rest(self) -> None:
        """Make no further step here. The command that gave the order cancels the
        job; if it was interrupted meanwhile, nobody does, and the process ends itself."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(REST_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(KILL_AFTER_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    def _drop(self) -> None:
        if self._draft is not None:
            self._draft.writer.drop()
            self._draft = None

    def _answer(self, **facts: Any) -> None:
        self._drop()
        order, self._order = self._order or {}, None
        draft = self._directory / "checkpoint.answer.new"
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps({"number": order.get("number"), "reason": "", **facts}))
            draft.replace(self._directory / "checkpoint.answer")
