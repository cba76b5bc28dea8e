"""The list of kinds of devices, and what `--device` means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from carpool.devices import cpu, cuda, stub
from carpool.devices.base import DeviceFacts, DeviceKind
from carpool.errors import InternalError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A word that `--device` may begin with: how its devices are found, and whether this machine has any."""

    kind: DeviceKind
    find: Callable[[str, int], list[DeviceFacts]]  # what stands behind the colon, and lanes_max
    is_here: Callable[[], bool]


# In the order in which `--device auto` looks. The stand-in is a kind of CUDA that nobody gets without asking.
CHOICES = {
    "cuda": Choice(kind=cuda.KIND, find=cuda.find, is_here=cuda.is_here),
    "cpu": Choice(kind=cpu.KIND, find=cpu.find, is_here=lambda: True),
    "stub": Choice(kind=cuda.KIND, find=stub.find, is_here=lambda: False),
}
KINDS = {choice.kind.name: choice.kind for choice in CHOICES.values()}


def kind_named(name: str) -> DeviceKind:
    """The kind that a job's file or an answer of the daemon names."""
    if name not in KINDS:
        raise InternalError(f"there is no kind of device '{name}'; there are {', '.join(KINDS)}")
    return KINDS[name]


def find_devices(asked: str, *, lanes_max: int = 1) -> list[DeviceFacts]:
    """The devices of `--device`: auto, cpu, cpu:4GiB, cpu:2x4GiB, cuda, cuda:0,1, or stub:2x16GiB.

    `lanes_max` is how many jobs the policy lets compute on one device at once.
    """
    word, _, rest = asked.partition(":")
    if word == "auto" and not rest:
        word = next(word for word, choice in CHOICES.items() if choice.is_here())
    if word not in CHOICES:
        raise UsageError(f"unknown device '{asked}'; use auto, cpu, cpu:4GiB, cpu:2x4GiB, cuda, cuda:0 or stub:16GiB")
    return CHOICES[word].find(rest, lanes_max)
