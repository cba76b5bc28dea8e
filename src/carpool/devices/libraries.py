"""Where carpool's C libraries are: beside the package, or where CARPOOL_NATIVE says, for tests that build others."""

from __future__ import annotations

import os
from pathlib import Path

BUILT = Path(__file__).parents[1] / "_native"


def find_library(name: str) -> str | None:
    """The path of a library that was built with the package; None if it was not built."""
    place = Path(os.environ.get("CARPOOL_NATIVE") or BUILT)
    return next((str(built) for built in sorted(place.glob(f"{name}.*so"))), None)
