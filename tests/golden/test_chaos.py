"""The golden log of the lists of faults; a file of its own, so that logs are replayed side by side."""

from __future__ import annotations

import pytest

from tests.golden.replay import assert_equal


@pytest.mark.timeout(900)  # a minute of computing, on a machine that may be busy
def test_the_schedulers_answer_as_they_did_to_chaos() -> None:
    assert_equal("chaos")
