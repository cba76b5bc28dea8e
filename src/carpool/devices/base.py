"""What a device is to carpool: a name, a capacity, and what a job needs in its environment to use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from carpool.devices import cpu, nvml, stub
from carpool.errors import UsageError
from carpool.units import format_bytes, parse_bytes

DEVICES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One device as found or asked for."""

    id: str
    kind: str  # cpu or cuda
    capacity_bytes: int
    title: str
    environment: dict[str, str] = field(default_factory=dict)
    library_directory: str = ""  # where its programs find their driver, if not where they always do


def find_devices(asked: str, *, lanes_max: int = 1) -> list[DeviceFacts]:
    """The devices of `--device`: auto, cpu, cpu:4GiB, cpu:2x4GiB, cuda, cuda:0,1, or stub:2x16GiB.

    `lanes_max` is how many jobs the policy lets compute on one device at once.
    """
    kind, _, rest = asked.partition(":")
    if kind == "auto" and not rest:
        return _cuda("") if nvml.count() else _cpu("", lanes_max)
    if kind == "cpu":
        return _cpu(rest, lanes_max)
    if kind == "cuda":
        return _cuda(rest)
    if kind == "stub":
        return _stub(rest or "16GiB")
    raise UsageError(f"unknown device '{asked}'; use auto, cpu, cpu:4GiB, cpu:2x4GiB, cuda, cuda:0 or stub:16GiB")


def _split(kind: str, size: str, most: int) -> tuple[int, str]:
    """How many devices, and the size of each: 2x4GiB is two of 4 GiB."""
    sizes = size.split(",")
    if len(sizes) > 1:
        raise UsageError(
            f"'{kind}:{size}' is a list; devices of one size are written like {kind}:{len(sizes)}x{sizes[0]}"
        )
    count, sep, each = size.partition("x")
    if not sep:
        return 1, size
    if not count.isdigit() or not 1 <= int(count) <= most:
        raise UsageError(f"'{kind}:{size}' asks for '{count}' devices; use 1 to {most}, like {kind}:2x4GiB")
    return int(count), each


def _stub(size: str) -> list[DeviceFacts]:
    cards, each = _split("stub", size, stub.CARDS_MAX)
    capacity = parse_bytes(each)
    directory = stub.library_directory()
    return [
        DeviceFacts(
            id=f"gpu{card}",
            kind="cuda",
            capacity_bytes=capacity,
            title=stub.TITLE,
            environment=stub.environment(card, cards=cards, card_bytes=capacity),
            library_directory=directory,
        )
        for card in range(cards)
    ]


def _cpu(size: str, lanes_max: int) -> list[DeviceFacts]:
    number, each = _split("cpu", size, DEVICES_MAX)
    capacity = parse_bytes(each) if each else cpu.default_capacity_bytes() // number
    total = cpu.memory_bytes()
    if capacity * number > total:
        raise UsageError(
            f"'cpu:{size}' asks for {format_bytes(capacity * number)}, this machine has {format_bytes(total)}; choose"
            " a smaller size"
        )
    names = ["cpu"] if number == 1 else [f"cpu{index}" for index in range(number)]
    waits = cpu.environment(is_alone=number == lanes_max == 1)
    return [
        DeviceFacts(id=name, kind="cpu", capacity_bytes=capacity, title=cpu.title(), environment=waits)
        for name in names
    ]


def _cuda(which: str) -> list[DeviceFacts]:
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
            kind="cuda",
            capacity_bytes=cards[index].memory_bytes,
            title=cards[index].name,
            environment={"CUDA_VISIBLE_DEVICES": cards[index].uuid},
        )
        for index in wanted
    ]
