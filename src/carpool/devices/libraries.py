"""Where carpool's C libraries are: beside the package, or where CARPOOL_NATIVE says (tests build there)."""

from __future__ import annotations

import os
from pathlib import Path

BUILT = Path(__file__).parents[1] / "_native"


def find_library(name: str) -> str | None:
    """The path of a library that was built with the package; None where it could not be."""
    asked = os.environ.get("CARPOOL_NATIVE")
    places = [Path(asked), BUILT] if asked else [BUILT]
    for place in places:
        for built in sorted(place.glob(f"{name}.*so")):
            return str(built)
    return None
