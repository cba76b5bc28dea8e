"""The CUDA side of the agent, through a stand-in for torch.cuda; with a real torch: tests/torch_cuda."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from carpool.agent import memory
from carpool.agent.cuda import (
    ALLOCATED,
    PEAK,
    STUCK,
    CudaSource,
    cap_from_the_start,
    explain_refusals,
    random_states,
)
from carpool.agent.link import Link
from carpool.agent.memory import Memory
from carpool.agent.turns.profile import Profile
from carpool.wire import caps, page

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_is_cap_said", False)


class StandInCuda:
    """Answers like torch.cuda and writes down what was asked of the device."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.has_context = True
        self.live = 0
        self.peak = 0
        self.stuck = 0
        self.fraction: float | None = None
        self.waiting: list[Callable[[], None]] = []
        self.observers: list[Callable[..., None]] = []

    def is_initialized(self) -> bool:
        return self.has_context

    def memory_stats(self) -> dict[str, int]:
        self.calls.append("memory_stats")
        return {ALLOCATED: self.live, PEAK: max(self.live, self.peak), STUCK: self.stuck, "num_ooms": 0}

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset_peak")
        self.peak = self.live

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def mem_get_info(self) -> tuple[int, int]:
        return 16 * GIB - self.live, 16 * GIB

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction

    def get_rng_state_all(self) -> list[int]:
        self.calls.append("get_rng_state_all")
        return [1, 2]

    def _lazy_call(self, call: Callable[[], None]) -> None:
        """As torch does it: at once if there is a context, else when one is made."""
        if self.has_context:
            call()
        else:
            self.waiting.append(call)

    def make_context(self) -> None:
        self.has_context = True
        for call in self.waiting:
            call()


@pytest.fixture
def link(tmp_path: Path) -> Link:
    shared = page.Page.create(tmp_path / "page")
    shared.lend_slot(os.getpid())
    return Link("job-1", "", str(tmp_path / "page"))


@pytest.fixture
def cuda() -> StandInCuda:
    return StandInCuda()


def source_of(cuda: StandInCuda, link: Link) -> CudaSource:
    return CudaSource(SimpleNamespace(cuda=cuda), link)


def test_live_and_peak_come_from_the_allocator_and_live_is_shown_in_the_page(cuda: StandInCuda, link: Link) -> None:
    source = source_of(cuda, link)
    cuda.live, cuda.peak = 3 * MIB, 10 * MIB
    assert (source.live_bytes(), source.peak_bytes()) == (3 * MIB, 10 * MIB)
    assert link.words[link.base + page.S_LIVE] == 3 * MIB
    source.reset_peak(is_learning=True)
    assert source.peak_bytes() == 3 * MIB


def test_free_parts_of_segments_in_use_stay_on_the_card_and_count_as_held(cuda: StandInCuda, link: Link) -> None:
    profile = Profile(Memory(source_of(cuda, link), overhead_bytes=0))
    cuda.live, cuda.peak, cuda.stuck = 100 * MIB, 160 * MIB, 20 * MIB
    profile.observe(7)
    profile.observe(7)
    needs = profile.needs()
    assert (needs.persistent_bytes, needs.ephemeral_bytes) == (120 * MIB, 40 * MIB), "scratch memory may use them"


def test_nothing_is_asked_of_a_process_that_has_no_context_yet(cuda: StandInCuda, link: Link) -> None:
    cuda.has_context = False
    source = source_of(cuda, link)
    assert (source.live_bytes(), source.peak_bytes()) == (0, 0)
    source.reset_peak(is_learning=True)
    source.finish_device_work(give_back=True)
    assert random_states(SimpleNamespace(cuda=cuda)) == []
    assert cuda.calls == []


def test_a_hand_over_waits_for_the_device_and_gives_the_cache_back_only_when_the_lane_is_shared(
    cuda: StandInCuda, link: Link
) -> None:
    source = source_of(cuda, link)
    source.finish_device_work(give_back=False)
    assert cuda.calls == ["synchronize"]
    source.finish_device_work(give_back=True)
    assert cuda.calls == ["synchronize", "synchronize", "empty_cache"]


