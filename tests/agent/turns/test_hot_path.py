"""The hooked places of a torch program, in C and in Python: each test runs with both and must see the same.

A stand-in for torch is enough here: modules that call each other, optimizers that are only told apart.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import pickle
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carpool.agent.memory import Memory
from carpool.agent.turns import hot_path, process
from carpool.agent.turns.torch_hooks import GRADED_PATIENCE, STEP_PATIENCE, STEPS_TO_TRUST, Hooks
from carpool.agent.turns.turn_taking import Turns
from carpool.wire import messages as m
from carpool.wire import page
from carpool.wire.protocol import RESAMPLE_MASK, STALL_NS
from tests.agent.fake_daemon import FakeDaemon
from tests.agent.turns.test_turn_taking import FakeSource, run_elsewhere

needs_c = pytest.mark.skipif(hot_path.native is None, reason="the C points are not built: install gcc, 'make native'")


class Module:
    """A torch.nn.Module as far as its call goes."""

    def __init__(self, act: Callable[..., Any] = int) -> None:
        self.act = act

    def _wrapped_call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.act(*args, **kwargs)

    __call__ = _wrapped_call_impl


class Program:
    """A process with the hooks in it; the test is the daemon."""

    def __init__(self, daemon: FakeDaemon, source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon, self.source = daemon, source
        self.has_grad = True
        self.is_worker = False
        data = SimpleNamespace(get_worker_info=lambda: "worker" if self.is_worker else None)
        self.level: int | None = None
        self.torch = SimpleNamespace(
            _C=SimpleNamespace(
                _functorch=SimpleNamespace(maybe_current_level=lambda: self.level),
                DisableTorchFunction=contextlib.nullcontext,
                _DisableTorchDispatch=contextlib.nullcontext,
            ),
            is_grad_enabled=lambda: self.has_grad,
            utils=SimpleNamespace(data=data),
            autograd=SimpleNamespace(backward=None),
            nn=SimpleNamespace(Module=Module),
        )
        self.hooks = Hooks(self.torch)
        self.hooks._pre_hook = SimpleNamespace(remove=lambda: None)
        self.hooks._step_patience = STEP_PATIENCE
        self.step_hook = self.hooks.make_step_hook()
        self.call = self.hooks.wrap_module_call(Module._wrapped_call_impl)
        monkeypatch.setattr(Module, "__call__", self.call)
        self.fetch = self.hooks.wrap_next(lambda loader: loader.fetch())
        monkeypatch.setattr(process, "current_turns", self.attach)
        self.made: list[Turns] = []
        self.optimizer = object()
        self.model = Module()

    def attach(self) -> Turns:
        self.made.append(Turns(self.daemon.link(), Memory(self.source, overhead_bytes=0)))
        return self.made[-1]

    @property
    def turns(self) -> Turns:
        return self.made[-1]

    def loader(self, fetch: Callable[[], Any]) -> Iterator[Any]:
        """An iterator as a DataLoader gives it."""

        class Fetching:
            def __iter__(self) -> Iterator[Any]:
                return self

            __next__ = self.fetch

        loader = Fetching()
        loader.fetch = fetch  # type: ignore[attr-defined]
        return loader

    def backward(self, real: Callable[[], Any]) -> Callable[..., Any]:
        """As `install` does it."""
        self.hooks._backward = real
        self.torch.autograd.backward = self.hooks._our_backward = self.hooks.wrap_backward(real)
        return self.hooks._our_backward

    def step(self, optimizer: object | None = None) -> None:
        self.step_hook(optimizer or self.optimizer, (), {})

    def first_turn(self) -> None:
        def act() -> None:
            self.daemon.accept()
            self.daemon.take()
            self.daemon.grant()

        with self.daemon.playing(act):
            self.model(0)

    def settle(self) -> None:
        """So many iterations that the points are known and the hooks have come to rest."""
        self.first_turn()
        self.step()
        for _ in range(STEPS_TO_TRUST + 2):
            self.model(0)
            self.step()
        assert isinstance(self.daemon.take(), m.Measured)
        assert self.hooks._pre_hook is None

    def while_granted(self, wanted: type[m.Message], act: Callable[[], Any]) -> Any:
        """Act; the turn is asked for or given back meanwhile, and granted."""
        with self.daemon.playing(lambda: self.daemon.answer(wanted)):
            return act()

    def close(self) -> None:
        for turns in self.made:
            turns._link.close()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def program(
    daemon: FakeDaemon, source: FakeSource, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    made = Program(daemon, source, monkeypatch)
    assert (type(made.call).__name__ == "ModuleCall") == (implementation == "c")
    yield made
    made.close()


def boundary_ns(daemon: FakeDaemon) -> int:
    return daemon.words[daemon.base + page.S_BOUNDARY_NS]


# The optimizer's step.


def test_every_step_is_counted_and_stamped_with_the_monotonic_clock(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    for _ in range(100):
        steps, stamp = daemon.steps, boundary_ns(daemon)
        program.step()
        assert (daemon.steps, boundary_ns(daemon) > stamp) == (steps + 1, True)
    assert abs(boundary_ns(daemon) - time.monotonic_ns()) < 1_000_000_000


def test_of_two_optimizers_only_the_one_at_the_clean_point_counts(
    program: Program, daemon: FakeDaemon, source: FakeSource
) -> None:
    other = object()

    def iterate() -> None:
        program.model(0)
        source.live = 9_000_000  # a graph is alive
        program.step(other)
        source.live = 1000
        program.step()

    program.first_turn()
    for _ in range(2 * STEPS_TO_TRUST):
        iterate()
    before = daemon.steps
    for _ in range(10):
        iterate()
    assert daemon.steps == before + 10


def test_a_new_optimizer_is_learnt_and_the_old_one_is_known_no_more(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    before, successor = daemon.steps, object()
    for _ in range(5):
        program.step(successor)
    assert isinstance(daemon.take(), m.Measured)
    assert daemon.steps == before + 5
    assert program.turns._points == {id(successor): True}
    program.step()  # not taken for a boundary: it is learnt anew
    assert program.turns._profile.is_learning


def test_more_optimizers_than_c_remembers_are_counted_all_the_same(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    many = [object() for _ in range(20)]
    for _ in range(4):
        for optimizer in many:
            program.step(optimizer)
    assert isinstance(daemon.take(), m.Measured)
    before = daemon.steps
    for _ in range(3):
        for optimizer in many:
            program.step(optimizer)
    assert daemon.steps == before + 3, "one of them ends the iteration"


def test_a_recall_is_obeyed_at_its_step(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    daemon.recall(at=daemon.steps + 3)
    program.step()
    program.step()
    assert daemon.lease == page.LEASE_HELD
    program.while_granted(m.Return, program.step)
    assert daemon.lease == page.LEASE_HELD
    program.step()


def test_a_lapsed_turn_is_handed_over_at_the_step(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    daemon.recall(at=page.LAPSED)
    program.while_granted(m.Return, program.step)
    assert daemon.lease == page.LEASE_HELD


def test_a_job_that_grows_says_so_at_every_32nd_step(
    program: Program, daemon: FakeDaemon, source: FakeSource
) -> None:
    program.settle()
    source.live, source.peak = 3000, 9000
    while (daemon.steps + 1) & RESAMPLE_MASK:
        program.step()
    assert source.calls.count("reset") == 2, "it has not looked yet"
    program.step()
    grown = daemon.take()
    assert isinstance(grown, m.Measured)
    assert (grown.persistent_bytes, grown.ephemeral_bytes) == (3000, 6000)


def test_steps_in_an_explicit_turn_or_another_thread_or_when_off_do_not_count(
    program: Program, daemon: FakeDaemon
) -> None:
    program.settle()
    before = daemon.steps
    elsewhere = threading.Thread(target=program.step)
    elsewhere.start()
    elsewhere.join(20)
    assert daemon.steps == before
    program.turns.state.depth += 1
    program.step()
    program.turns.state.depth -= 1
    assert daemon.steps == before
    program.step()
    assert daemon.steps == before + 1
    program.turns.finish()
    program.step()
    assert daemon.steps == before + 1


def test_a_forked_child_counts_nothing_for_its_parent_and_makes_its_own_turns(
    program: Program, daemon: FakeDaemon
) -> None:
    program.settle()
    before = daemon.steps
    program.turns.after_fork()
    program.hooks.forget_after_fork()
    program.first_turn()
    assert len(program.made) == 2
    assert program.made[0].state.is_off
    program.step()
    assert daemon.steps == before + 1, "by the second turns, which start with learning"
    assert program.turns._profile.is_learning


# The module call.


def test_only_the_outermost_call_asks_for_a_lapsed_turn(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    inner = Module()

    def forward(value: int) -> int:
        daemon.recall(at=page.LAPSED)
        return int(inner(value)) + 1

    outer = Module(forward)
    assert outer(1) == 2
    assert program.while_granted(m.Ask, lambda: program.model(5)) == 5
    assert daemon.lease == page.LEASE_HELD


def test_another_thread_is_let_through(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    daemon.recall(at=page.LAPSED)
    results: list[int] = []
    elsewhere = threading.Thread(target=lambda: results.append(program.model(3)))
    elsewhere.start()
    elsewhere.join(20)
    assert results == [3]
    program.while_granted(m.Ask, lambda: program.model(0))


def test_a_forward_that_raises_is_over(program: Program) -> None:
    program.settle()
    broken = Module(lambda value: value / 0)
    before = program.hooks._calls.count
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            Module(lambda value: broken(value))(1)
        assert program.hooks._calls.depth == 0
    assert program.hooks._calls.count == before + 3


def test_an_interrupted_wait_for_the_turn_is_the_programs_own_and_the_next_call_asks_again(
    program: Program, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.settle()

    def interrupted() -> None:
        raise KeyboardInterrupt

    daemon.recall(at=page.LAPSED)
    with monkeypatch.context() as patch:
        patch.setattr(program.turns, "_acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            program.model(0)
    assert program.hooks._calls.depth == 0
    program.while_granted(m.Ask, lambda: program.model(0))


def test_without_gradients_and_optimizer_the_end_of_a_call_is_a_boundary(
    program: Program, daemon: FakeDaemon
) -> None:
    program.hooks._step_patience = 0
    program.has_grad = False
    program.first_turn()
    for _ in range(20):
        program.model(0)
    assert daemon.steps == 21
    inner = Module()
    Module(lambda value: inner(inner(value)))(0)
    assert daemon.steps == 22
    daemon.recall()
    program.while_granted(m.Return, lambda: program.model(0))


def test_an_evaluation_gives_a_recalled_turn_back_but_counts_nothing(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    before = daemon.steps
    program.has_grad = False
    program.model(0)
    daemon.recall()
    program.while_granted(m.Return, lambda: program.model(0))
    assert daemon.steps == before


def test_a_data_worker_has_no_turns_and_its_calls_pass(program: Program) -> None:
    program.is_worker = True
    inner = Module()
    assert Module(lambda value: inner(value) + 1)(1) == 2
    program.step()
    assert program.made == []
    assert program.hooks._calls.count == 0


def test_arguments_and_results_pass_unchanged(program: Program) -> None:
    seen: list[Any] = []

    def forward(*args: Any, **kwargs: Any) -> object:
        seen.append((args, kwargs))
        return program

    program.settle()
    module, arguments = Module(forward), {"scale": 2, "mask": None}
    for call in (module, module.__call__, lambda *a, **k: Module.__call__(module, *a, **k)):
        assert call(1, "two", **arguments) is program
        assert call() is program
    assert seen == [((1, "two"), arguments), ((), {})] * 3
    with pytest.raises(TypeError):
        Module.__call__()


def test_the_wrapped_call_looks_like_the_function_it_stands_in_for(program: Program) -> None:
    call, real = Module.__call__, Module._wrapped_call_impl
    assert call is program.call
    assert isinstance(call, types.FunctionType)
    assert inspect.isfunction(call)
    assert (call.__name__, call.__doc__) == ("_wrapped_call_impl", "Call the module.")
    assert inspect.signature(call) == inspect.signature(real)
    assert inspect.unwrap(call) is real
    assert inspect.getattr_static(call, "_torchdynamo_inline") is real
    assert call.__code__ is not None
    assert weakref.ref(call)() is call
    bound = program.model.__call__
    assert type(bound) is types.MethodType
    assert bound.__func__ is call
    assert bound.__self__ is program.model
    assert not hasattr(call, "no_such_thing")


def test_copies_know_nothing_of_the_hooks(program: Program) -> None:
    program.settle()
    assert copy.deepcopy(Module.__call__) is Module.__call__
    duplicate = copy.deepcopy(program.model)
    assert duplicate(4) == 4
    assert vars(duplicate).keys() == {"act"}
    assert copy.deepcopy(program.model.__call__)(5) == 5


def test_a_pickled_module_is_called_through_whatever_hooks_its_process_has(program: Program) -> None:
    program.settle()
    module = pickle.loads(pickle.dumps(Module(abs)))
    assert module(-4) == 4
    assert pickle.loads(pickle.dumps(Module(abs).__call__))(-5) == 5


def test_an_evaluation_without_a_loader_takes_turns_after_training_with_one(
    program: Program, daemon: FakeDaemon
) -> None:
    def train() -> int:
        program.step()
        return 1

    def end() -> int:
        raise StopIteration

    program.settle()
    for batch in (program.loader(train) for _ in range(3 * STEPS_TO_TRUST)):
        next(batch)
    daemon.recall()
    with pytest.raises(StopIteration):
        next(program.loader(end))
    assert isinstance(daemon.take_until(m.Return), m.Return), "the end of the data gives the turn back"
    assert daemon.lease == page.LEASE_NONE
    program.has_grad = False
    program.while_granted(m.Ask, lambda: program.model(0))
    assert daemon.lease == page.LEASE_HELD
    daemon.recall()
    program.while_granted(m.Return, lambda: program.model(0))
    assert daemon.lease == page.LEASE_HELD


# The next batch.


def test_slow_input_gives_the_turn_back_only_while_somebody_waits(program: Program, daemon: FakeDaemon) -> None:
    def fetch() -> int:
        time.sleep(0.02)
        return 7

    program.settle()
    loader = program.loader(fetch)
    for _ in range(8):
        assert next(loader) == 7
    assert daemon.lease == page.LEASE_HELD, "nobody waits"
    stalled = daemon.words[daemon.base + page.S_STALL_NS]
    assert stalled > 8 * 10_000_000
    assert program.turns.state.stall_ns > STALL_NS
    daemon.words[page.H_WAITERS] = 1
    assert program.while_granted(m.Ask, lambda: next(loader)) == 7
    assert daemon.words[daemon.base + page.S_STALL_NS] > stalled
    assert program.hooks._fetches.count == 9


def test_t10_whoever_waits_for_its_input_next_wants_no_other_turn_when_it_is_recalled(
    program: Program, daemon: FakeDaemon
) -> None:
    program.settle()
    loader = program.loader(lambda: 7)
    program.turns.state.stall_ns = 100 * STALL_NS
    daemon.words[page.H_WAITERS] = 1
    daemon.recall()
    program.step()
    assert daemon.take_until(m.Return) == m.Return(steps=daemon.steps, wants_more=False)
    assert program.while_granted(m.Ask, lambda: next(loader)) == 7
    assert program.turns.state.stall_ns > STALL_NS
    daemon.recall()
    program.step()
    assert daemon.take_until(m.Return) == m.Return(steps=daemon.steps, wants_more=False)
    program.while_granted(m.Ask, lambda: program.model(0))
    assert program.turns.state.stall_ns == 0, "no input came next"


def test_quick_input_keeps_the_turn_and_the_estimate_fades(program: Program, daemon: FakeDaemon) -> None:
    program.settle()
    loader, stalls = program.loader(lambda: 7), list[int]()
    program.turns.state.stall_ns = 100 * STALL_NS
    while len(stalls) < 1000 and (not stalls or stalls[-1] > STALL_NS // 10):
        assert next(loader) == 7
        stalls.append(program.turns.state.stall_ns)
    assert min(stalls) <= STALL_NS // 10
    assert daemon.lease == page.LEASE_HELD


def test_input_that_is_computed_in_this_thread_is_no_wait(program: Program, daemon: FakeDaemon) -> None:
    def fetch() -> None:
        until = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < until:
            pass

    program.settle()
    loader, stalls = program.loader(fetch), list[int]()
    while len(stalls) < 300 and (not stalls or stalls[-1] > 100_000):  # somebody else may have had the core
        program.turns.state.stall_ns = 0
        next(loader)
        stalls.append(program.turns.state.stall_ns)
    assert min(stalls) <= 100_000


def test_a_recalled_turn_goes_before_the_fetch_and_comes_back_after_it(program: Program, daemon: FakeDaemon) -> None:
    leases: list[int] = []
    program.settle()
    loader = program.loader(lambda: leases.append(daemon.lease))
    daemon.recall()
    program.while_granted(m.Ask, lambda: next(loader))
    daemon.recall(at=page.LAPSED)
    program.while_granted(m.Ask, lambda: next(loader))
    next(loader)
    assert leases == [page.LEASE_NONE, page.LEASE_NONE, page.LEASE_HELD]
    assert daemon.lease == page.LEASE_HELD


def test_the_end_of_the_data_asks_for_no_turn_and_is_no_item(program: Program, daemon: FakeDaemon) -> None:
    def end() -> None:
        raise StopIteration

    program.settle()
    daemon.recall()
    assert list(program.loader(end)) == []
    assert daemon.lease == page.LEASE_NONE
    assert program.hooks._fetches.count == 0
    daemon.take_until(m.Return)
    program.while_granted(m.Ask, lambda: program.model(0))


def test_a_data_worker_and_the_first_fetch(program: Program, daemon: FakeDaemon) -> None:
    program.is_worker = True
    assert next(program.loader(lambda: 1)) == 1
    assert (program.made, program.hooks._fetches.count) == ([], 0)
    program.is_worker = program.hooks._is_worker = False

    def act() -> None:
        daemon.accept()
        daemon.answer(m.Ask)

    with daemon.playing(act):
        assert next(program.loader(lambda: 2)) == 2
    assert daemon.lease == page.LEASE_HELD


# What only C can get wrong.


@needs_c
def test_a_seat_stays_inside_its_page_and_keeps_it(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    state = hot_path.native.TurnState(made.words)
    for base in (-1, page.PAGE_BYTES // 8 - page.SLOT_WORDS + 1, 1 << 70):
        with pytest.raises(IndexError):
            state.base = base
    with pytest.raises(IndexError):
        del state.base
    state.base = page.slot_base(page.SLOTS - 1)
    with pytest.raises(TypeError):
        hot_path.native.TurnState(b"x" * 4096 and 7)
    with pytest.raises(BufferError):
        hot_path.native.TurnState(b"x" * 4096)
    with pytest.raises(ValueError, match="at least one slot"):
        hot_path.native.TurnState(bytearray(8))
    hook = hot_path.native.StepHook(print, print, print)
    hook.state, optimizer = state, object()
    state.taker = threading.get_ident()
    state.know(id(optimizer), True)
    made.close()
    del made
    gc.collect()
    assert hook(optimizer, (), {}) is None
    assert state.words[state.base + page.S_STEPS] == 1
    with pytest.raises(TypeError):
        hook.state = object()


@needs_c
def test_what_refers_to_itself_is_collected() -> None:
    class Owner:
        def act(self, *args: object) -> None: ...

    owner = Owner()
    hook = hot_path.native.StepHook(owner.act, owner.act, owner.act)
    hook.owner = owner
    owner.hook = hook  # type: ignore[attr-defined]  # the cycle is what this test is about
    gone = weakref.ref(owner), weakref.ref(hook)
    del owner, hook
    gc.collect()
    assert [each() for each in gone] == [None, None]


# Inference with gradients on, and accumulation.


@pytest.mark.parametrize(
    ("result", "counted"),
    [
        (SimpleNamespace(requires_grad=False), True),
        ({"a": SimpleNamespace(requires_grad=False), "b": [SimpleNamespace(requires_grad=False)]}, True),
        (SimpleNamespace(requires_grad=True), False),
        ((SimpleNamespace(requires_grad=False), SimpleNamespace(requires_grad=True)), False),
        (None, False),
        ([], False),
    ],
    ids=["plain", "in a dict", "graph", "one graph", "nothing", "empty"],
)
def test_a_call_whose_result_has_no_graph_ends_an_iteration_though_gradients_are_on(
    program: Program, daemon: FakeDaemon, result: Any, counted: bool
) -> None:
    program.hooks._step_patience = 0
    program.model.act = lambda _: result
    program.first_turn()
    for _ in range(9):
        assert program.model(0) is result
    assert daemon.steps == (10 if counted else 0)


def test_a_program_that_never_goes_backward_is_inference_after_a_while(program: Program, daemon: FakeDaemon) -> None:
    program.hooks._step_patience = 0
    program.model.act = lambda _: SimpleNamespace(requires_grad=True)
    program.first_turn()
    for _ in range(GRADED_PATIENCE + 9):
        program.model(0)
    assert daemon.steps == 10


class Odd:
    """A result that cannot be asked anything."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_what_cannot_be_looked_at_and_what_torch_func_computes_end_nothing(
    program: Program, daemon: FakeDaemon
) -> None:
    program.hooks._step_patience = 0
    endless: list[Any] = []
    endless.append(endless)
    program.first_turn()
    for result in (Odd(), endless):
        program.model.act = lambda _, result=result: result
        assert program.model(0) is result
    program.level = 1
    program.model.act = lambda _: SimpleNamespace(requires_grad=False)
    program.model(0)
    assert daemon.steps == 0


