"""The golden log of newer events and effects; a file of its own, so that logs are replayed side by side."""

from __future__ import annotations

from tests.golden.replay import assert_equal


def test_the_schedulers_answer_as_they_did_to_newer_events() -> None:
    assert_equal("newer")
