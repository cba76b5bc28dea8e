"""NVIDIA GPUs as NVML reports them. Thin on purpose: no machine without a GPU can test more than its absence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    index: int
    uuid: str
    name: str
    memory_bytes: int


def cards() -> list[Card]:
    """Every GPU of this machine; empty where there is none or NVML cannot be used (see trouble)."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        found.append(
            Card(
                index=index,
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                name=str(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(memory.total),
            )
        )
    return found


def count() -> int:
    return len(cards())


def trouble() -> str:
    """Why no card was found, in words."""
    try:
        import pynvml
    except ImportError:
        return "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML says: {error}"
    return f"NVML counts {pynvml.nvmlDeviceGetCount()} devices"
