"""Brings a program to where its checkpoint was taken, and proves that nothing was forgotten (saving.py says how)."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from carpool.agent.checkpoint.conditions import compare_sources
from carpool.agent.checkpoint.live_graphs import LiveGraph
from carpool.agent.checkpoint.read_recorder import Mode
from carpool.agent.checkpoint.replay_guard import ReplayGuard
from carpool.agent.checkpoint.saving import Saving
from carpool.agent.checkpoint.snapshot import Snapshot
from carpool.agent.link import say
from carpool.errors import RefusedError
from carpool.wire.checkpoint import CheckpointFile


class Replay:
    """The side that comes from a checkpoint; a Saving follows."""

    def __init__(self, torch: Any, file: CheckpointFile, saving: Saving, guard: ReplayGuard) -> None:
        self._torch = torch
        self._file = file
        self._saving = saving
        self._recorder = saving.recorder
        self._guard = guard
        self._began = time.monotonic()
        self._error: BaseException | None = None
        self._recorder.on_trouble = lambda error: guard.fail(str(error))

    def on_step(self) -> None:
        recorder, contents = self._recorder, self._file.contents
        with recorder.own_work():
            if recorder.mode is Mode.TRIAL:
                if recorder.steps == contents["second"]:
                    self._go_on()
            elif recorder.steps == contents["first"]:
                self._arrive()

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._torch, self._saving.before, sys._getframe())

    def _snapshot_with_graph(self) -> tuple[Snapshot, LiveGraph]:
        """As the recorded run had them where its state was taken."""
        snapshot = self._snapshot()
        return snapshot, snapshot.hold_graph(self._file.contents["state"]["graph"]["roots"])

    def _arrive(self) -> None:
        contents = self._file.contents
        self._recorder.stop_skipping()
        compare_sources(contents["sources"])
        snapshot, _ = self._snapshot_with_graph()
        if self._recorder.mode is Mode.SKIP:
            snapshot.compare_graph(contents["state"])
            if snapshot.why_no_bytes():
                raise RefusedError(f"after the replay {snapshot.why_no_bytes()}")
            snapshot.put_back(self._file)
        else:
            snapshot.compare_values(contents["state"])
            snapshot.compare_graph(contents["state"])
        snapshot, graph = self._snapshot_with_graph()
        self._recorder.node_numbers.put_back_at(graph.numbers)
        if snapshot.digest() != contents["digest_first"]:
            raise RefusedError(f"its state at step {contents['first']} has another hash than that in the file")
        self._recorder.begin_trial()

    def _go_on(self) -> None:
        contents, recorder = self._file.contents, self._recorder
        if self._snapshot().digest() != contents["digest_second"]:
            raise RefusedError(
                f"step {contents['second']}, made again from the restored state, gives other numbers than it gave"
                " when it was recorded (other data, another processor or number of threads?)"
            )
        recorder.mode = Mode.RECORD
        recorder.on_step = self._saving.on_step
        self._guard.let_through()
        took = time.monotonic() - self._began
        say(f"goes on after step {recorder.steps} of {self._file.path}: replayed in {took:.1f} s, last step verified")

    def note_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._error = error
        sys.__excepthook__(kind, error, trace)

    def standing(self) -> str:
        """How far it came, for a program that ends before the replay does."""
        why = f"its program failed ({self._error!r})" if self._error is not None else "its program ended"
        advice = "; perhaps its steps cannot be skipped, try --recompute" if self._recorder.mode is Mode.SKIP else ""
        return (
            f"{why} after {self._recorder.steps} of the {self._file.contents['second']} steps of the replay{advice}"
        )
