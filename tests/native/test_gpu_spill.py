"""`--oversubscribe`: what has no room becomes managed memory, and only if the user said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, Probe, environment, live_bytes

ALLOWED = {"CARPOOL_MAY_OVERSUBSCRIBE": "1"}


@pytest.fixture
def page(page: Page) -> Page:
    page.words[wire.H_CAP] = 64 * MIB
    return page


def spilled_bytes(page: Page, pid: int) -> int:
    slot = page.slot_of(pid)
    assert slot is not None
    return page.words[slot_base(slot) + wire.S_SPILLED]


def test_by_default_nothing_is_backed_by_managed_memory(built: Built, page: Page, tmp_path: Path) -> None:
    with Probe(built, environment(built, tmp_path / "books", page=page.path), tmp_path / "log") as probe:
        assert [probe.alloc("plain", slot, 48 * MIB) for slot in (1, 2)] == [0, OUT_OF_MEMORY]
        assert spilled_bytes(page, probe.pid) == 0
        assert probe.said() == ""


def test_what_the_cap_has_no_room_for_is_managed_and_said_once(built: Built, page: Page, tmp_path: Path) -> None:
    env = environment(built, tmp_path / "books", page=page.path) | ALLOWED
    with Probe(built, env, tmp_path / "log") as probe:
        assert [probe.alloc("plain", slot, 48 * MIB) for slot in (1, 2, 3)] == [0, 0, 0]
        assert probe.alloc("managed", 4, 48 * MIB) == 0
        assert (live_bytes(page, probe.pid), spilled_bytes(page, probe.pid)) == (48 * MIB, 144 * MIB)
        assert probe.said().count("managed memory") == 1
        assert probe.free(2) == probe.free(3, is_async=True) == probe.free(4) == 0
        assert (live_bytes(page, probe.pid), spilled_bytes(page, probe.pid)) == (48 * MIB, 0)
        assert probe.free(1) == 0
        assert probe.alloc("plain", 1, 48 * MIB) == 0  # room again: not managed
        assert (live_bytes(page, probe.pid), spilled_bytes(page, probe.pid)) == (48 * MIB, 0)


def test_what_the_card_has_no_room_for_is_managed(built: Built, page: Page, tmp_path: Path) -> None:
    page.words[wire.H_CAP] = 0
    env = environment(built, tmp_path / "books", cards="1x64MiB", page=page.path) | ALLOWED
    with Probe(built, env, tmp_path / "log") as probe:
        assert [probe.alloc("plain", slot, 48 * MIB) for slot in (1, 2)] == [0, 0]
        assert (live_bytes(page, probe.pid), spilled_bytes(page, probe.pid)) == (48 * MIB, 48 * MIB)
        assert probe.alloc("vmm", 3, 48 * MIB) == OUT_OF_MEMORY  # only plain and managed memory can be replaced
        assert probe.ask("reset")[0] == 0
        assert spilled_bytes(page, probe.pid) == 0  # gone with its context


@pytest.mark.parametrize("kind", ["async", "pool"])
def test_stream_ordered_memory_is_managed_too(built: Built, page: Page, tmp_path: Path, kind: str) -> None:
    env = environment(built, tmp_path / "books", page=page.path) | ALLOWED
    with Probe(built, env, tmp_path / "log") as probe:
        assert [probe.alloc(kind, slot, 48 * MIB) for slot in (1, 2)] == [0, 0]
        assert (live_bytes(page, probe.pid), spilled_bytes(page, probe.pid)) == (48 * MIB, 48 * MIB)
        assert probe.free(2, is_async=True) == probe.free(1, is_async=True) == 0
        assert (live_bytes(page, probe.pid), spilled_bytes(page, probe.pid)) == (0, 0)
