"""Finds a torch program's iteration boundaries without changing it.

Points, by priority (measured costs and the scripts they were tried on: docs/design/0002-boundaries.md):
  optimizer post-step hook   ends an iteration; several optimizers are told apart by id
  DataLoader __next__        before: input wait, the turn may go; after: a begin point
  outermost Module call      a begin point; with grad off and no optimizer in the program, its end is a boundary, and
                             so it is with grad on if its result has no graph, or none of many ever went backward
  autograd.backward          a begin point; with no optimizer in the program, its end is a boundary (manual updates);
                             with one it is a yield point (accumulation)

The best sign of an iteration counts: an optimizer's step, else a backward, else the call of a module that has
parameters, else any call. Transforms of images are modules without parameters; rollouts of reinforcement learning and
an evaluation before the training call the model before its optimizer steps for the first time. So when a better sign
shows up, what was counted by lesser ones is taken back, and their points only yield from then on.

After a few optimizer steps the hooks that are not needed are taken off. The optimizer's pre-hook goes once another
begin point fires in every iteration. The wrapper around backward goes with it, unless some of these steps had several
backwards. The patch of Module stays: an evaluation that loads no data has no other point at which it could ask for a
turn or give it up. Torch's global module hooks would cost five times as much.

The step hooks and the patches of Module and DataLoader are C where that was built (hot_path.py). They call the code
here when there is something to decide.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from carpool.agent import warm_up
from carpool.agent.backends import own_backend
from carpool.agent.job_words import job_word
from carpool.agent.link import Link, say
from carpool.agent.memory import Memory
from carpool.agent.parking import exports
from carpool.agent.parking.storages import make_storages
from carpool.agent.threads import compute_threads
from carpool.agent.turns import hot_path, process
from carpool.agent.turns.turn_taking import Turns
from carpool.agent.unseen import unseen

STEP_PATIENCE = 64  # an optimizer that did not step while this many other points fired is not waited for
GRADED_PATIENCE = 16  # nor is a backward after this many calls, where there is no optimizer
STEPS_TO_TRUST = 4  # after this many optimizer steps with other points between them, steps need no begin point
ACCUMULATIONS_MIN = 2  # of these steps: with overflowing gradients GradScaler leaves some out
POINT_FORWARD = -2
POINT_BACKWARD = -3
POINT_BARE = -4  # the end of a call of a module without parameters


def _stand_in(call: Any, real_call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a wrapper look like what it wraps; torch's compiler traces the real function instead of it."""
    functools.update_wrapper(call, real_call)
    call._torchdynamo_inline = real_call
    wrapper: Callable[..., Any] = call
    return wrapper


def rehearse(torch: Any) -> None:
    """Run once for nothing what torch itself runs when an optimizer's step is over: that is most of what there is
    between the bell and the program's next line, and it takes three times as long when it is cold."""
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    if not modes and not torch.autograd._profiler_enabled():  # else a profiler or a mode would see it
        with torch.autograd.profiler.record_function("carpool"):
            pass


def gradient_bytes(torch: Any, optimizer: Any) -> int:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with unseen(torch):
        return sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None)


def may_have_graph(result: Any) -> bool:
    """Whether a module's result, or anything in it, can go backward; of what is not known it is taken for granted."""
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return not result or any(map(may_have_graph, result))
    return getattr(result, "requires_grad", True) is not False


def has_parameters(module: Any) -> bool:
    """Whether a module is, or has in it, something that was trained; of what cannot say, it is taken for granted."""
    try:
        return next(iter(module.parameters()), None) is not None
    except Exception:  # noqa: BLE001 - a module of an unusual kind
        return True


