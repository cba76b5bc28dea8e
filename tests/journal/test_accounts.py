"""Accounts in the journal: what the next daemon reads of jobs that outlived this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carpool.core.node.model import Account
from carpool.journal.writer import Journal
from carpool.units import SECOND


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    """Opens one journal again and again, as each daemon does."""
    opened: list[Journal] = []

    def opens() -> Journal:
        opened.append(Journal(tmp_path / "journal", version="test", config="{}"))
        return opened[-1]

    yield opens
    for journal in opened:
        journal.close()


def account(row: str, *, at_ns: int) -> Account:
    return Account(
        arrived_ns=at_ns - SECOND,
        at_ns=at_ns,
        row=row,
        row_since_ns=at_ns - SECOND,
        spent_ns={row: SECOND},
        waited_for_ns={},
        served_ns=SECOND if row == "run" else 0,
    )


def test_an_account_goes_up_to_the_last_note_of_the_daemon_that_kept_it(open_journal: Callable[[], Journal]) -> None:
    journal = open_journal()
    at_ns = time.monotonic_ns()
    journal.note_accounts({"a-1": account("run", at_ns=at_ns)}, now=at_ns)
    journal.note_accounts({"b-2": account("idle", at_ns=at_ns + 60 * SECOND)}, now=at_ns + 60 * SECOND)
    journal.close()
    found = open_journal().account_of("a-1")
    assert found is not None
    assert (found.at_ns, found.spent_ns, found.served_ns) == (at_ns + 60 * SECOND, {"run": 61 * SECOND}, 61 * SECOND)


def test_a_daemon_that_did_not_know_a_job_says_nothing_of_it(open_journal: Callable[[], Journal]) -> None:
    first = open_journal()
    at_ns = time.monotonic_ns()
    first.note_accounts({"a-1": account("run", at_ns=at_ns)}, now=at_ns)
    first.close()
    second = open_journal()
    second.note_accounts({}, now=time.monotonic_ns())
    second.close()
    found = open_journal().account_of("a-1")
    assert found == account("run", at_ns=at_ns)


def test_a_journal_without_notes_still_has_accounts(open_journal: Callable[[], Journal]) -> None:
    journal = open_journal()
    assert journal.account_of("a-1") is None
    assert journal.write_out()
    assert journal.account_of("a-1") is None
    journal.close()
