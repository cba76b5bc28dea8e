"""How many examples a property gets: few where all tests run, many times as many with CARPOOL_EXPLORE=1."""

from __future__ import annotations

from hypothesis import settings


def share_of_profile(percent: int) -> int:
    """So many percent of the profile's examples, which are 100 where nobody explores."""
    return percent * settings().max_examples // 100