@pytest.mark.parametrize("happened", ["optimizer", "backward", "grad"])
def test_a_program_that_trains_has_no_boundaries_at_forwards_with_gradients(
    program: Program, daemon: FakeDaemon, happened: str
) -> None:
    program.hooks._step_patience = 0
    program.model.act = lambda _: SimpleNamespace(requires_grad=False)
    if happened == "optimizer":
        program.hooks.wrap_init(lambda _: None)(object())
        program.first_turn()
    else:
        program.first_turn()
        wrap = program.hooks.wrap_backward if happened == "backward" else program.hooks.wrap_grad
        wrap(lambda: None)()
    before = daemon.steps
    for _ in range(2 * STEP_PATIENCE):
        program.model(0)
    assert daemon.steps == before


def test_accumulation_gives_a_recalled_turn_back_after_a_backward(program: Program, daemon: FakeDaemon) -> None:
    backward = program.backward(lambda: None)
    program.first_turn()
    for _ in range(STEPS_TO_TRUST + 2):
        for _ in range(3):
            program.model(0)
            backward()
        program.step()
    assert isinstance(daemon.take(), m.Measured)
    assert program.torch.autograd.backward is backward, "it goes backward more often than it steps"
    daemon.recall(at=daemon.steps)
    program.while_granted(m.Return, backward)
    assert daemon.lease == page.LEASE_HELD


