"""What a device is to carpool: a kind, which says what carpool can do there, and the facts of one device.

Each kind has a module of its own here with a `KIND` and a function that finds its devices; kinds.py lists them. No
other code asks for a kind by its name: it asks what the kind can do. docs/devices.md says how to add a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carpool.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """What carpool can do on devices of one kind."""

    name: str  # torch's word for such a device; jobs find it in CARPOOL_DEVICE_KIND
    library: str  # the C library that is preloaded into programs there: it counts bytes and keeps to the cap
    needs_library: bool  # only that library keeps limits: a job with one is refused where it cannot be preloaded
    has_turns_at_launches: bool  # that library takes turns too, for programs that are not PyTorch
    can_oversubscribe: bool  # `--oversubscribe`: what goes beyond the cap is put elsewhere, more slowly
    is_host_memory: bool  # a cap counts the host's own memory, all of it: Python's too
    knocks: bool  # an allocation that waits for memory knocks at the daemon, which decides how long it waits
    parks_to_disk: bool  # parked jobs are in files, so they take no part of the host's budget
    can_move_jobs: bool  # a running process can go on, on another device of this kind
    starts_compute: bool  # a program that starts up computes on the device, beside whoever has the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One device as found or asked for."""

    id: str
    kind: DeviceKind
    capacity_bytes: int
    title: str
    environment: dict[str, str] = field(default_factory=dict)  # what a job there must have in its environment
    defaults: dict[str, str] = field(default_factory=dict)  # the same, but a value that the user has set stays
    library_directory: str = ""  # where its programs find their driver, if not where they always do
    hardware: str = ""  # what of the machine it is: a card, or all cores; empty for a stand-in


def count_and_size(kind: str, size: str, *, most: int) -> tuple[int, str]:
    """How many devices `--device` asks for, and the size of each: 2x4GiB is two of 4 GiB."""
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
