"""One job as the daemon sees it: who of it takes turns, after a daemon that did not see it start."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.model import JobSpec
from carpool.daemon import jobs
from carpool.daemon.files import JobFile, load_file
from carpool.daemon.jobs import LiveJob
from carpool.daemon.progress import adopted
from carpool.daemon.sentences import refusals
from carpool.daemon.turns import Member
from carpool.wire import page as pages


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveJob]:
    """One process of it, this one, has its turn."""
    file = JobFile(job="a-1", number=1, spec=JobSpec(name="a"), argv=["a"], cwd="/", device="cpu", kind="cpu")
    live = LiveJob(id=JobId("a-1"), directory=tmp_path, file=file)
    live.job_page.make(live.directory)
    assert live.page is not None
    slot = live.page.lend_slot(os.getpid())
    assert slot is not None
    live.page.slot(slot).lease = pages.LEASE_HELD
    live.page.slot(slot).steps = 7
    yield live
    if live.page is not None:
        live.page.close()


def successor(live: LiveJob) -> LiveJob:
    """The same job, as the next daemon finds it."""
    live.save()
    file = load_file(live.directory)
    assert file is not None and live.page is not None
    found = LiveJob(id=live.id, directory=live.directory, file=file)
    found.job_page.page = live.page
    found.find_members()
    return found


def test_a_holder_is_taken_back_as_one(live: LiveJob) -> None:
    found = successor(live)
    event = adopted(found, None)
    assert (event.holding, event.steps, found.is_detached) == (True, 7, False)


def test_one_that_left_the_turns_while_it_had_one_is_not(live: LiveJob) -> None:
    live.find_members()
    live.detach(live.members[os.getpid()], "it is odd")
    found = successor(live)
    event = adopted(found, None)
    assert (event.holding, event.is_waiting, event.steps) == (False, False, 7)
    assert (found.is_detached, found.file.detached) == (True, "it is odd")


def test_where_another_of_its_processes_takes_turns_the_job_does(live: LiveJob) -> None:
    assert live.page is not None
    other = live.page.lend_slot(os.getppid())
    assert other is not None
    live.page.slot(other).lease = pages.LEASE_ASKED
    live.detach(Member(peer=None, pid=os.getpid(), slot=1), "it is odd")
    found = successor(live)
    event = adopted(found, None)
    assert (event.holding, event.is_waiting, found.is_detached) == (False, True, False)


def test_refused_allocations_are_named_with_the_cap(live: LiveJob) -> None:
    assert live.page is not None
    assert refusals(live) == ""
    live.page.header.denied_count, live.page.header.denied_bytes = 1, 2 << 30
    assert refusals(live) == "1 allocation was refused (it asked for 2.00 GiB)"
    live.page.header.denied_count = 3
    live.file.spec = replace(live.file.spec, cap_bytes=1 << 30)
    assert refusals(live) == "3 allocations were refused at its cap of 1.00 GiB (the newest asked for 2.00 GiB)"
    live.file.spec = replace(live.file.spec, may_oversubscribe=True)
    assert refusals(live) == "", "they are managed memory then"


def test_i6_only_the_turn_itself_says_whether_a_job_has_it() -> None:
    words = re.compile(r"_is_granted\b|_is_recalled\b|\.is_(granted|recalled)\b[^=\n]* = ")
    package = Path(jobs.__file__).parent
    writers = {path.name for path in package.glob("*.py") if words.search(path.read_text())}
    assert writers == {"turns.py"}


def test_only_the_pages_own_code_counts_its_words() -> None:
    """Elsewhere in the daemon a word of a page has a name."""
    package = Path(jobs.__file__).parent
    numbered = [path.name for path in package.glob("*.py") if re.search(r"words\[|slot_base\(", path.read_text())]
    assert numbered == []
