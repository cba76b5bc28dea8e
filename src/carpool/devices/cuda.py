"""NVIDIA GPUs as devices: one each, with the memory that NVML reports."""

from __future__ import annotations

from carpool.devices import nvml
from carpool.devices.base import DeviceFacts, DeviceKind
from carpool.errors import UsageError

KIND = DeviceKind(
    name="cuda",
    library="gpu",
    needs_library=True,
    has_turns_at_launches=True,
    can_oversubscribe=True,
    is_host_memory=False,
    knocks=False,
    parks_to_disk=False,
    can_move_jobs=False,
    starts_compute=False,
)


def is_here() -> bool:
    return nvml.count() > 0


def find(which: str, lanes_max: int) -> list[DeviceFacts]:
    """All GPUs, or those with the given numbers: `0,2`."""
    cards = {card.index: card for card in nvml.cards()}
    if not cards:
        raise UsageError(f"no NVIDIA GPU was found ({nvml.trouble()}); use --device cpu")
    wanted = sorted(cards)
    if which:
        parts = which.split(",")
        if not all(part.isdigit() and int(part) in cards for part in parts):
            trouble = nvml.trouble()
            raise UsageError(
                f"'cuda:{which}' names a GPU that is not here; choose from {', '.join(map(str, wanted))}"
                + (f" ({trouble})" if trouble else "")
            )
        wanted = sorted({int(part) for part in parts})
    return [
        DeviceFacts(
            id=f"gpu{index}",
            kind=KIND,
            capacity_bytes=cards[index].memory_bytes,
            title=cards[index].name,
            environment={"CUDA_VISIBLE_DEVICES": cards[index].uuid},
            hardware=cards[index].uuid,
        )
        for index in wanted
    ]
