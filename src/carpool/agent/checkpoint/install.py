"""Puts recording, saving and replay in place in a job that can be checkpointed."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from carpool.agent.checkpoint.conditions import refusal_of, set_first_random_states
from carpool.agent.checkpoint.read_log import ReadLog
from carpool.agent.checkpoint.read_recorder import Mode, ReadRecorder
from carpool.agent.checkpoint.replay import Replay
from carpool.agent.checkpoint.replay_guard import ReplayGuard
from carpool.agent.checkpoint.saving import Saving
from carpool.errors import RefusedError
from carpool.wire.checkpoint import CheckpointFile


def install_checkpoints(torch: Any, guard: ReplayGuard) -> None:
    """Called right after the program's import of torch, before the hooks that take turns."""
    try:
        _install(torch, guard)
    except Exception as error:
        if guard.replay:  # it must not become a run from the beginning
            guard.fail(str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}")
        raise


def _install(torch: Any, guard: ReplayGuard) -> None:
    directory = Path(os.environ["CARPOOL_PAGE"]).parent
    if not guard.replay:
        recorder = ReadRecorder(torch, ReadLog(), Mode.RECORD)
        saving = Saving(torch, recorder, guard, directory)
        recorder.on_step = saving.on_step
    else:
        recorder = _install_replay(torch, guard, directory)
    _wrap_save(torch, recorder)
    recorder.install()
    with contextlib.suppress(OSError):
        guard.is_ours = True
        (directory / "checkpoint.ready").write_text(str(os.getpid()))
    guard.is_ours = False


def _install_replay(torch: Any, guard: ReplayGuard, directory: Path) -> ReadRecorder:
    file = CheckpointFile(Path(guard.replay))
    file.check()
    refusal = refusal_of(torch, file.contents, guard.how)
    if refusal:
        guard.fail(refusal)
    contents = file.contents
    set_first_random_states(torch, contents["begun"])
    mode = Mode.RECOMPUTE if guard.how == "recompute" else Mode.SKIP
    recorder = ReadRecorder(torch, ReadLog(file.read(contents["read_log"])), mode, last=contents["first"])
    saving = Saving(torch, recorder, guard, directory)
    saving.begun = contents["begun"]
    replay = Replay(torch, file, saving, guard)
    recorder.on_step = replay.on_step
    sys.excepthook = replay.note_error
    guard.standing = replay.standing
    return recorder


def _wrap_save(torch: Any, recorder: ReadRecorder) -> None:
    """What a program saved before its checkpoint is there already; a replay would write it with other values."""
    real = torch.save

    def save(what: Any, where: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.mode is not Mode.RECORD and isinstance(where, str | os.PathLike):
            return None
        if not recorder.depth and not isinstance(where, str | os.PathLike):
            recorder.unskippable = recorder.unskippable or "it saves tensors into something that is no file"
        before, recorder.depth = recorder.depth, 1
        try:
            return real(what, where, *args, **kwargs)
        finally:
            recorder.depth = before

    torch.save = save
