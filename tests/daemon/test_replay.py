"""What a daemon forgets is in its journal as well, so that a replay forgets it at the same moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobExited, JobForgotten
from carpool.core.node.model import Needs
from carpool.daemon import driver
from carpool.journal import reader
from carpool.sim.journal import replay
from tests.daemon.node import MIB, Node, in_node

NEEDS = Needs(persistent_bytes=MIB, ephemeral_bytes=0)


def test_j2_a_journal_of_a_daemon_that_forgot_jobs_replays_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "ENDED_KEPT", 1)

    def act(node: Node) -> None:
        for name in "abc":
            node.adopt(name, live_bytes=MIB, needs=NEEDS)
            node.driver.tell(JobExited(job=JobId(name), code=0))
        assert [job.id for job in node.driver.scheduler.picture(now=1 << 62).jobs] == ["c"]

    in_node(tmp_path, act)
    recording = reader.read(tmp_path / "journal.db")
    forgotten = [call.event.job for call in recording.calls if isinstance(call.event, JobForgotten)]
    assert forgotten == ["a", "b"]
    replayed = replay(recording)
    assert replayed.difference == ""
    assert sorted(replayed.pictures) == ["a", "b", "c"], "what-if questions still know them"
