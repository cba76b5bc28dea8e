"""Every query of NVML that tells bytes of a card, asked inside a capped job: the cap is the card's size, what is used
is the job's, and lists of processes have the job's own. Beside it a neighbour holds more than the cap."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base
from tests.native.gpu import MIB, Built, Probe, environment
from tests.native.probe import NATIVE
from tests.native.scripts import Script

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: the NVML view is NOT tested")
if not hasattr(pynvml, "nvmlDeviceGetMemoryLimits_v1"):
    pytest.skip("nvidia-ml-py is older than 13: the NVML view is NOT tested", allow_module_level=True)

CARD, CAP, OWN, NEIGHBOURS = 4096, 1024, 300, 2000  # MiB
PROGRAM = Path(__file__).parents[1] / "programs" / "client_figures.py"
LISTS = re.compile(r"nvmlDeviceGet\w*Running\w+")
UUIDS = [f"GPU-63617270-6f6f-6c2d-7374-75622d6770{card:02x}" for card in range(2)]
Figures = dict[str, list[Any]]


class Card:
    """The first of two cards: one process of the job on it, and one that is not the job's."""

    def __init__(self, built: Built, page: Page, books: Path, place: Path, stack: ExitStack) -> None:
        shape: dict[str, Any] = {"cards": "2x4GiB"}
        rare = {"CARPOOL_STUB_RARE": "1"}
        self.page = page
        self.capped = environment(built, books, page=page.path, **shape) | rare | {"CUDA_VISIBLE_DEVICES": UUIDS[0]}
        self.bare = environment(built, books, **shape) | rare | {"CUDA_VISIBLE_DEVICES": UUIDS[0]}
        page.words[wire.H_CAP] = CAP * MIB
        self.probe = stack.enter_context(Probe(built, self.capped, place / "own"))
        self.neighbour = stack.enter_context(Probe(built, self.bare, place / "neighbour"))
        assert self.probe.alloc("plain", 0, OWN * MIB) == 0
        assert self.neighbour.alloc("plain", 0, NEIGHBOURS * MIB) == 0

    def look(self, env: dict[str, str], card: int = 0) -> Figures:
        pids = [str(self.probe.pid), str(self.neighbour.pid)]
        command = [sys.executable, str(PROGRAM), str(card), *pids]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stderr) == (0, "")
        found: Figures = json.loads(done.stdout)
        return found


@pytest.fixture
def card(built: Built, page: Page, books: Path, tmp_path: Path) -> Iterator[Card]:
    with ExitStack() as stack:
        yield Card(built, page, books, tmp_path, stack)


def numbers(figures: list[Any]) -> list[int]:
    """The sizes among them, without pids."""
    return [figure[1] if isinstance(figure, list) else figure for figure in figures]


def test_no_query_tells_more_than_the_cap_and_without_the_library_each_does(card: Card) -> None:
    hooked = set(re.findall(r"^NVML\((nvml\w+)", (NATIVE / "hooks.def").read_text(), re.MULTILINE))
    real, seen = card.look(card.bare), card.look(card.capped)
    assert set(real) == set(seen) == hooked
    for name in hooked:
        assert max(numbers(real[name])) > CAP, f"{name}: the stand-in does not show that the hook is needed"
        assert max(numbers(seen[name])) <= CAP, name


def test_the_figures_are_the_caps_and_the_jobs(card: Card) -> None:
    seen, mine = card.look(card.capped), [[card.probe.pid, OWN]]
    assert {name: figures for name, figures in seen.items() if not LISTS.fullmatch(name)} == {
        "nvmlDeviceGetMemoryInfo": [CAP, CAP - OWN, OWN],
        "nvmlDeviceGetMemoryInfo_v2": [CAP, CAP - OWN, OWN, 0],
        "nvmlDeviceGetConfComputeProtectedMemoryUsage": [CAP, CAP - OWN, OWN],
        "nvmlDeviceGetConfComputeMemSizeInfo": [CAP, 0],
        "nvmlDeviceGetBAR1MemoryInfo": [CAP, CAP, 0],
        "nvmlDeviceGetMemoryLimits_v1": [0, CAP, OWN],
        "nvmlDeviceGetAttributes": [CAP],
        "nvmlDeviceGetAttributes_v2": [CAP],
        "nvmlDeviceGetGpuInstanceProfileInfo": [CAP],
        "nvmlDeviceGetGpuInstanceProfileInfoV": [CAP, CAP],
        "nvmlDeviceGetGpuInstanceProfileInfoByIdV": [CAP, CAP],
        "nvmlDeviceGetAccountingStats": [OWN, CAP],
        "nvmlDeviceGetAccountingStats_v2": [OWN, CAP],
    }
    lists = {name: figures for name, figures in seen.items() if LISTS.fullmatch(name)}
    assert len(lists) == 10
    assert lists == dict.fromkeys(lists, mine)


