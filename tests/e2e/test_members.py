"""The processes of one job share its turn: they stop at one step, and whoever is behind is let through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.model import JobSpec
from carpool.daemon.files import JobFile, load_file
from carpool.daemon.jobs import LiveJob
from carpool.daemon.turns import Member
from carpool.wire import messages as m
from carpool.wire import page as pages

GRANT = m.Grant(lane_bytes=1, is_shared=False)


class Recorder:
    """A connection that only writes down what was sent."""

    def __init__(self) -> None:
        self.sent: list[m.Message] = []

    def send(self, message: m.Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        return


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LiveJob]:
    directory = tmp_path / "job-1"
    directory.mkdir()
    file = JobFile(job="job-1", number=1, spec=JobSpec(name="job"), argv=["x"], cwd="/")
    live = LiveJob(id=JobId("job-1"), directory=directory, file=file)
    live.job_page.make(live.directory)
    yield live
    live.close()
    live.remove()
    assert not directory.exists()


def add(job: LiveJob, pid: int, *, steps: int = 0) -> Member:
    assert job.page is not None
    slot = job.page.lend_slot(pid)
    assert slot is not None
    member = job.members[pid] = Member(peer=Recorder(), pid=pid, slot=slot, is_asking=True)
    job.page.slot(slot).steps = steps
    return member


def recall_word(job: LiveJob, member: Member) -> int:
    assert job.page is not None
    return job.page.slot(member.slot).recall


def test_one_process_is_recalled_at_its_next_boundary(job: LiveJob) -> None:
    member = add(job, 11, steps=40)
    job.turn.grant(GRANT)
    assert (member.is_holding, recall_word(job, member)) == (True, 0)
    job.turn.recall()
    assert recall_word(job, member) == 1
    assert not job.turn.lets_through(member)


def test_ranks_are_recalled_at_a_step_none_of_them_has_passed_or_is_about_to(job: LiveJob) -> None:
    ahead, behind = add(job, 11, steps=40), add(job, 12, steps=39)
    job.turn.grant(GRANT)
    job.turn.recall()
    assert recall_word(job, ahead) == recall_word(job, behind) == 42


def test_a_wild_count_of_steps_does_no_harm(job: LiveJob) -> None:
    wild, tame = add(job, 11, steps=2**64 - 2), add(job, 12, steps=40)
    job.turn.grant(GRANT)
    job.turn.recall()
    assert recall_word(job, wild) == recall_word(job, tame) < pages.LAPSED


def test_a_rank_that_asks_while_the_others_still_need_it_is_let_through(job: LiveJob) -> None:
    first, second = add(job, 11, steps=40), add(job, 12, steps=40)
    job.turn.grant(GRANT)
    second.is_holding = False  # it waits for its data
    job.turn.recall()
    assert job.turn.lets_through(second)
    second.is_asking = True
    job.turn.grant_member(second, GRANT)
    assert recall_word(job, first) == recall_word(job, second) == 42
    assert job.page is not None
    job.page.slot(second.slot).steps = 42
    assert not job.turn.lets_through(second), "it is where all stop"


def test_whoever_asks_while_the_job_has_its_turn_gets_it_at_once(job: LiveJob) -> None:
    add(job, 11)
    job.turn.grant(GRANT)
    late = add(job, 12)
    assert job.turn.lets_through(late)
    job.turn.revoke()
    assert not job.turn.lets_through(late)


def test_a_taken_turn_is_written_into_every_page_slot(job: LiveJob) -> None:
    members = [add(job, 11), add(job, 12)]
    job.turn.grant(GRANT)
    job.turn.revoke()
    assert [recall_word(job, member) for member in members] == [pages.LAPSED, pages.LAPSED]
    assert not any(member.is_holding for member in members)


def test_a_job_file_that_was_cut_short_is_no_job(job: LiveJob) -> None:
    job.save()
    assert load_file(job.directory) == job.file
    text = (job.directory / "job.json").read_bytes()
    (job.directory / "job.json").write_bytes(text[: len(text) // 2])
    assert load_file(job.directory) is None
