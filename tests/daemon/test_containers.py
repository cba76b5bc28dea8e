"""Calls from inside a container: what they may not reach."""

from __future__ import annotations

import pytest

from carpool.daemon import containers
from carpool.errors import RefusedError


@pytest.mark.parametrize(("verb", "is_others"), [("tenant", False), ("cancel", True), ("suspend", True)])
def test_x17_root_in_a_container_is_no_admin_outside_of_it(
    verb: str, is_others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "container_of", lambda pid: "0123456789ab")
    with pytest.raises(RefusedError, match="from inside a container"):
        containers.check_call(verb, 17, is_others=is_others)
    containers.check_call("cancel", 17)  # one's own