def test_where_every_backward_has_its_step_backward_is_left_alone(program: Program) -> None:
    def real() -> None:
        pass

    backward = program.backward(real)
    program.first_turn()
    for _ in range(STEPS_TO_TRUST + 2):
        program.model(0)
        backward()
        program.step()
    assert program.torch.autograd.backward is real


def test_the_only_backward_of_a_step_keeps_the_turn_for_it(program: Program, daemon: FakeDaemon) -> None:
    backward = program.backward(lambda: None)
    program.first_turn()
    for _ in range(STEPS_TO_TRUST - 1):
        program.model(0)
        backward()
        program.step()
    assert isinstance(daemon.take(), m.Measured)
    daemon.recall(at=daemon.steps)
    backward()
    assert daemon.lease == page.LEASE_HELD
    program.while_granted(m.Return, program.step)


def test_a_backward_inside_a_backward_is_a_part_of_it(program: Program, daemon: FakeDaemon) -> None:
    """As activation checkpoints do it; what the outer one has left to do is alive there."""
    inner = program.backward(lambda: None)
    outer = program.backward(lambda: [inner() for _ in range(30)])
    program.first_turn()
    for _ in range(STEPS_TO_TRUST + 2):
        program.model(0)
        outer()
        program.step()
    assert program.torch.autograd.backward is not outer, "one backward a step"
    assert program.hooks._backwards == STEPS_TO_TRUST + 2


