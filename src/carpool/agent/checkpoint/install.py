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
from carpool.agent.checkpoint.set_aside import leave_out
from carpool.errors import RefusedError


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
    _wrap_save(torch, recorder, guard)
    _wrap_load(torch, guard)
    recorder.before_saving = lambda: _wrap_safetensors(recorder, guard)
    recorder.install()
    with contextlib.suppress(OSError):
        guard.is_ours = True
        (directory / "checkpoint.ready").write_text(str(os.getpid()))
    guard.is_ours = False


def _install_replay(torch: Any, guard: ReplayGuard, directory: Path) -> ReadRecorder:
    file = guard.file
    assert file is not None
    refusal = refusal_of(torch, file.contents, guard.how)
    if refusal:
        guard.fail(refusal)
    contents = file.contents
    set_first_random_states(torch, contents["begun"])
    mode = Mode.RECOMPUTE if guard.how == "recompute" else Mode.SKIP
    log = ReadLog(file.read(contents["read_log"]))
    recorder = ReadRecorder(torch, log, mode, last=contents["first"], real_from=contents["made_after"])
    saving = Saving(torch, recorder, guard, directory)
    saving.begun = contents["begun"]
    replay = Replay(torch, file, saving, guard)
    recorder.on_step = replay.on_step
    sys.excepthook = replay.note_error
    guard.standing = replay.standing
    return recorder


def _wrap_save(torch: Any, recorder: ReadRecorder, guard: ReplayGuard) -> None:
    """What a program saved before its checkpoint is there already; a replay would write it with other values."""
    real = torch.save

    def save(what: Any, where: Any, *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(where, str | os.PathLike)
        if recorder.mode is not Mode.RECORD and is_path:
            return leave_out(os.fspath(where))
        if is_path:
            guard.saves(where)
        elif not recorder.depth:
            recorder.cannot_skip("it saves tensors into something that is no file")
        with recorder.own_work():
            return real(what, where, *args, **kwargs)

    torch.save = save


def _wrap_safetensors(recorder: ReadRecorder, guard: ReplayGuard) -> None:
    """The same for a library whose own code writes the file. Called now and then: it may be imported at any time."""
    library: Any = sys.modules.get("safetensors.torch")
    real = getattr(library, "serialize_file", None)
    if real is None or getattr(real, "_is_carpools", False):
        return

    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.mode is not Mode.RECORD:
            return leave_out(os.fspath(filename))
        guard.saves(filename)
        return real(tensors, filename, *args, **kwargs)

    serialize_file._is_carpools = True  # type: ignore[attr-defined]  # a mark on a function
    library.serialize_file = serialize_file


def _wrap_load(torch: Any, guard: ReplayGuard) -> None:
    """A replay reads what the recorded run had saved."""
    real = torch.load

    def load(where: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(where, str | os.PathLike):
            guard.files.loaded(os.fspath(where))
            where = guard.original_of(os.fspath(where)) if guard.is_replaying else where
        return real(where, *args, **kwargs)

    torch.load = load