class Hooks:
    """The hooks in this process; one instance, installed when torch has been imported."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._turns: Turns | None = None
        self._is_worker = False
        self._is_backward = False
        self._calls: Any = hot_path.PlainCalls()
        self._fetches: Any = hot_path.PlainCalls()
        self._step_hooks: list[Any] = []
        self._optimizer_steps = 0
        self._step_patience = 0
        self._backwards = 0
        self._backwards_at_step = 0
        self._accumulations = 0
        self._graded_calls = 0
        self._has_model = False  # a module with parameters was called
        self._backward: Callable[..., Any] | None = None
        self._our_backward: Callable[..., Any] | None = None
        self._pre_hook: Any = None
        self._overhead_bytes = 0
        self._may_rehearse = False

    # --- attaching, at the first point only --------------------------------------------------------------

    def turns(self) -> Turns | None:
        """The turn-taking of this process; a data-loading worker has none."""
        if self._turns is None and not self._is_worker:
            if self._torch.utils.data.get_worker_info() is not None:
                self._is_worker = True
                return None
            self._turns = process.current_turns()
            self._is_worker = self._turns is None
            for name in warm_up.settings_too_late():
                say(f"{name} was set after import torch and has no effect in a job; set it before the import")
            self._show_state(None if self._turns is None else self._turns.state)
        return self._turns

    def _show_state(self, state: hot_path.PlainTurnState | None) -> None:
        """Tell the C points where they find the state of the turn."""
        for point in (self._calls, self._fetches, *self._step_hooks):
            point.state = state

    def make_memory(self, link: Link) -> Memory:
        backend = own_backend()
        movable = make_storages(self._torch, backend.name, job_word("CARPOOL_PARKED") or None)
        source = backend.make_source(self._torch, link)
        return Memory(source, overhead_bytes=self._overhead_bytes, movable=movable)

    def forget_after_fork(self) -> None:
        self._turns = None
        self._is_worker = False
        self._calls.depth = 0
        self._calls.taker = threading.main_thread().ident
        self._calls.watch = self._fetches.watch = None
        self._show_state(None)

    # --- the points --------------------------------------------------------------------------------------

    def _follow_taker(self, taker: int) -> None:
        """The outermost module calls of this thread are points from now on, and no other thread's."""
        self._calls.taker = taker

    def _watch_threads(self) -> None:
        """The program said which of its threads compute: look whether others do."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        if self._calls.watch is None:
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: compute_threads.check())
        self._calls.watch = self._fetches.watch = compute_threads.check

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        turns = self._turns or self.turns()
        if turns is not None:
            turns.begin()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        turns = self._turns or self.turns()
        if turns is None:
            return
        with contextlib.suppress(Exception):  # an optimizer of an unusual kind goes without
            turns.learn_gradients(id(optimizer), lambda: gradient_bytes(self._torch, optimizer))
        if not self._optimizer_steps:
            turns.take_back(POINT_BARE, POINT_FORWARD, POINT_BACKWARD)
        turns.boundary(id(optimizer))
        if self._pre_hook is None:
            turns.leave_to_c(id(optimizer))
            return
        self._optimizer_steps += 1
        self._accumulations += self._backwards > self._backwards_at_step + 1
        self._backwards_at_step = self._backwards
        if self._optimizer_steps >= STEPS_TO_TRUST:
            self._take_off()

    def make_step_hook(self) -> Callable[[Any, Any, Any], None]:
        if hot_path.native is None:
            return self.after_step
        return self._keep(hot_path.native.StepHook(self.after_step, self.after_count, self.rehearse))

    def rehearse(self) -> None:
        """The turn comes soon (B4)."""
        if self._turns is not None and self._may_rehearse:
            self._turns.while_waiting(lambda: rehearse(self._torch))

    def _keep(self, hook: Any) -> Callable[[Any, Any, Any], None]:
        self._step_hooks.append(hook)
        kept: Callable[[Any, Any, Any], None] = hook
        return kept

    def after_count(self, steps: int) -> None:
        """The C hook counted this step, and something is due."""
        if self._turns is not None:
            self._turns.after_count(steps)

    def wrap_init(self, real_init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real_init)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands in for this method
            self._step_patience = STEP_PATIENCE
            self._calls.is_graded_told = False
            real_init(optimizer, *args, **kwargs)

        return __init__

    def _awaits_step(self) -> bool:
        """Whether an optimizer ends this program's iterations, so that no other point does."""
        if self._optimizer_steps:
            return True
        self._step_patience -= 1
        return self._step_patience >= 0

    def before_data(self) -> None:
        if self._turns is not None:
            self._turns.before_data()

    def after_data(self, waited_ns: int) -> None:
        if self._turns is not None:
            self._turns.after_data(waited_ns)

    def wrap_next(self, real_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if hot_path.native is not None:
            self._fetches = hot_path.native.FetchCall(
                real=real_next, attach=self.is_attached, before=self.before_data, after=self.after_data
            )
            return _stand_in(self._fetches, real_next)
        clock, busy_clock, fetches = time.monotonic_ns, time.thread_time_ns, self._fetches

        def __next__(iterator: Any) -> Any:  # noqa: N807 - it stands in for the method of this name
            if fetches.watch is not None:
                fetches.watch()
            turns = self._turns or self.turns()
            if turns is None:
                return real_next(iterator)
            turns.before_data()
            began, busy = clock(), busy_clock()
            item = real_next(iterator)  # the end of the data is no reason to ask for a turn
            fetches.count += 1
            # A fetch that computes in this thread is work, not a wait for input.
            turns.after_data(clock() - began - (busy_clock() - busy))
            return item

        return _stand_in(__next__, real_next)

    def is_attached(self) -> bool:
        return (self._turns or self.turns()) is not None

    def begin(self) -> None:
        if self._turns is not None:
            self._turns.begin()

    def after_forward(self, module: Any) -> None:
        """An outermost module call ended with gradients off."""
        turns = self._turns
        if turns is None:
            return
        if self._optimizer_steps or self._backwards:
            turns.yield_point(self._backwards)
        elif has_parameters(module):
            if not self._has_model:
                self._has_model = True
                turns.take_back(POINT_BARE)
            self._after_model(turns)
        elif self._has_model or self._step_patience > 0:
            turns.yield_point(self._backwards)
        else:
            turns.boundary(POINT_BARE)

    def _after_model(self, turns: Turns) -> None:
        if self._awaits_step():
            turns.yield_point(self._backwards)
        else:
            turns.boundary(POINT_FORWARD)

    def after_graded_forward(self, module: Any, result: Any) -> None:
        """An outermost module call ended with gradients on; nothing went backward yet, and there is no optimizer."""
        is_training = True
        with contextlib.suppress(Exception):  # a result of an unusual kind may have a graph
            if self._torch._C._functorch.maybe_current_level() is None:  # in torch.func it is not to be seen
                self._graded_calls += has_parameters(module)
                is_training = self._graded_calls <= GRADED_PATIENCE
                with unseen(self._torch):
                    is_training = is_training and may_have_graph(result)
        if not is_training:
            self.after_forward(module)

    def wrap_module_call(self, real_call: Callable[..., Any]) -> Callable[..., Any]:
        is_grad_enabled = self._torch.is_grad_enabled
        main = threading.main_thread().ident or 0
        if hot_path.native is not None:
            self._calls = hot_path.native.ModuleCall(
                real=real_call,
                attach=self.is_attached,
                begin=self.begin,
                after=self.after_forward,
                after_graded=self.after_graded_forward,
                is_grad_enabled=is_grad_enabled,
                taker=main,
            )
            return _stand_in(self._calls, real_call)
        calls = self._calls
        calls.taker = main

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - see above
            if calls.watch is not None and get_ident() != calls.taker:
                calls.watch()
            if calls.depth or get_ident() != calls.taker:
                return real_call(module, *args, **kwargs)
            turns = self._turns or self.turns()
            if turns is None:
                return real_call(module, *args, **kwargs)
            calls.depth = 1
            calls.count += 1
            try:
                turns.begin()
                result = real_call(module, *args, **kwargs)
            finally:
                calls.depth = 0
            if not is_grad_enabled():
                self.after_forward(module)
            elif calls.is_graded_told:
                self.after_graded_forward(module, result)
            return result

        return _stand_in(__call__, real_call)

    def wrap_backward(self, real_backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real_backward)
        def backward(*args: Any, **kwargs: Any) -> Any:
            compute_threads.check()
            turns = self._turns or self.turns()
            if turns is None or self._is_backward:  # a checkpoint goes backward inside the backward
                return real_backward(*args, **kwargs)
            turns.begin()
            self._calls.is_graded_told = False
            self._is_backward = True
            try:
                result = real_backward(*args, **kwargs)
            finally:
                self._is_backward = False
            self._backwards += 1
            if not self._awaits_step():
                if self._backwards == 1:
                    turns.take_back(POINT_BARE, POINT_FORWARD)
                turns.boundary(POINT_BACKWARD)
            elif self._accumulations and not turns.is_learning:  # else its step comes next
                turns.yield_point(self._backwards)
            return result

        return backward

    def wrap_grad(self, real_grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real_grad)
        def grad(*args: Any, **kwargs: Any) -> Any:
            self._calls.is_graded_told = False  # a training that goes backward in its own way
            return real_grad(*args, **kwargs)

        return grad

    # --- installing --------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put every hook in place; raises if this torch lacks one of them."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        torch = self._torch
        self._pre_hook = register_optimizer_step_pre_hook(self.before_step)
        if hot_path.native is not None:
            register_optimizer_step_pre_hook(self._keep(hot_path.native.SoonHook()))
            with contextlib.suppress(Exception):  # a torch that has these names elsewhere goes without
                rehearse(torch)
                self._may_rehearse = True
        register_optimizer_step_post_hook(self.make_step_hook())
        torch.optim.Optimizer.__init__ = self.wrap_init(torch.optim.Optimizer.__init__)
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        loader.__next__ = self.wrap_next(loader.__next__)
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._our_backward = self.wrap_backward(self._backward)
        torch.autograd.grad = self.wrap_grad(torch.autograd.grad)
        torch.nn.Module.__call__ = self.wrap_module_call(torch.nn.Module.__call__)
        exports.install(torch)
        process.set_memory(self.make_memory)
        process.follow_taker(self._follow_taker)
        compute_threads.when_declared(self._watch_threads)
        os.register_at_fork(after_in_child=self.forget_after_fork)
        self._note_overhead()

    def _note_overhead(self) -> None:
        """What torch itself holds right after its import is overhead, not the job's persistent memory."""
        path = job_word("CARPOOL_PAGE")
        if not path:
            return
        link = Link(job_word("CARPOOL_JOB"), "", path)
        self._overhead_bytes = own_backend().after_import(self._torch, link)

    def _take_off(self) -> None:
        """Optimizer steps are the boundaries: keep only what a job needs to ask again after its turn lapsed."""
        autograd = self._torch.autograd
        if self._pre_hook is not None and max(self._fetches.count, self._calls.count) >= self._optimizer_steps:
            self._pre_hook.remove()
            self._pre_hook = None
            # Somebody may have put a wrapper of their own around ours; that one must stay.
            if autograd.backward is self._our_backward and self._accumulations < ACCUMULATIONS_MIN:
                autograd.backward = self._backward


def install(torch: Any) -> None:
    """Called once, right after the program's own import of torch."""
    hooks = Hooks(torch)
    try:
        hooks.install()
    except Exception as error:  # noqa: BLE001 - our trouble is not the program's
        version = getattr(torch, "__version__", "of unknown version")
        why = f"torch {version} could not be hooked ({type(error).__name__}: {error})"
        turns = process.current_turns()
        if turns is not None:
            turns.detach(why)
