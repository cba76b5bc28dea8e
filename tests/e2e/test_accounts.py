"""Where a job's wall time went: the rows add up, also for jobs that were parked and outlived a daemon."""

from __future__ import annotations

import re
import time

import pytest

from tests.e2e.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOOP = ["held.py", "sgd", "--width", "200", "--pause", "0.01"]
SLOW_INPUT = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 150
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(8)
torch.set_num_threads(1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Slow(), batch_size=1):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def test_an_account_goes_on_under_the_next_daemon_and_ends_in_a_sentence(node: Node) -> None:
    """Two jobs share; one of them is parked for a while; the daemon is killed in the middle."""
    node.start(quantum="20ms")
    job = node.run(*LOOP, "--steps", "200", options=["--name", "first", "--summary"])
    node.wait_steps("first", 5)
    assert node.carpool("suspend", "first").code == 0
    node.run(*LOOP, "--steps", "100000", options=["--name", "second"])
    node.wait_steps("second", 60)  # takes longer than the journal is kept in memory
    before, kept = node.job("first"), node.job("second")
    node.kill_daemon()
    time.sleep(0.5)
    node.start(quantum="20ms")
    after = node.job("first")
    spent, spent_before = after["spent_ns"], before["spent_ns"]
    for rows in (("start",), ("run", "unused"), ("turn",), ("move",)):  # its page knows what was unused
        assert sum(spent.get(row, 0) for row in rows) == sum(spent_before.get(row, 0) for row in rows), rows
    assert after["spent_ns"]["parked"] >= before["spent_ns"]["parked"] + 450_000_000, "it was parked all along"
    ran = node.job("second")["spent_ns"]
    had, had_before = (spent["run"] + spent.get("unused", 0) for spent in (ran, kept["spent_ns"]))
    assert had >= had_before + 450_000_000, "it kept its turn all along, though it pauses in it"
    assert "away" not in ran, ran
    assert after["served_ns"] + spent.get("unused", 0) >= before["served_ns"] + spent_before.get("unused", 0) > 0
    assert after["waited_ns"] >= before["waited_ns"]
    assert node.carpool("resume", "first").code == 0
    ended = job.wait()
    assert ended.code == 0
    done = node.wait_state("first", "finished")
    [came] = [event["at_ns"] for event in node.journal("JobSubmitted") if event["job"] == done["id"]]
    [went] = [event["at_ns"] for event in node.journal("JobExited") if event["job"] == done["id"]]
    assert abs(sum(done["spent_ns"].values()) - (went - came)) <= 0.02 * (went - came)
    assert re.fullmatch(r"carpool: job first-\d: .* instead of .*: .* parked.*\n", ended.err), ended.err
    assert "waiting for job second-" in ended.err


def test_a_job_that_waits_for_its_own_input_is_told_so(node: Node) -> None:
    node.start()
    script = node.files / "slow_input.py"
    script.write_text(SLOW_INPUT)
    ended = node.run(str(script), options=["--name", "slow", "--summary"]).wait()
    assert (ended.code, ended.err) == (0, ""), "alone it lost nothing to others"
    spent = node.wait_state("slow", "finished")["spent_ns"]
    assert spent["input"] >= 100 * 20_000_000, spent
    assert spent["run"] < spent["input"], spent
    said = node.carpool("explain", "slow").out.decode()
    assert re.search(r"its own input +\S+ s +\d+ %", said), said
