"""GPUs that NVML cannot read are left out and named; the others keep their numbers."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from carpool.devices import nvml
from carpool.devices.kinds import find_devices
from carpool.errors import UsageError


class NVMLError(Exception):
    """As NVIDIA's package has it."""


class Pynvml(ModuleType):
    """NVIDIA's package on a machine with three cards, some of which have fallen off the bus."""

    NVMLError = NVMLError

    def __init__(self, broken: set[int], *, is_whole: bool = True) -> None:
        super().__init__("pynvml")
        self._broken = broken
        self._is_whole = is_whole

    def nvmlInit(self) -> None:  # noqa: N802 - NVIDIA's names
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self._is_whole:
            raise NVMLError("Unknown Error")
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"card {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle in self._broken:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(total=16 << 30)


def test_a_card_that_cannot_be_read_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Pynvml({0}))
    found = {device.id: device.environment["CUDA_VISIBLE_DEVICES"] for device in find_devices("auto")}
    assert found == {"gpu1": "GPU-1", "gpu2": "GPU-2"}
    assert [device.id for device in find_devices("cuda:2")] == ["gpu2"]
    with pytest.raises(UsageError, match=r"choose from 1, 2 \(GPU 0 cannot be read, NVML says: GPU is lost\)"):
        find_devices("cuda:0")


def test_without_a_readable_card_the_cores_are_used_and_cuda_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, why in (
        (Pynvml({0, 1, 2}), "GPU 2 cannot be read"),
        (Pynvml(set(), is_whole=False), "Unknown Error"),
    ):
        monkeypatch.setitem(sys.modules, "pynvml", package)
        assert [device.kind.name for device in find_devices("auto")] == ["cpu"]
        with pytest.raises(UsageError, match=why):
            find_devices("cuda")


def test_nothing_is_said_of_cards_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Pynvml(set()))
    assert (nvml.count(), nvml.trouble()) == (3, "")


def test_too_large_a_device_is_refused_as_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'cpu:2x400TiB' asks for 800 TiB, this machine has [0-9.]+ .iB; choose"):
        find_devices("cpu:2x400TiB")
