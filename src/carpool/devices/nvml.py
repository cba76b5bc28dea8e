"""NVIDIA GPUs as NVML reports them. Thin on purpose: a machine without a GPU can only test that there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    index: int
    uuid: str
    name: str
    memory_bytes: int


def cards() -> list[Card]:
    """Every GPU of this machine that can be read; none where there is no GPU or no NVML (see trouble)."""
    return _look()[0]


def count() -> int:
    return len(cards())


def trouble() -> str:
    """A sentence why no card was found, or which of them cannot be read; empty if there is no trouble."""
    return _look()[1]


def _look() -> tuple[list[Card], str]:
    try:
        import pynvml
    except ImportError:
        return [], "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        number = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return [], f"NVML says: {error}"
    found, troubles = [], []
    for index in range(number):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = str(pynvml.nvmlDeviceGetUUID(handle)), str(pynvml.nvmlDeviceGetName(handle))
            memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        except pynvml.NVMLError as error:
            troubles.append(f"GPU {index} cannot be read, NVML says: {error}")
        else:
            found.append(Card(index=index, uuid=uuid, name=name, memory_bytes=memory_bytes))
    return found, "; ".join(troubles) if number else "NVML counts no device"
