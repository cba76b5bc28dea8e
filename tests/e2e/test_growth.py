"""Jobs whose memory grows while they run: each fits alone, together they do not, and nobody gave --memory."""

from __future__ import annotations

import re

import pytest

from carpool.units import parse_bytes
from tests.e2e.alone import Alone
from tests.e2e.node import Node, Started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DEVICE = "cpu:512MiB"
GROWS = ["eats_memory.py", "--mib", "12", "--steps", "24"]  # to 288 MiB and what torch itself takes
COMES_LARGE = ["eats_memory.py", "--mib", "1", "--steps", "40", "--first", "260"]


def begin_together(node: Node, *program: str, options: list[str]) -> list[Started]:
    """Two jobs that come to their first step at the same time."""
    gate = node.files / "gate"
    names = ("one", "two")
    jobs = [node.run(*program, "--after", str(gate), options=["--name", name, *options]) for name in names]
    for job in jobs:
        job.wait_line("ready")
    gate.touch()
    return jobs


@pytest.mark.parametrize("program", [GROWS, COMES_LARGE], ids=["in its turns", "before its first turn"])
def test_two_jobs_that_outgrow_the_device_together_both_finish(node: Node, alone: Alone, program: list[str]) -> None:
    node.start(device=DEVICE, quantum="20ms")
    for job in begin_together(node, *program, options=[]):
        ended = job.wait()
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == alone.output(*program)
    assert not node.journal("DenyMemory")


def test_of_two_half_filled_jobs_that_cannot_leave_one_is_told_at_once(node: Node, alone: Alone) -> None:
    """A thread of its own keeps each from being parked; both would wait for a day."""
    node.start(device=DEVICE, quantum="20ms")
    jobs = begin_together(node, *GROWS, "--thread", options=["--wait-memory"])
    ended = sorted((job.wait() for job in jobs), key=lambda each: each.code)
    assert [each.code for each in ended] == [0, 1]
    assert (ended[0].err, ended[0].out) == ("", alone.output(*GROWS))
    assert "RuntimeError" in ended[1].err
    said = re.search(
        r"^carpool: out of memory: job (one|two)-\d holds (\d+) MiB and asked for (\S+ [KM]iB) more; of the 512 MiB"
        r" of cpu it can have (\d+) MiB: (one|two)-\d has (\d+) MiB(?: and \S+ \S+ is for turns)?; nobody there can"
        r" go on without more, and this job has the least to lose \(\S+ m?s of device time\): start them with"
        r" --memory, or one by one;",
        ended[1].err,
        re.MULTILINE,
    )
    assert said is not None, ended[1].err
    job, holds, asked, allowed, other, has = said.groups()
    assert job != other
    wanted = int(holds) + parse_bytes(asked) / (1 << 20)
    assert wanted + 1 > int(allowed), "what it asked for was not there; both are rounded"
    assert int(allowed) + int(has) <= 513, "and what it can have is no more than the other leaves"
