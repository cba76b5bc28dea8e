"""Questions change nothing and are not journalled (I4), and their answers are as fresh as the pages (I5)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from carpool import calls
from carpool.core.node import model
from carpool.core.node.events import LeaseAsked
from carpool.core.node.model import Needs
from carpool.core.node.words.views import DevicePicture, JobPicture, LanePicture, NodePicture
from carpool.daemon.jobs import LiveJob
from carpool.daemon.turns import Member
from tests.daemon.node import ME, MIB, Node, in_node

NEEDS = Needs(persistent_bytes=MIB, ephemeral_bytes=0)


def rows(node: Node, directory: Path) -> int:
    assert node.journal.write_out()
    with closing(sqlite3.connect(directory / "journal.db")) as db:
        (count,) = db.execute("select count(*) from log").fetchone()
    return int(count)


def add_process(live: LiveJob) -> Member:
    """This process takes the job's turns."""
    assert live.page is not None
    slot = live.page.lend_slot(os.getpid())
    assert slot is not None
    member = live.members[os.getpid()] = Member(peer=None, pid=os.getpid(), slot=slot)
    return member


@pytest.mark.parametrize("verb", ["ps", "status", "job"])
def test_i4_a_hundred_questions_add_no_row_and_no_decision(tmp_path: Path, verb: str) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=NEEDS)
        member = add_process(live)
        node.driver.tell(LeaseAsked(job=live.id))
        assert live.turn.is_granted
        decisions: list[object] = []
        node.driver.observers.add(Noting(decisions))
        before = rows(node, tmp_path)
        assert live.page is not None
        for step in range(100):  # the job computes meanwhile
            live.page.slot(member.slot).steps = 10 + step
            assert node.queries.answer(verb, {"job": "a", "all": True}, uid=ME.uid) is not None
        assert (rows(node, tmp_path), decisions) == (before, [])

    in_node(tmp_path, act)


class Noting:
    def __init__(self, kept: list[object]) -> None:
        self._kept = kept

    def note(self, now: int, event: object, effects: object) -> None:
        self._kept.append(event)


def test_i5_steps_and_bytes_are_those_of_the_page_at_the_moment(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=NEEDS)
        member = add_process(live)
        assert live.page is not None
        live.page.slot(member.slot).steps = 77
        live.page.words[live.page.slot(member.slot).base + 1] = 5 * MIB  # what its meter counts
        shown = node.queries.ps(with_ended=False)
        assert (shown.jobs[0].steps, shown.jobs[0].live_bytes) == (77, 5 * MIB)
        assert shown.devices[0].live_bytes == 5 * MIB
        assert node.queries.status().devices[0].live_bytes == 5 * MIB
        assert node.queries.job("a").job.steps == 77

    in_node(tmp_path, act)


def test_the_timer_that_looks_tells_the_core_what_the_page_says(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=NEEDS)
        member = add_process(live)
        assert live.page is not None
        live.page.slot(member.slot).steps = 77
        node.driver._note()
        picture = node.driver.scheduler.picture_job(live.id, now=2**60)
        assert picture is not None
        assert picture.steps == 77

    in_node(tmp_path, act)


@pytest.mark.parametrize(
    ("picture", "answer", "more"),
    [
        (
            JobPicture,
            calls.Job,
            {"pids", "argv", "gradient_bytes", "device_ns", "processes", "orphans"}
            | {"unwritable", "limit_loss", "refusals", "start", "container", "uid"},
        ),
        (LanePicture, calls.Lane, set()),
        (DevicePicture, calls.Device, set()),
        (NodePicture, calls.Node, {"now_ns"}),
        (Needs, calls.Needs, set()),
    ],
    ids=lambda kind: getattr(kind, "__name__", ""),
)
def test_an_answer_has_every_field_of_the_cores_picture(
    picture: type, answer: type[msgspec.Struct], more: set[str]
) -> None:
    assert set(answer.__struct_fields__) == {field.name for field in fields(picture)} | more


def test_the_states_that_end_a_job_are_the_cores() -> None:
    assert {state.value for state in model.ENDED} == calls.ENDED


def test_a_job_that_is_over_is_shown_without_what_only_a_live_one_has(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=NEEDS)
        live = calls.as_dict(node.queries.job("a").job)
        assert {"pids", "processes", "gradient_bytes", "device_ns"} <= set(live)
        assert "refusals" not in live
        over = calls.as_dict(calls.Job(id="a", state="finished", refusals=""))
        assert not {"pids", "processes", "gradient_bytes", "device_ns"} & set(over)
        assert over["refusals"] == ""

    in_node(tmp_path, act)
