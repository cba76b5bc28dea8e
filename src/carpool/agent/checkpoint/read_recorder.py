"""Records what a program reads out of its tensors, and replays it: checkpoint, and run --from.

Only in jobs that were started with `--checkpointable`, or from a checkpoint (docs/migration.md has the whole story).

Modes
  RECORD     the program runs as always; reads and steps are noted in the log
  SKIP       a replay: module calls, backward passes and optimizer steps are skipped but for the first and the last
             ones, so that every object of the program is there; reads are answered from the log
  RECOMPUTE  a replay that computes everything again, and compares every read with the log
  TRIAL      the state was put back; the one step that the recorded run made after it is made again, for real, and
             must give the same reads and, at its end, the same state to the last bit

Rules
  X1  Reads inside a module call, a backward pass or an optimizer step are not the program's: they are neither noted
      nor answered.
  X2  A replay that does anything else than the log says ends at once; nothing the program wrote is let through.
  X3  A checkpoint that cannot be replayed is not written: the reason is said, and the program goes on.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from enum import Enum
from threading import get_ident, main_thread
from types import CodeType
from typing import TYPE_CHECKING, Any

from carpool.agent.checkpoint import indirect_reads
from carpool.agent.checkpoint.live_graphs import NodeNumbers
from carpool.agent.checkpoint.read_log import ReadLog
from carpool.agent.checkpoint.skipped_calls import SkippedCalls
from carpool.agent.checkpoint.tensor_names import is_program_file
from carpool.errors import DivergedError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Everything that carries a value from a tensor into Python; its place in the list is its kind in the log.
READS = (
    "item",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__complex__",
    "tolist",
    "numpy",
    "__array__",
    "__repr__",
    "__format__",
    "equal",
    "allclose",
    "is_nonzero",
)
FUNCTIONS = ("equal", "allclose", "is_nonzero")  # of torch itself, with the same meaning
REAL_FIRST = 3  # rounds over all optimizers that are computed at the beginning of a replay …
REAL_LAST = 2  # … and before its end
CREATE_GRAPH = 3  # its place among the arguments of torch.autograd.backward
OPTIMIZERS_MAX = 8  # a program with more of them uses them one after the other, not all in one round


class Mode(Enum):
    RECORD = "record"
    SKIP = "skip"
    RECOMPUTE = "recompute"
    TRIAL = "trial"


class ReadRecorder:
    """The log of this process and the wrappers around torch that feed it or are fed by it."""

    def __init__(self, torch: Any, log: ReadLog, mode: Mode, *, last: int = 0, real_from: int | None = None) -> None:
        self._torch = torch
        self.log = log
        self.mode = mode
        self.steps = 0  # of all optimizers
        self.last = last  # of a replay: the step at which the state is put back
        self.real_from = real_from  # of a replay: the step from which all is computed, if anything is kept of it
        self.depth = 0  # inside a module call, a backward pass, an optimizer step, or our own work
        self.is_computing = False  # inside a module call, a backward pass or an optimizer step
        self.is_real = True
        self.unskippable = ""  # why the steps of this program cannot be skipped
        self.on_step: Callable[[], None] = lambda: None
        self.on_trouble: Callable[[Exception], None] = lambda error: None
        self.before_saving: Callable[[], None] = lambda: None  # a program may save what it has from here on
        self._optimizers = 0  # made so far
        self._graded: dict[int, Any] = {}
        self._codes: set[CodeType] = set()  # that read inside a computation
        self._skipped = SkippedCalls(torch)
        self.node_numbers = NodeNumbers()
        self.main = main_thread().ident
        self._replaced: list[tuple[Any, str, Any]] = []  # what a forked process gets back

    def cannot_skip(self, why: str) -> None:
        """Only computing every step again can replay this program. The first reason is kept."""
        self.unskippable = self.unskippable or why

    # --- reads --------------------------------------------------------------------------------------------

    def wrap_read(self, kind: int, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def read(*args: Any, **kwargs: Any) -> Any:
            if self.depth or get_ident() != self.main:
                if self.is_computing:
                    self._note_inner(sys._getframe(1).f_code)
                return real(*args, **kwargs)
            if self.mode is Mode.SKIP:
                return self._answer(kind, name, real, args, kwargs)
            self.depth = 1
            try:
                value = real(*args, **kwargs)
            finally:
                self.depth = 0
            if self.mode is Mode.RECORD:
                self.log.note(kind, value)
            else:
                self._compare(kind, name, value)
            return value

        return read

    def _note_inner(self, code: CodeType) -> None:
        """A read inside a computation: if it is the program's own code that reads, skipping would lose the value."""
        if code not in self._codes:
            self._codes.add(code)
            if is_program_file(code.co_filename):
                self.cannot_skip(f"{code.co_qualname} reads tensors inside a module or a step")

    def _answer(self, kind: int, name: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self.own_work():
            noted = self.log.next(kind, name)
            if type(noted) is not tuple:
                return noted
            array = real(*args, **kwargs)  # an array may be a window on the tensor, so it must be that window
            if array.dtype.str != noted[0] or list(array.shape) != noted[1]:
                raise DivergedError(f"{name} gives {array.dtype}{array.shape} where it gave {noted[0]}{noted[1]}")
            flat = sys.modules["numpy"].frombuffer(noted[2], dtype=array.dtype).reshape(array.shape)
            if array.flags.writeable:
                array[...] = flat
                return array
            return flat

    def _compare(self, kind: int, name: str, value: Any) -> None:
        with self.own_work():
            noted = self.log.next(kind, name)
            if type(noted) is tuple:
                value, noted = (value.dtype.str, list(value.shape), value.tobytes()), tuple(noted)
            if repr(value) != repr(noted):
                shown = (str(value)[:40], str(noted)[:40])
                raise DivergedError(
                    f"{name} gives {shown[0]} at step {self.steps + 1}, and gave {shown[1]} when recorded"
                )

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Our own work: reads inside it are ours, and its errors end a replay (X2)."""
        before, self.depth = self.depth, 1
        try:
            yield
        except Exception as error:
            self.on_trouble(error)
            raise
        finally:
            self.depth = before

    # --- computation --------------------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        return self.mode is Mode.RECORD

    @property
    def is_skipped(self) -> bool:
        """Whether what tensors hold is of no meaning now."""
        return self.mode is Mode.SKIP

    @property
    def _is_skipping(self) -> bool:
        return self.mode is Mode.SKIP and not self.is_real

    def wrap_call(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for this method
            if self.depth or get_ident() != self.main:
                return real(module, *args, **kwargs)
            key: Any = None
            if self.mode is Mode.SKIP:
                key = self._skipped.key(module, (args, kwargs))
                if self._is_skipping and self._skipped.knows(key):
                    return self._skipped.result(key)
            self.depth, self.is_computing = 1, True
            try:
                result = real(module, *args, **kwargs)
            finally:
                self.depth, self.is_computing = 0, False
            if not self.unskippable and not self._skipped.are_tensors(result):
                self.cannot_skip(f"calling its {type(module).__name__} gives more than tensors")
            if key is not None:
                self._skipped.learn(key, result)
            return result

        return _stand_in(__call__, real)

    def wrap_backward(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("create_graph") or any(args[CREATE_GRAPH : CREATE_GRAPH + 1]):
                self.cannot_skip("it calls backward with create_graph")
            if self.depth or get_ident() != self.main:
                return real(*args, **kwargs)
            if self._is_skipping:
                self._fill_gradients()
                return None
            self.depth, self.is_computing = 1, True
            try:
                result = real(*args, **kwargs)
            finally:
                self.depth, self.is_computing = 0, False
            if self.mode is Mode.SKIP:
                self._note_gradients()
            return result

        return backward

    def wrap_grad(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if not self.depth:
                self.cannot_skip("it calls torch.autograd.grad")
            return real(*args, **kwargs)

        return grad

    def wrap_step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth or get_ident() != self.main:
                return real(optimizer, *args, **kwargs)
            if any(value is not None for value in (*args, *kwargs.values())):
                self.cannot_skip("its optimizer's step takes a closure")
            if self._is_skipping:
                return None
            self.depth, self.is_computing = 1, True
            try:
                return real(optimizer, *args, **kwargs)
            finally:
                self.depth, self.is_computing = 0, False

        step._is_carpools = True  # type: ignore[attr-defined]  # a mark on a function
        return step

    def wrap_init(self, real: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands in for this method
            kind = type(optimizer)
            if not getattr(kind.step, "_is_carpools", False):
                kind.step = self.wrap_step(kind.step)  # below torch's own hooks, which go on to fire
            real(optimizer, *args, **kwargs)
            optimizer.__dict__["_carpool_number"] = self._optimizers
            self._optimizers += 1
            self.before_saving()

        return __init__

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step hook: it ends an iteration."""
        if self.depth or get_ident() != self.main:
            return
        number = optimizer.__dict__.get("_carpool_number", 255)
        self.steps += 1
        self.node_numbers.note_step(self._torch.autograd._get_sequence_nr())
        self.before_saving()
        if self.mode is Mode.RECORD:
            self.log.note_step(number)
            self.on_step()
            return
        with self.own_work():
            self.log.next_step(number)
        rounds = min(max(1, self._optimizers), OPTIMIZERS_MAX)
        first_real = self.last - REAL_LAST * rounds
        if self.real_from is not None:
            first_real = min(first_real, self.real_from)
        self.is_real = self.steps < REAL_FIRST * rounds or self.steps >= first_real
        self.on_step()

    # --- what a skipped computation leaves behind -----------------------------------------------------------

    def _note_gradients(self) -> None:
        """Which tensors a backward pass gives gradients to; also those that no optimizer knows."""
        for each in gc.get_objects():
            is_leaf = issubclass(type(each), self._torch.Tensor) and each.requires_grad and each.is_leaf
            if is_leaf and each.grad is not None:
                self._graded[id(each)] = each

    def _fill_gradients(self) -> None:
        for parameter in self._graded.values():
            if parameter.grad is None:
                parameter.grad = self._torch.zeros_like(parameter)

    def stop_skipping(self) -> None:
        """Where the state is put back: what was kept for skipped computation is none of it."""
        self._skipped, self._graded = SkippedCalls(self._torch), {}
        if self.mode is Mode.SKIP:  # what was computed again is true
            self.node_numbers.end_replay(self._torch.autograd._get_sequence_nr())

    def begin_trial(self) -> None:
        """The state was put back: from here everything is computed, and compared."""
        self.mode, self.is_real = Mode.TRIAL, True

    # --- installing ---------------------------------------------------------------------------------------

    def replace(self, owner: Any, name: str, wrapper: Any) -> None:
        """Put a wrapper in the place of what torch has there."""
        self._replaced.append((owner, name, owner.__dict__.get(name, self)))
        setattr(owner, name, wrapper)

    def retire(self) -> None:
        """In a process that the program forked (a data worker): its reads are not in the log, and cost nothing."""
        self.main, self.log = None, ReadLog()
        for owner, name, real in reversed(self._replaced):
            if real is self:
                delattr(owner, name)
            else:
                setattr(owner, name, real)
        self._replaced.clear()

    def install(self) -> None:
        """Before the hooks that take turns: a step is in the log when a turn is given back."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        os.register_at_fork(after_in_child=self.retire)
        torch = self._torch
        for kind, name in enumerate(READS):
            real = getattr(torch.Tensor, name, None)
            if real is not None:
                self.replace(torch.Tensor, name, self.wrap_read(kind, name, real))
            if name in FUNCTIONS:
                self.replace(torch, name, self.wrap_read(kind, name, getattr(torch, name)))
        indirect_reads.install(torch, self)
        torch.nn.Module.__call__ = self.wrap_call(torch.nn.Module.__call__)
        torch.autograd.backward = self.wrap_backward(torch.autograd.backward)
        torch.autograd.grad = self.wrap_grad(torch.autograd.grad)
        torch.optim.Optimizer.__init__ = self.wrap_init(torch.optim.Optimizer.__init__)
        register_optimizer_step_post_hook(self.after_step)


def _stand_in(call: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    """Make a wrapper look like what it wraps; torch's compiler traces the real function instead of it."""
    functools.update_wrapper(call, real)
    call._torchdynamo_inline = real
    wrapper: Callable[..., Any] = call
    return wrapper
