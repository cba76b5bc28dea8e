"""Writes checkpoints of this program when the daemon says so, and brings a program to where its checkpoint was.

A checkpoint is taken at a step A: the tape until there and the state. The program then makes one more step, B, and
the hash of its state after that goes into the file too. A replay puts the state back at A, makes step B for real,
and goes on only if every read of it and the state after it are the same to the last bit: that is the proof that
nothing was forgotten. So the continued run begins behind step B.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from carpool import __version__
from carpool.agent.checkpoint.read_log import Tape
from carpool.agent.checkpoint.read_recorder import Mode, Recorder
from carpool.agent.checkpoint.side_effects import Curtain
from carpool.agent.checkpoint.snapshot import Snapshot
from carpool.agent.checkpoint.tensor_names import is_users
from carpool.agent.link import say
from carpool.agent.threads import thread_in_the_way
from carpool.errors import RefusedError
from carpool.wire import page
from carpool.wire.checkpoint import CheckpointFile, CheckpointWriter, digest_of

TRIES_MAX = 64  # so many steps without a moment at which no backward pass is due: then it is refused
REST_SECONDS = 10.0  # for the command that gave the order to cancel the job
KILL_AFTER_SECONDS = 10.0  # as the daemon does it


class Draft:
    """A checkpoint whose state is written and whose proof is missing."""

    def __init__(self, writer: CheckpointWriter, contents: dict[str, Any]) -> None:
        self.writer = writer
        self.contents = contents


class Recording:
    """The side that writes checkpoints."""

    def __init__(self, torch: Any, recorder: Recorder, curtain: Curtain, directory: Path) -> None:
        self._torch = torch
        self.recorder = recorder
        self._curtain = curtain
        self._directory = directory
        self._words = page.Page.open(directory / "page").words
        self._seen = self._words[page.H_CHECKPOINT]
        self._order: dict[str, Any] | None = None
        self._draft: Draft | None = None
        self._tries = 0
        self._is_over = False  # the file is written, and somebody goes on from it
        self.before = {id(each) for each in gc.get_objects() if issubclass(type(each), torch.Tensor)}
        self.begun: dict[str, Any] = _begun(torch)

    def on_step(self) -> None:
        if self._words[page.H_CHECKPOINT] != self._seen:
            self._seen = self._words[page.H_CHECKPOINT]
            self._drop()
            self._order, self._tries = {"number": self._seen}, 0
        if self._order is None:
            return
        recorder, self._curtain.is_ours = self.recorder, True
        recorder.depth = 1
        try:
            if "file" not in self._order:
                self._order |= json.loads((self._directory / "checkpoint.order").read_bytes())
            if self._draft is None:
                self._begin(Path(self._order["file"]))
            else:
                self._finish()
        except Exception as error:  # noqa: BLE001 - a guest never crashes its host (R3)
            self._answer(reason=str(error) or type(error).__name__)
        finally:
            recorder.depth, self._curtain.is_ours = 0, False
        if self._is_over:
            self._rest()

    def _obstacle(self) -> str:
        torch = self._torch
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return "it is one of several ranks of a distributed run"
        return self.recorder.tape.trouble or self._curtain.trouble or thread_in_the_way()

    def _begin(self, path: Path) -> None:
        snapshot = Snapshot(self._torch, self.before, sys._getframe())
        obstacle = self._obstacle()
        if not obstacle and snapshot.has_live_graph():
            self._tries += 1
            if self._tries < TRIES_MAX:
                return
            obstacle = f"a forward pass was under way at each of its last {TRIES_MAX} steps"
        obstacle = obstacle or snapshot.obstacle()
        if obstacle:
            raise RefusedError(obstacle)
        writer = CheckpointWriter(path)
        self._draft = Draft(writer, {})
        self._draft.contents = {
            "first": self.recorder.steps,
            "state": snapshot.write(writer),
            "digest_first": snapshot.digest(),
        }

    def _finish(self) -> None:
        assert self._draft is not None
        contents, writer = self._draft.contents, self._draft.writer
        recorder = self.recorder
        if recorder.tape.trouble or self._curtain.trouble:
            raise RefusedError(recorder.tape.trouble or self._curtain.trouble)
        contents |= {
            **facts(self._torch),
            "begun": self.begun,
            "second": recorder.steps,
            "digest_second": Snapshot(self._torch, self.before, sys._getframe()).digest(),
            "tape": writer.add(recorder.tape.data),
            "unskippable": recorder.unskippable,
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


class Replay:
    """The side that comes from a checkpoint; a Recording follows."""

    def __init__(self, torch: Any, file: CheckpointFile, recording: Recording, curtain: Curtain) -> None:
        self._torch = torch
        self._file = file
        self._recording = recording
        self._recorder = recording.recorder
        self._curtain = curtain
        self._began = time.monotonic()
        self._error: BaseException | None = None
        self._recorder.on_trouble = lambda error: curtain.fail(str(error))

    def on_step(self) -> None:
        recorder, contents = self._recorder, self._file.contents
        with recorder.guarded():
            if recorder.mode is Mode.TRIAL:
                if recorder.steps == contents["second"]:
                    self._go_on()
            elif recorder.steps == contents["first"]:
                self._arrive()

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._torch, self._recording.before, sys._getframe())

    def _arrive(self) -> None:
        contents = self._file.contents
        _compare_sources(contents["sources"])
        if self._recorder.mode is Mode.SKIP:
            snapshot = self._snapshot()
            if snapshot.obstacle():
                raise RefusedError(f"after the replay {snapshot.obstacle()}")
            snapshot.put_back(self._file)
        else:
            self._snapshot().compare_values(contents["state"])
        if self._snapshot().digest() != contents["digest_first"]:
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
        recorder.on_step = self._recording.on_step
        self._curtain.open()
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


def facts(torch: Any) -> dict[str, Any]:
    """What must be the same where the checkpoint goes on."""
    return {
        "carpool": __version__,
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:2])),
        "argv": sys.orig_argv[1:],
        "kind": os.environ.get("CARPOOL_DEVICE_KIND", "cpu"),
        "hash_seed": os.environ.get("PYTHONHASHSEED", ""),
        "sources": _sources(),
    }


def _sources() -> dict[str, str]:
    """A hash of each of the program's own files."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if type(module) is ModuleType and isinstance(file, str) and is_users(file):
            with contextlib.suppress(OSError):
                found[name] = digest_of(Path(file))
    return found


