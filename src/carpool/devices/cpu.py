"""The machine's cores as one device, with a share of its memory as capacity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from carpool.devices.base import DeviceFacts, DeviceKind, count_and_size
from carpool.devices.libraries import find_library
from carpool.errors import UsageError
from carpool.units import format_bytes, parse_bytes

KIND = DeviceKind(
    name="cpu",
    library="meter",
    needs_library=False,
    has_turns_at_launches=False,
    can_oversubscribe=False,
    is_host_memory=True,
    knocks=True,
    parks_to_disk=True,
    can_move_jobs=True,
    starts_compute=True,
)
DEVICES_MAX = 64
ROOT = Path("/")
RAM_SHARE = 2  # half of the memory by default; the rest is for the operating system and the page cache

# libgomp spins 300,000 rounds (about 6 ms) at every barrier when its own threads fit the cores; it knows nothing of
# other processes. Where jobs take turns, 10,000 rounds are as fast, and a job whose turn ended is off the cores
# after 0.2 ms. 3,000 cost 4 %, and 1,000 a quarter, where operations are small. Where jobs compute side by side,
# spinning threads hold the cores that their neighbours need, and few rounds are best.
SPIN_ROUNDS = "10000"
SPIN_ROUNDS_BESIDE_OTHERS = "1000"


def find(size: str, lanes_max: int) -> list[DeviceFacts]:
    """One device of the asked size, or several: `2x4GiB`. Without a size, they divide what is offered."""
    number, each = count_and_size("cpu", size, most=DEVICES_MAX)
    capacity = parse_bytes(each) if each else default_capacity_bytes() // number
    total = memory_bytes()
    if capacity * number > total:
        whose = "this machine" if total == machine_bytes() else "this process's memory cgroup"
        raise UsageError(
            f"'cpu:{size}' asks for {format_bytes(capacity * number)}, {whose} has {format_bytes(total)}; choose"
            " a smaller size"
        )
    names = ["cpu"] if number == 1 else [f"cpu{index}" for index in range(number)]
    waits = environment(is_alone=number == lanes_max == 1)
    return [
        DeviceFacts(
            id=name, kind=KIND, capacity_bytes=capacity, title=title(), defaults=waits, hardware="the machine's cores"
        )
        for name in names
    ]


def memory_bytes(root: Path = ROOT) -> int:
    """What this process and its children may use: the machine's memory, or less in a memory cgroup."""
    return min([machine_bytes(), *_cgroup_limits(root)])


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_limits(root: Path) -> Iterator[int]:
    """The limits of the memory cgroups around this process, up the tree, in both versions of cgroups.

    In a container the path may be one of the machine outside. What it sees at the top is its own group then.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (
            (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes")
            if controllers
            else (root / "sys/fs/cgroup", "memory.max")
        )
        group = top / "/".join(part for part in path.split("/") if part not in ("", ".."))
        for each in (group, *group.parents):
            if each.is_relative_to(top):
                yield from _limit_in(each / name)


def _limit_in(file: Path) -> list[int]:
    """The limit in a file; none where there is no such file, or it says "max"."""
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []


def default_capacity_bytes() -> int:
    return memory_bytes() // RAM_SHARE


def title() -> str:
    return f"{os.cpu_count()} cores, {_model()}"


def environment(*, is_alone: bool = True) -> dict[str, str]:
    """How a job's threads wait; `is_alone` if only one job computes at a time."""
    return {"GOMP_SPINCOUNT": SPIN_ROUNDS if is_alone else SPIN_ROUNDS_BESIDE_OTHERS}


def meter_path() -> str | None:
    """The C library that counts a job's bytes; None where it could not be built."""
    return find_library(KIND.library)


def _model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown processor"
