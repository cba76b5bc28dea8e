"""How many questions about the past are read at once, and of whom (rule J17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carpool.daemon.records import ASKED_EACH, ASKED_MAX, Records
from carpool.errors import RefusedError


def records_of_a_disk_that_hangs(begins: list[Callable[[str], object]]) -> Records:
    journal = SimpleNamespace(path=Path("/nowhere/journal"), flush=begins.append)
    driver: Any = SimpleNamespace(book=lambda: None, journal=journal)
    return Records(driver)


def peer(uid: int, answers: list[object] | None = None) -> Any:
    return SimpleNamespace(uid=uid, send=([] if answers is None else answers).append)


def test_j17_one_user_is_not_in_the_way_of_the_questions_of_all_others() -> None:
    async def ask() -> None:
        records = records_of_a_disk_that_hangs([])
        for _ in range(ASKED_EACH):
            records.answer(peer(1001), "usage", {})
        with pytest.raises(RefusedError, match="2 of your questions .* ask again when one of them is answered"):
            records.answer(peer(1001), "history", {})
        for _ in range(ASKED_MAX - ASKED_EACH):
            records.answer(peer(1002), "history", {})
        with pytest.raises(RefusedError, match="4 questions about usage and history"):
            records.answer(peer(1003), "usage", {})

    asyncio.run(ask())


def test_j17_an_admin_has_as_many_questions_as_are_read_at_once() -> None:
    async def ask() -> None:
        records = records_of_a_disk_that_hangs([])
        for _ in range(ASKED_MAX):
            records.answer(peer(0), "usage", {}, is_admin=True)

    asyncio.run(ask())


def test_j17_who_was_answered_may_ask_again() -> None:
    async def ask() -> None:
        begins: list[Callable[[str], object]] = []
        answers: list[object] = []
        records = records_of_a_disk_that_hangs(begins)
        for _ in range(ASKED_EACH):
            records.answer(peer(1001, answers), "usage", {})
        for begin in begins:
            begin("")
        async with asyncio.timeout(100):
            while len(answers) < ASKED_EACH:
                await asyncio.sleep(0.01)
        for _ in range(ASKED_EACH):
            records.answer(peer(1001), "usage", {})

    asyncio.run(ask())
