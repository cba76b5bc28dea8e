"""The machine's cores as one device, with a share of its memory as capacity."""

from __future__ import annotations

import os
from pathlib import Path

from carpool.devices.libraries import find_library

RAM_SHARE = 2  # half of the memory by default; the rest is for the operating system and the page cache

# libgomp spins 300,000 rounds (some 6 ms) at every barrier when its own threads fit the cores; it does not know that
# other processes are there. In turns, 10,000 are as fast as that, and a job that gave its turn back is off the cores
# after 0.2 ms; 3,000 cost 4 % and 1,000 a quarter where operations are small. Side by side spinning threads hold the
# cores their neighbours need, and few rounds are best.
SPIN_ROUNDS = "10000"
SPIN_ROUNDS_BESIDE_OTHERS = "1000"


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def default_capacity_bytes() -> int:
    return memory_bytes() // RAM_SHARE


def title() -> str:
    return f"{os.cpu_count()} cores, {_model()}"


def environment(*, is_alone: bool = True) -> dict[str, str]:
    """How a job's threads wait; `is_alone` if only one job computes at a time."""
    return {"GOMP_SPINCOUNT": SPIN_ROUNDS if is_alone else SPIN_ROUNDS_BESIDE_OTHERS}


def meter_path() -> str | None:
    """The C library that counts a job's bytes; None where it could not be built."""
    return find_library("meter")


def _model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown processor"
