"""Jobs as people see them: what their pages say comes before what the core was told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from carpool.daemon import translate

S = 1_000_000_000


@pytest.mark.parametrize(
    ("told", "since", "reached", "silent"),
    [
        (9 * S, 60 * S, 99 * S, 1 * S),  # nobody waits for it: the core hears of its steps every ten seconds only
        (0, 60 * S, 95 * S, 5 * S),  # told late of a step that was made early
        (3 * S, 3 * S, 90 * S, 3 * S),  # its newest boundary was before it got the turn
        (4 * S, 60 * S, 0, 4 * S),  # a page that names no boundary
        (None, 60 * S, 95 * S, None),  # it holds no turn
    ],
)
def test_a_holder_is_silent_since_the_boundary_that_its_page_names(
    told: int | None, since: int, reached: int, silent: int | None
) -> None:
    picture = SimpleNamespace(silent_ns=told, state_ns=since)
    live = SimpleNamespace(turn=SimpleNamespace(boundary_ns=lambda: reached))
    assert translate._silent_ns(cast(Any, picture), cast(Any, live), now=100 * S) == silent