def test_what_a_programs_signal_handler_raises_at_such_a_boundary_reaches_the_program(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_it() -> None:
        raise TimeoutError("the program's own alarm")

    program.model.act = lambda _: SimpleNamespace(requires_grad=False)
    program.first_turn()
    monkeypatch.setattr(program.turns, "_learn", lambda _: raise_it())
    monkeypatch.setattr(program.turns, "_safely", lambda action: action())
    program.hooks._step_patience = 0
    with pytest.raises(TimeoutError, match="own alarm"):
        program.model(0)


def test_t4_the_outermost_calls_of_the_thread_that_was_named_are_points_and_no_others(program: Program) -> None:
    def elsewhere() -> None:
        program.hooks._follow_taker(threading.get_ident())
        program.first_turn()
        program.model(0)

    run_elsewhere(elsewhere)
    assert program.hooks._calls.count == 2
    program.model(0)
    assert program.hooks._calls.count == 2, "the main thread's calls pass"
    program.hooks.forget_after_fork()
    assert program.hooks._calls.taker == threading.main_thread().ident


def test_k2_calls_in_threads_that_take_no_turns_are_watched_if_the_program_named_those_that_compute(
    program: Program,
) -> None:
    program.first_turn()
    watched: list[str] = []
    inside: list[str] = []

    def note() -> None:
        watched.append(threading.current_thread().name)

    run_elsewhere(lambda: program.model(0), name="early")
    program.hooks._calls.watch = program.hooks._fetches.watch = note
    Module(lambda: Module()())()
    run_elsewhere(lambda: program.model(0), name="other")
    Module(lambda: run_elsewhere(lambda: program.model(0), name="meanwhile"))()
    assert watched == ["other", "meanwhile"], "not those of the thread that takes the turns, however deep"
    next(program.loader(lambda: inside.append("fetched")))
    assert watched[2:] == [threading.current_thread().name]

    def refuse() -> None:
        raise InterruptedError

    program.hooks._calls.watch = program.hooks._fetches.watch = refuse
    with pytest.raises(InterruptedError):
        run_elsewhere(lambda: program.model(0))
    with pytest.raises(InterruptedError):
        next(program.loader(lambda: inside.append("fetched")))
    assert inside == ["fetched"], "what a signal handler raises while it waits reaches the program"
