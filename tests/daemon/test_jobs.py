"""One job as the daemon sees it: who of it takes turns, after a daemon that did not see it start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.model import JobSpec
from carpool.daemon.files import JobFile, load_file
from carpool.daemon.jobs import LiveJob, Member
from carpool.wire import page as pages


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveJob]:
    """One process of it, this one, has its turn."""
    file = JobFile(job="a-1", number=1, spec=JobSpec(name="a"), argv=["a"], cwd="/", device="cpu", kind="cpu")
    live = LiveJob(id=JobId("a-1"), directory=tmp_path, file=file)
    live.make_page()
    assert live.page is not None
    slot = live.page.lend_slot(os.getpid())
    assert slot is not None
    live.page.words[pages.slot_base(slot) + pages.S_LEASE] = pages.LEASE_HELD
    live.page.words[pages.slot_base(slot) + pages.S_STEPS] = 7
    yield live
    if live.page is not None:
        live.page.close()


def successor(live: LiveJob) -> LiveJob:
    """The same job, as the next daemon finds it."""
    live.save()
    file = load_file(live.directory)
    assert file is not None and live.page is not None
    found = LiveJob(id=live.id, directory=live.directory, file=file, page=live.page)
    found.find_members()
    return found


def test_a_holder_is_taken_back_as_one(live: LiveJob) -> None:
    found = successor(live)
    event = found.adopted(None)
    assert (event.holding, event.steps, found.is_detached) == (True, 7, False)


def test_one_that_left_the_turns_while_it_had_one_is_not(live: LiveJob) -> None:
    live.find_members()
    live.detach(live.members[os.getpid()], "it is odd")
    found = successor(live)
    event = found.adopted(None)
    assert (event.holding, event.is_waiting, event.steps) == (False, False, 7)
    assert (found.is_detached, found.file.detached) == (True, "it is odd")


def test_where_another_of_its_processes_takes_turns_the_job_does(live: LiveJob) -> None:
    assert live.page is not None
    other = live.page.lend_slot(os.getppid())
    assert other is not None
    live.page.words[pages.slot_base(other) + pages.S_LEASE] = pages.LEASE_ASKED
    live.detach(Member(peer=None, pid=os.getpid(), slot=1), "it is odd")
    found = successor(live)
    event = found.adopted(None)
    assert (event.holding, event.is_waiting, found.is_detached) == (False, True, False)


def test_refused_allocations_are_named_with_the_cap(live: LiveJob) -> None:
    assert live.page is not None
    assert live.refusals() == ""
    live.page.words[pages.H_DENIED_COUNT], live.page.words[pages.H_DENIED_BYTES] = 1, 2 << 30
    assert live.refusals() == "1 allocation was refused (it asked for 2.00 GiB)"
    live.page.words[pages.H_DENIED_COUNT] = 3
    live.file.spec = replace(live.file.spec, cap_bytes=1 << 30)
    assert live.refusals() == "3 allocations were refused at its cap of 1.00 GiB (the newest asked for 2.00 GiB)"
    live.file.spec = replace(live.file.spec, may_oversubscribe=True)
    assert live.refusals() == "", "they are managed memory then"
