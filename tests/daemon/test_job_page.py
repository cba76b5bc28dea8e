"""The page of a job, as the daemon makes and writes it."""

from __future__ import annotations

from pathlib import Path

from carpool.core.kernel.ids import TenantId
from carpool.core.node.model import JobSpec
from carpool.daemon.job_page import JobPage

MIB = 1 << 20


def told(page: JobPage) -> tuple[int, int]:
    assert page.page is not None
    return page.page.header.cap_bytes, page.page.header.price


def test_a_page_that_is_made_again_says_the_same_limits(tmp_path: Path) -> None:
    """The core says each once; somebody may remove the page before the program runs."""
    page = JobPage()
    page.make(tmp_path)
    page.set_capacity(64 * MIB, JobSpec(name="a", tenant=TenantId("t"), cap_bytes=4 * MIB))
    page.set_cap(MIB)
    page.set_compute(250)
    before = told(page)
    (tmp_path / "page").unlink()
    page.make(tmp_path)
    assert told(page) == before
    assert min(before) > 0
    page.close()
