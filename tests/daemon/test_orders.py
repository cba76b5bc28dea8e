"""What people order: pages, files and refusals as they come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carpool.core.kernel.ids import DeviceId
from carpool.core.node.events import DeviceAdded, JobDetached, JobExited, LeaseAsked
from carpool.core.node.model import Departure, Needs, Why
from carpool.core.node.moves import departures
from carpool.daemon import progress
from carpool.daemon.files import load_file
from carpool.daemon.translate import spec_said
from carpool.devices.base import DeviceFacts
from carpool.devices.kinds import KINDS
from carpool.errors import RefusedError, UsageError
from tests.daemon.node import ME, MIB, Node, in_node


def test_a_job_for_which_no_byte_is_left_has_a_cap_all_the_same(tmp_path: Path) -> None:
    """In the page a cap of 0 is none."""

    def act(node: Node) -> None:
        node.adopt("full", live_bytes=MIB, needs=Needs(persistent_bytes=100 * MIB, ephemeral_bytes=0))
        late = node.adopt("late", live_bytes=0, needs=None)
        node.driver.tell(LeaseAsked(job=late.id))
        assert late.page is not None
        assert late.turn.is_granted
        assert late.page.header.cap_bytes == 1

    in_node(tmp_path, act)


def test_half_a_character_in_an_order_is_refused_like_any_other_bad_value(tmp_path: Path) -> None:
    """Arguments of a program may have some; what must be a size, a name or a choice may not."""

    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        half = "\ud800"
        for field in ("cap_bytes", "weight_milli", "share_milli", "may_end"):
            with pytest.raises(UsageError, match="^the new size cannot be read: "):
                node.orders.resize({"job": "a", field: half})
        for field in ("spec", "argv", "environment", "inherited"):
            with pytest.raises(UsageError, match="^the submission cannot be read: "):
                node.orders.submit(
                    {"spec": {}, "argv": ["true"], "cwd": "/", "environment": {}, field: half}, caller=ME
                )
        for field in ("on_hog", "on_orphans", "cap_bytes", "steps", "may_park"):
            with pytest.raises(UsageError, match="^the job's options cannot be read: "):
                spec_said({"name": "a", field: half})

    in_node(tmp_path, act)


def test_a_later_order_to_write_a_checkpoint_leaves_the_first_one_whole_for_its_reader(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        (live.directory / "checkpoint.ready").touch()
        node.orders.checkpoint("a", "/somewhere/with/a/long/name", stop=False)
        with (live.directory / "checkpoint.order").open("rb") as reader:
            node.orders.checkpoint("a", "/x", stop=True)
            assert json.load(reader) == {"number": 1, "file": "/somewhere/with/a/long/name", "stop": False}
        assert json.loads((live.directory / "checkpoint.order").read_bytes())["number"] == 2

    in_node(tmp_path, act)


def test_a_job_outside_turns_can_be_neither_suspended_nor_resumed(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        with pytest.raises(RefusedError, match="job a is not suspended"):
            node.orders.suspend("a", is_resumed=True)
        node.driver.tell(JobDetached(job=live.id, reason="it asked to"))
        for verb in ("suspended", "resumed"):
            with pytest.raises(RefusedError, match=f"job a cannot be {verb}: "):
                node.orders.suspend("a", is_resumed=verb == "resumed")

    in_node(tmp_path, act)


def test_what_somebody_asked_for_is_in_the_jobs_file_until_it_is_taken_back(tmp_path: Path) -> None:
    """Whatever the reason: the next daemon holds the job for all of them."""

    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        assert node.orders.suspend("a", is_resumed=False).job.departures == ["suspended"]
        kept = load_file(live.directory)
        assert kept is not None and kept.held_for == ["suspended"]
        assert progress.adopted(live, None).held_for == (Why.SUSPENDED,)
        node.orders.suspend("a", is_resumed=True)
        assert progress.adopted(live, None).held_for == ()

    in_node(tmp_path, act)


def test_a_job_that_makes_room_for_an_allocation_is_not_to_be_resumed(tmp_path: Path) -> None:
    """It was said to be suspended, and `resume` did nothing."""

    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        scheduler = node.driver.scheduler
        departures.add(scheduler._node, scheduler._node.jobs[live.id], Why.GIVES_WAY, Departure(since_ns=1))
        with pytest.raises(RefusedError, match="job a is not suspended: "):
            node.orders.suspend("a", is_resumed=True)

    in_node(tmp_path, act)


def test_a_job_that_is_over_is_not_said_to_be_resized(tmp_path: Path) -> None:
    """The core rejects it; whoever asked was told that it was done."""

    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        node.driver.scheduler.handle(JobExited(job=live.id, code=0), now=2**60)
        with pytest.raises(RefusedError, match="job a cannot be resized: "):
            node.orders.resize({"job": "a", "weight_milli": 2000})

    in_node(tmp_path, act)


def test_a_share_with_more_at_least_than_at_most_is_refused_in_words(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        with pytest.raises(
            UsageError, match="asks for at least 60 % and at most 30 %; the second must not be smaller"
        ):
            node.orders.resize({"job": "a", "share_milli": [600, 300]})

    in_node(tmp_path, act)


def test_a_gpu_is_refused_for_ever_before_anything_that_would_pass(tmp_path: Path) -> None:
    """Nobody is told to try again later what can never be done."""

    def act(node: Node) -> None:
        gpus = [
            DeviceFacts(id=name, kind=KINDS["cuda"], capacity_bytes=100 * MIB, title="a card")
            for name in ("cpu", "gpu1")
        ]
        node.use_devices(gpus)
        node.driver.tell(DeviceAdded(device=DeviceId("gpu1"), capacity_bytes=100 * MIB))
        live = node.adopt("a", live_bytes=MIB, needs=None)
        with pytest.raises(RefusedError, match="keeps the GPU it was started with; end it and start it there: "):
            node.orders.migrate("a", "gpu1")
        (live.directory / "checkpoint.ready").touch()
        with pytest.raises(RefusedError, match="; write it to a file and start it there: carpool checkpoint"):
            node.orders.migrate("a", "gpu1")
        with pytest.raises(RefusedError, match="job a is on cpu already"):
            node.orders.migrate("a", "cpu")

    in_node(tmp_path, act)


def test_a_device_that_is_not_here_is_a_misuse(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        with pytest.raises(UsageError, match="job a cannot move to gpu7: there is no such device; there are cpu"):
            node.orders.migrate("a", "gpu7")

    in_node(tmp_path, act)


def test_a_program_that_never_came_to_torch_is_told_that_only_torch_can_be_written(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=None)
        with pytest.raises(
            RefusedError, match="only PyTorch programs .*; if it is one, start it with: .*; any other must save its"
        ):
            node.orders.checkpoint("a", "/x", stop=False)

    in_node(tmp_path, act)


def test_a_daemon_with_jobs_is_not_stopped_and_counts_them(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        for name, words in (
            ("a", r"1 job still runs \(a\); cancel it first"),
            ("b", r"2 jobs still run \(a, b\); can"),
        ):
            node.adopt(name, live_bytes=MIB, needs=None)
            with pytest.raises(RefusedError, match=words):
                node.orders.stop(is_forced=False)

    in_node(tmp_path, act)