def test_a_declared_cap_becomes_the_allocators_fraction_when_the_context_is_made(
    cuda: StandInCuda, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_IS_CAPPED", "1")
    link.words[page.H_CAP] = 4 * GIB
    cuda.has_context = False
    cap_from_the_start(SimpleNamespace(cuda=cuda), link)
    assert cuda.fraction is None, "asking would create a context"
    cuda.make_context()
    assert cuda.fraction == pytest.approx(0.25)


def test_the_allocators_fraction_follows_a_cap_that_is_resized(
    cuda: StandInCuda, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_IS_CAPPED", "1")
    link.words[page.H_CAP] = 4 * GIB
    cap_from_the_start(SimpleNamespace(cuda=cuda), link)
    source = source_of(cuda, link)
    for cap_bytes, fraction in ((8 * GIB, 0.5), (2 * GIB, 0.125), (32 * GIB, 1.0)):
        link.words[page.H_CAP] = cap_bytes
        source.live_bytes()
        assert cuda.fraction == pytest.approx(fraction)
    link.words[page.H_CAP] = 4 * GIB
    source.reset_peak(is_learning=False)  # with its next turn, if it reached no boundary before
    assert cuda.fraction == pytest.approx(0.25)


def test_a_cap_that_resize_draws_where_there_was_none_is_followed_and_explained(
    cuda: StandInCuda, link: Link, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    link.words[page.H_CAP] = 4 * GIB  # what others leave of the device
    caps.tell(link.words, 16 * GIB, None, may_wait=False)
    source = source_of(cuda, link)
    cuda.live = 3 * GIB
    source.live_bytes()
    sys.excepthook(MemoryError, MemoryError(), None)
    assert (cuda.fraction, capsys.readouterr().err) == (None, "")
    caps.tell(link.words, 16 * GIB, 4 * GIB, may_wait=False)  # the same number, but now the user's
    source.live_bytes()
    assert cuda.fraction == pytest.approx(0.25)
    sys.excepthook(MemoryError, MemoryError(), None)
    assert "job-1 may hold 4.00 GiB and holds 3.00 GiB; raise the cap with --memory" in capsys.readouterr().err


def test_where_the_guest_keeps_the_cap_the_allocator_has_no_limit_of_its_own(
    cuda: StandInCuda, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_IS_CAPPED", "1")
    link.words[page.H_CAP] = 4 * GIB
    guest = page.slot_base(1)  # beside the slot that was lent to the agent before the program called CUDA
    link.words[guest + page.S_PID], link.words[guest + page.S_FLAGS] = os.getpid(), page.FLAG_METERED
    cap_from_the_start(SimpleNamespace(cuda=cuda), link)
    source = source_of(cuda, link)
    link.words[page.H_CAP] = 8 * GIB
    cuda.live = 3 * MIB
    assert source.live_bytes() == 3 * MIB
    assert cuda.fraction is None, "it would be that of a moment"
    assert link.words[link.base + page.S_LIVE] == 0, "these bytes are counted once"


def test_without_a_declared_cap_the_allocator_is_left_alone(cuda: StandInCuda, link: Link) -> None:
    link.words[page.H_CAP] = 4 * GIB  # what happens to be free is no cap of the user's
    cap_from_the_start(SimpleNamespace(cuda=cuda), link)
    assert cuda.fraction is None


def test_after_learning_the_programs_own_peak_is_not_reset(cuda: StandInCuda, link: Link) -> None:
    source = source_of(cuda, link)
    cuda.live, cuda.peak = 3 * MIB, 10 * MIB
    source.reset_peak(is_learning=False)
    assert "reset_peak" not in cuda.calls
    assert source.peak_bytes() == 3 * MIB, "nothing higher than ever before"
    cuda.peak = 11 * MIB
    assert source.peak_bytes() == 11 * MIB


def test_an_uncaught_out_of_memory_error_gets_carpools_sentence(
    cuda: StandInCuda, link: Link, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OutOfMemoryError(RuntimeError):
        """Named like torch's."""

    monkeypatch.setenv("CARPOOL_IS_CAPPED", "1")
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    link.words[page.H_CAP] = 4 * GIB
    source_of(cuda, link)
    cuda.live = 3 * GIB
    sys.excepthook(OutOfMemoryError, OutOfMemoryError("CUDA out of memory"), None)
    said = capsys.readouterr().err
    assert "job-1 may hold 4.00 GiB and holds 3.00 GiB" in said
    sys.excepthook(ValueError, ValueError("another error"), None)
    assert capsys.readouterr().err == ""


def test_a_program_that_handles_its_out_of_memory_error_is_told_of_the_cap_once(
    cuda: StandInCuda, link: Link, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARPOOL_IS_CAPPED", "1")
    link.words[page.H_CAP] = 4 * GIB
    cuda.has_context, cuda.live = False, 3 * GIB
    core = SimpleNamespace(_cuda_attach_out_of_memory_observer=cuda.observers.append)
    explain_refusals(SimpleNamespace(cuda=cuda, _C=core), link)
    assert cuda.observers == [], "asking for it would make a context"
    cuda.make_context()
    said: list[str] = []
    for asked in (GIB, 2 * GIB, 2 * GIB):  # the first one found the card full
        for observe in cuda.observers:
            observe(0, asked, 16 * GIB, 13 * GIB)  # as torch does it: device, asked for, all, free
        said.append(capsys.readouterr().err)
    assert "job-1 may hold 4.00 GiB and holds 3.00 GiB" in said[1]
    assert (said[0], said[2]) == ("", "")


def test_the_first_two_iterations_teach_persistent_and_ephemeral_bytes(cuda: StandInCuda, link: Link) -> None:
    profile = Profile(Memory(source_of(cuda, link), overhead_bytes=0))
    cuda.live, cuda.peak = 40 * MIB, 90 * MIB  # weights; the optimizer's state comes at the end of the first step
    assert profile.observe(7) == 1
    cuda.live, cuda.peak = 100 * MIB, 160 * MIB
    assert profile.observe(7) == 1
    needs = profile.needs()
    assert (needs.persistent_bytes, needs.ephemeral_bytes) == (100 * MIB, 60 * MIB)
    assert profile.points == {7: True}


def test_of_two_optimizers_the_one_with_the_graph_alive_is_only_a_yield_point(cuda: StandInCuda, link: Link) -> None:
    profile = Profile(Memory(source_of(cuda, link), overhead_bytes=0))
    for _ in range(2):
        cuda.live = 80 * MIB  # the generator's graph is alive at the discriminator's step
        profile.observe(1)
        cuda.live = 50 * MIB
        profile.observe(2)
    assert profile.points == {1: False, 2: True}