def _compare_sources(there: dict[str, str]) -> None:
    here = _sources()
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            raise RefusedError(f"its file of module {name} is another than when it was recorded")


def _begun(torch: Any) -> dict[str, Any]:
    """The random states the program starts with: nobody has to seed them."""
    version, words, gauss = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": [version, list(words), gauss],
        "numpy": [state[0], state[1].tolist(), *state[2:]] if state is not None else None,
    }


def _begin_as(torch: Any, begun: dict[str, Any]) -> None:
    torch.set_rng_state(torch.tensor(begun["torch"], dtype=torch.uint8))
    version, words, gauss = begun["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and begun["numpy"] is not None:
        kind, numbers, *rest = begun["numpy"]
        numpy.random.set_state((kind, numpy.array(numbers, dtype=numpy.uint32), *rest))


def _refusal(torch: Any, contents: dict[str, Any], how: str) -> str:
    """Why this process cannot go on from the checkpoint; empty if it may try."""
    here = facts(torch)
    for name, words in (
        ("carpool", "carpool"),
        ("torch", "torch"),
        ("python", "Python"),
        ("argv", "command line"),
        ("kind", "kind of device"),
        ("hash_seed", "PYTHONHASHSEED"),
    ):
        if here[name] != contents[name]:
            return f"it was made with {words} {contents[name]}, this is {here[name]}"
    if contents["unskippable"] and how != "recompute":
        return f"the steps of this program cannot be skipped ({contents['unskippable']}); use --recompute"
    return ""


def install(torch: Any, curtain: Curtain) -> None:
    """Called right after the program's import of torch, before the hooks that take turns."""
    try:
        _install(torch, curtain)
    except Exception as error:
        if curtain.replay:  # it must not become a run from the beginning
            curtain.fail(f"{type(error).__name__}: {error}")
        raise


def _install(torch: Any, curtain: Curtain) -> None:
    directory = Path(os.environ["CARPOOL_PAGE"]).parent
    if not curtain.replay:
        recorder = Recorder(torch, Tape(), Mode.RECORD)
        recording = Recording(torch, recorder, curtain, directory)
        recorder.on_step = recording.on_step
    else:
        recorder = _install_replay(torch, curtain, directory)
    _wrap_save(torch, recorder)
    recorder.install()
    with contextlib.suppress(OSError):
        curtain.is_ours = True
        (directory / "checkpoint.ready").write_text(str(os.getpid()))
    curtain.is_ours = False


def _install_replay(torch: Any, curtain: Curtain, directory: Path) -> Recorder:
    file = CheckpointFile(Path(curtain.replay))
    refusal = _refusal(torch, file.contents, curtain.how)
    if refusal:
        curtain.fail(refusal)
    contents = file.contents
    _begin_as(torch, contents["begun"])
    mode = Mode.RECOMPUTE if curtain.how == "recompute" else Mode.SKIP
    recorder = Recorder(torch, Tape(file.read(contents["tape"])), mode, last=contents["first"])
    recording = Recording(torch, recorder, curtain, directory)
    recording.begun = contents["begun"]
    replay = Replay(torch, file, recording, curtain)
    recorder.on_step = replay.on_step
    sys.excepthook = replay.note_error
    curtain.standing = replay.standing
    return recorder


def _wrap_save(torch: Any, recorder: Recorder) -> None:
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