def test_a_smaller_card_than_the_cap_keeps_its_own_sizes(card: Card) -> None:
    card.page.words[wire.H_CAP] = 2 * CARD * MIB
    real, seen = card.look(card.bare), card.look(card.capped)
    for name in ("nvmlDeviceGetAttributes", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetConfComputeMemSizeInfo"):
        assert seen[name] == real[name]
    assert seen["nvmlDeviceGetMemoryInfo"][0] == CARD


def test_what_neighbours_took_is_not_called_the_jobs(card: Card) -> None:
    assert card.neighbour.alloc("plain", 1, 1500 * MIB) == 0
    left = CARD - OWN - NEIGHBOURS - 1500
    seen = card.look(card.capped)
    assert seen["nvmlDeviceGetMemoryInfo_v2"] == [CAP, left, OWN, CAP - left - OWN]  # the rest is reserved
    assert seen["nvmlDeviceGetMemoryInfo"] == [CAP, left, CAP - left]  # which this form adds to what is used


def test_another_card_is_shown_as_it_is(card: Card) -> None:
    other = card.bare | {"CUDA_VISIBLE_DEVICES": UUIDS[1]}
    with Script(other, f"assert allocate({3000 * MIB}) == 0\nwait()") as busy:
        assert busy.line() == "ready"
        real, seen = card.look(card.bare, 1), card.look(card.capped, 1)
        assert real == seen
        assert real["nvmlDeviceGetComputeRunningProcesses"] == [[busy.process.pid, 3000]]


def test_a_cap_that_the_user_did_not_set_is_not_shown(card: Card) -> None:
    assert card.look(card.capped | {"CARPOOL_IS_CAPPED": "0"}) == card.look(card.bare)


def test_a_contexts_own_bytes_are_in_no_figure_of_the_job(built: Built, card: Card, tmp_path: Path) -> None:
    with Probe(built, card.capped | {"CARPOOL_STUB_CONTEXT": "200MiB"}, tmp_path / "large") as large:
        assert large.alloc("plain", 0, 100 * MIB) == 0
        seen = card.look(card.capped)
        assert [large.pid, 300] in card.look(card.bare)["nvmlDeviceGetRunningProcessDetailList"]
        assert [large.pid, 100] in seen["nvmlDeviceGetRunningProcessDetailList"]
        assert sum(numbers(seen["nvmlDeviceGetComputeRunningProcesses"])) == OWN + 100
        assert seen["nvmlDeviceGetMemoryInfo_v2"] == [CAP, CAP - OWN - 100, OWN + 100, 0]


def test_a_pid_of_another_namespace_is_nobody_in_the_list(card: Card) -> None:
    base = slot_base(40)
    card.page.words[base + wire.S_FLAGS] = wire.own_namespace() + 1 << wire.NAMESPACE_SHIFT
    card.page.words[base + wire.S_LIVE] = 7 * MIB
    card.page.words[base + wire.S_PID] = card.neighbour.pid
    assert card.look(card.capped)["nvmlDeviceGetComputeRunningProcesses"] == [[card.probe.pid, OWN]]
    card.page.words[base + wire.S_FLAGS] = wire.own_namespace() << wire.NAMESPACE_SHIFT
    both = sorted([[card.probe.pid, OWN], [card.neighbour.pid, 7]])
    assert card.look(card.capped)["nvmlDeviceGetComputeRunningProcesses"] == both
    card.page.words[base + wire.S_PID] = 0


def test_a_process_without_a_slot_sees_the_cap_too(card: Card) -> None:
    for slot in range(1, wire.FIRST_LENT):
        if not card.page.words[slot_base(slot) + wire.S_PID]:
            card.page.words[slot_base(slot) + wire.S_FLAGS] = wire.own_namespace() << wire.NAMESPACE_SHIFT
            card.page.words[slot_base(slot) + wire.S_PID] = card.neighbour.pid
    command = [sys.executable, str(PROGRAM), "0", str(card.probe.pid)]
    done = subprocess.run(command, env=card.capped, capture_output=True, text=True, timeout=20)
    assert "every slot of the shared page is taken" in done.stderr
    assert json.loads(done.stdout)["nvmlDeviceGetMemoryInfo"] == [CAP, CAP - OWN, OWN]


ROOM = """
class Info(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2)]
nvml, card, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint()
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)) == 0
ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
print(ask(card, ctypes.byref(count), None), count.value)
exactly = (Info * count.value)()
print(ask(card, ctypes.byref(count), exactly), count.value, exactly[0].bytes >> 20)
"""


def test_room_for_as_many_as_were_said_is_enough(card: Card) -> None:
    with Script(card.capped, ROOM) as script:
        assert script.end() == f"7 2\n0 1 {OWN}\n"  # asked for their number alone: all of the card's


def test_the_driver_shows_the_cap_in_every_form(card: Card) -> None:
    text = """
small, whole, wide = ctypes.c_uint(), ctypes.c_uint(), [ctypes.c_size_t() for _ in range(3)]
assert cuda.cuMemGetInfo(ctypes.byref(small), ctypes.byref(whole)) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(wide[0]), ctypes.byref(wide[1])) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(wide[2]), 0) == 0
print(*[size.value >> 20 for size in (small, whole, *wide)])
assert cuda.cuDeviceTotalMem(ctypes.byref(small), 0) == 0
print(small.value >> 20)
"""
    with Script(card.capped, text) as script:
        left = CAP - OWN
        assert script.end() == f"{left} {CAP} {left} {CAP} {CAP}\n{CAP}\n"
