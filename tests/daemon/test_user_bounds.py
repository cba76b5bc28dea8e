"""What users' programs may put beside the daemon's files (rules I53, I54): the parts that look at files."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from carpool.daemon import user_bounds
from carpool.daemon.config import DaemonConfig
from carpool.daemon.reload import InForce
from carpool.daemon.settings_file import MachineSettings
from carpool.wire.places import Places
from tests.daemon.node import Node, in_node

OWN = os.geteuid()
MIB = 1 << 20


def test_i54_what_is_below_a_directory_counts_but_for_the_page_and_a_link_counts_as_itself(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"x" * MIB)
    (tmp_path / "one").write_bytes(b"x" * MIB)
    below = tmp_path / "below"
    below.mkdir()
    (below / "page").write_bytes(b"x" * MIB)  # not the job's
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    assert 2 * MIB <= (user_bounds.bytes_below(tmp_path) or 0) < 2 * MIB + 64 * 1024


def test_i54_a_look_ends_however_many_files_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_bounds, "ENTRIES_MAX", 20)
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"x" * 4096)
    assert user_bounds.bytes_below(tmp_path) is None
    assert len(user_bounds.logs_in(tmp_path)[0]) == 20


def test_i53_a_log_that_is_being_written_loses_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("ab") as writing:
        writing.write(b"a" * (4 * MIB) + b"b" * (4 * MIB))
        writing.flush()
        user_bounds.cut_log(tmp_path, path.name, OWN)
        writing.write(b"last\n")
    left = path.read_bytes().lstrip(b"\0")
    assert left == b"b" * (4 * MIB) + b"last\n"
    assert path.stat().st_blocks * 512 < 5 * MIB


def test_i53_nothing_is_cut_or_removed_that_is_not_this_users(tmp_path: Path) -> None:
    logs, other = tmp_path / "logs", tmp_path / "other"
    logs.mkdir()
    other.write_bytes(b"x" * (4 * MIB))
    (logs / "link.log").symlink_to(other)
    user_bounds.cut_log(logs, "link.log", OWN)
    user_bounds.cut_log(logs, "missing.log", OWN)
    user_bounds.cut_log(logs, "../other", OWN + 1)
    os.mkfifo(logs / "pipe.log")
    user_bounds.cut_log(logs, "pipe.log", OWN)
    user_bounds.remove_from(logs, "pipe.log", OWN + 1)
    assert (logs / "pipe.log").exists()
    (tmp_path / "linked").symlink_to(logs)
    user_bounds.remove_from(tmp_path / "linked", "pipe.log", OWN)
    assert (logs / "pipe.log").exists()
    user_bounds.remove_from(logs, "link.log", OWN)
    assert not (logs / "link.log").is_symlink() and other.stat().st_size == 4 * MIB


def bounds_of(node: Node, tmp_path: Path) -> user_bounds.UserBounds:
    in_force = InForce(MachineSettings(), DaemonConfig())
    return user_bounds.UserBounds(node.driver, Places(run=tmp_path, state=tmp_path, root=tmp_path), in_force)


def test_i53_what_is_in_directories_beside_the_logs_counts_and_costs_a_job(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=0, needs=None)
        bounds = bounds_of(node, tmp_path)
        below = bounds._places.logs_of(OWN) / "one" / "two"
        below.mkdir(parents=True)
        (below / "hidden").write_bytes(b"x" * MIB)
        logs, beside = bounds._logs_of(OWN, set())
        assert not logs and MIB <= (beside or 0) < MIB + 64 * 1024
        told: list[object] = []
        node.driver.tell = lambda *events: told.extend(events)  # type: ignore[method-assign]  # nothing is there to end
        bounds._seen(OWN, user_bounds.Use(beside_logs=beside))
        assert not live.is_stopping
        bounds._seen(OWN, user_bounds.Use(beside_logs=1 << 50))
        assert live.is_stopping and "beside their logs" in str(told)

    in_node(tmp_path, act)


def test_i53_no_log_is_hidden_behind_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_bounds, "ENTRIES_MAX", 20)

    def act(node: Node) -> None:
        bounds = bounds_of(node, tmp_path)
        directory = bounds._places.logs_of(OWN)
        directory.mkdir(parents=True)
        for number in range(100):
            (directory / f"{number}.log").touch()
        logs, beside = bounds._logs_of(OWN, set())
        assert beside == 0 and 0 < len(logs) < 20
        assert logs.keys() == {path.name for path in directory.iterdir()}, "all that is there was counted"

    in_node(tmp_path, act)


def test_i54_a_disk_that_hangs_holds_up_the_look_at_its_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, seen, looks = threading.Event(), threading.Event(), []
    real = user_bounds.UserBounds._logs_of

    def logs_of(self: user_bounds.UserBounds, uid: int, live: set[str]) -> object:
        looks.append(uid)
        if uid == 64001:
            assert hangs.wait(100)
        elif looks.count(uid) == 2:
            seen.set()
        return real(self, uid, live)  # type: ignore[arg-type]  # ids are strings

    async def look() -> None:
        node = Node(tmp_path)
        for name, uid in (("a", 64001), ("b", 64002)):
            live = node.adopt(name, live_bytes=0, needs=None)
            live.file = msgspec.structs.replace(live.file, uid=uid)
        bounds = bounds_of(node, tmp_path)
        async with asyncio.timeout(100):
            while not seen.is_set():
                bounds.look()
                await asyncio.sleep(0.01)
        assert looks.count(64001) == 1, "its look still runs"
        node.journal.close()

    monkeypatch.setattr(user_bounds.UserBounds, "_logs_of", logs_of)
    try:
        asyncio.run(look())
    finally:
        hangs.set()


def test_i54_a_job_with_files_beyond_count_is_ended_though_they_are_empty(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.adopt("a", live_bytes=0, needs=None)
        in_force = InForce(MachineSettings(), DaemonConfig())
        bounds = user_bounds.UserBounds(node.driver, Places(run=tmp_path, state=tmp_path, root=tmp_path), in_force)
        told: list[object] = []
        node.driver.tell = lambda *events: told.extend(events)  # type: ignore[method-assign]  # nothing is there to end
        bounds._check(OWN, user_bounds.Use(crowded={live.id}))
        assert live.is_stopping
        assert "files or more beside its page" in str(told)

    in_node(tmp_path, act)
