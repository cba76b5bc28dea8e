"""What the command line asks of the daemon: pages, files and refusals as they come out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.events import DeviceAdded, JobAdopted, JobDetached, LeaseAsked
from carpool.core.node.model import JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.daemon.calls import Calls
from carpool.daemon.config import DaemonConfig
from carpool.daemon.driver import Driver
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.journal import Journal
from carpool.daemon.starter import Starter
from carpool.devices.base import DeviceFacts
from carpool.errors import RefusedError, UsageError
from carpool.policies import POLICIES
from carpool.wire import page as pages
from carpool.wire.places import Places

MIB = 1 << 20
CPU = DeviceId("cpu")


class Node:
    """A daemon's driver and calls, with jobs that outlived the last one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.journal = Journal(directory / "journal.db", version="test", config="{}")
        places, scheduler = Places(run=directory, state=directory), Scheduler(POLICIES["fair"], Settings())
        self.starter = starter = Starter(places, [])
        self.driver = Driver(scheduler, self.journal, starter, lambda: None)
        self.calls = Calls(self.driver, starter, DaemonConfig(), [], lambda: None)
        self.driver.tell(DeviceAdded(device=CPU, capacity_bytes=100 * MIB))

    def adopt(self, name: str, *, live_bytes: int, needs: Needs | None) -> LiveJob:
        job, spec = JobId(name), JobSpec(name=name)
        (self._directory / name).mkdir()
        file = JobFile(job=name, number=1, spec=spec, argv=["python", "-c", "print(1)"], cwd="/")
        live = self.driver.jobs[job] = LiveJob(id=job, directory=self._directory / name, file=file)
        live.make_page()
        self.driver.tell(
            JobAdopted(job=job, spec=spec, device=CPU, holding=False, steps=1, live_bytes=live_bytes, needs=needs)
        )
        return live


def in_node(directory: Path, act: Callable[[Node], None]) -> None:
    async def live() -> None:
        node = Node(directory)
        act(node)
        node.journal.close()

    asyncio.run(live())


def test_a_job_for_which_no_byte_is_left_has_a_cap_all_the_same(tmp_path: Path) -> None:
    """In the page a cap of 0 is none."""

    def act(node: Node) -> None:
        node.adopt("full", live_bytes=MIB, needs=Needs(persistent_bytes=100 * MIB, ephemeral_bytes=0))
        late = node.adopt("late", live_bytes=0, needs=None)
        node.driver.tell(LeaseAsked(job=late.id))
        assert late.page is not None
        assert late.is_granted
        assert late.page.words[pages.H_CAP] == 1

    in_node(tmp_path, act)


def test_a_later_order_to_write_a_checkpoint_leaves_the_first_one_whole_for_its_reader(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        (live.directory / "checkpoint.ready").touch()
        node.calls.checkpoint("a", "/somewhere/with/a/long/name", stop=False)
        with (live.directory / "checkpoint.order").open("rb") as reader:
            node.calls.checkpoint("a", "/x", stop=True)
            assert json.load(reader) == {"number": 1, "file": "/somewhere/with/a/long/name", "stop": False}
        assert json.loads((live.directory / "checkpoint.order").read_bytes())["number"] == 2

    in_node(tmp_path, act)


def test_a_job_outside_turns_can_be_neither_suspended_nor_resumed(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        with pytest.raises(RefusedError, match="job a is not suspended"):
            node.calls.suspend("a", is_resumed=True)
        node.driver.tell(JobDetached(job=live.id, reason="it asked to"))
        for verb in ("suspended", "resumed"):
            with pytest.raises(RefusedError, match=f"job a cannot be {verb}: "):
                node.calls.suspend("a", is_resumed=verb == "resumed")

    in_node(tmp_path, act)


def test_a_share_with_more_at_least_than_at_most_is_refused_in_words(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        with pytest.raises(
            UsageError, match="asks for at least 60 % and at most 30 %; the second must not be smaller"
        ):
            node.calls.resize({"job": "a", "share_milli": [600, 300]})

    in_node(tmp_path, act)


def test_a_gpu_is_refused_for_ever_before_anything_that_would_pass(tmp_path: Path) -> None:
    """Nobody is told to try again later what can never be done."""

    def act(node: Node) -> None:
        gpus = [
            DeviceFacts(id=name, kind="cuda", capacity_bytes=100 * MIB, title="a card") for name in ("cpu", "gpu1")
        ]
        node.calls = Calls(node.driver, node.starter, DaemonConfig(), gpus, lambda: None)
        node.driver.tell(DeviceAdded(device=DeviceId("gpu1"), capacity_bytes=100 * MIB))
        live = node.adopt("a", live_bytes=MIB, needs=None)
        with pytest.raises(RefusedError, match="keeps the GPU it was started with; end it and start it there: "):
            node.calls.migrate("a", "gpu1")
        (live.directory / "checkpoint.ready").touch()
        with pytest.raises(RefusedError, match="; write it to a file and start it there: carpool checkpoint"):
            node.calls.migrate("a", "gpu1")
        with pytest.raises(RefusedError, match="job a is on cpu already"):
            node.calls.migrate("a", "cpu")

    in_node(tmp_path, act)


def test_a_device_that_is_not_here_is_a_misuse(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        with pytest.raises(UsageError, match="job a cannot move to gpu7: there is no such device; there are cpu"):
            node.calls.migrate("a", "gpu7")

    in_node(tmp_path, act)


def test_a_program_that_never_came_to_torch_is_told_that_only_torch_can_be_written(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.adopt("a", live_bytes=MIB, needs=None)
        with pytest.raises(
            RefusedError, match="only PyTorch programs .*; if it is one, start it with: .*; any other must save its"
        ):
            node.calls.checkpoint("a", "/x", stop=False)

    in_node(tmp_path, act)


def test_a_daemon_with_jobs_is_not_stopped_and_counts_them(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        for name, words in (
            ("a", r"1 job still runs \(a\); cancel it first"),
            ("b", r"2 jobs still run \(a, b\); can"),
        ):
            node.adopt(name, live_bytes=MIB, needs=None)
            with pytest.raises(RefusedError, match=words):
                node.calls.stop(is_forced=False)

    in_node(tmp_path, act)
