"""The machine's cores as one device, with a share of its memory as capacity."""

from __future__ import annotations

import os
from pathlib import Path

from carpool.devices.libraries import find_library

RAM_SHARE = 2  # half of the memory by default; the rest is for the operating system and the page cache

# libgomp spins 300,000 rounds at every barrier when its own threads fit the cores; it does not know that other
# processes are there, so spinning threads hold the cores the turn's holder needs (1.8 to 2.6 times slower).
SPIN_ROUNDS = "1000"


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def default_capacity_bytes() -> int:
    return memory_bytes() // RAM_SHARE


def title() -> str:
    return f"{os.cpu_count()} cores, {_model()}"


def environment() -> dict[str, str]:
    return {"GOMP_SPINCOUNT": SPIN_ROUNDS}


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
