"""What users write where the daemon gave them room, and the bounds of it."""

from __future__ import annotations

import os
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.daemon.disk_use import bound_logs, drop_beginning, largest_over, used_bytes

MIB = 1 << 20
OWNER = os.geteuid()


def fill(path: Path, size: int, *, at_ns: int = 0) -> Path:
    path.write_bytes(os.urandom(1 << 16) * (size >> 16))
    if at_ns:
        os.utime(path, ns=(at_ns, at_ns))
    return path


def test_i46_the_job_that_has_most_is_named_when_all_have_too_much(tmp_path: Path) -> None:
    directories = {JobId(name): tmp_path / name for name in ("small", "large")}
    for directory in directories.values():
        directory.mkdir()
    fill(directories[JobId("small")] / "x", MIB)
    assert largest_over(directories, 2 * MIB) is None
    (directories[JobId("large")] / "deep").mkdir()
    fill(directories[JobId("large")] / "deep" / "x", 2 * MIB)
    over = largest_over(directories, 2 * MIB)
    assert over is not None and over[0] == "large" and over[1] >= 2 * MIB
    assert largest_over({}, 0) is None


def test_i46_nothing_is_followed_and_names_count_too(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "elsewhere").symlink_to("/usr/lib")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert 100 * 1024 <= used_bytes(tmp_path) < MIB
    assert used_bytes(tmp_path / "missing") == 0


def test_i46_old_logs_go_before_the_beginnings_of_those_that_are_written(tmp_path: Path) -> None:
    fill(tmp_path / "old.log", MIB, at_ns=1)
    fill(tmp_path / "newer.log", MIB, at_ns=2)
    fill(tmp_path / "live.log", MIB)
    (tmp_path / "no log").mkdir()
    fill(tmp_path / "no log" / "x", MIB)
    bound_logs(tmp_path, OWNER, 10 * MIB, live=["live"])
    assert len(list(tmp_path.iterdir())) == 4
    bound_logs(tmp_path, OWNER, 5 * MIB // 2, live=["live"])
    assert (tmp_path / "live.log").stat().st_blocks * 512 >= MIB
    assert not (tmp_path / "old.log").exists()
    bound_logs(tmp_path, OWNER, MIB // 2, live=["live"])
    assert [path.name for path in tmp_path.iterdir()] == ["live.log"]
    assert used_bytes(tmp_path) <= MIB // 2


def test_i46_a_log_that_is_written_loses_its_beginning_and_keeps_its_end(tmp_path: Path) -> None:
    path = fill(tmp_path / "live.log", MIB)
    whole = path.read_bytes()
    with path.open("ab") as program:
        assert drop_beginning(path, OWNER, MIB // 2) >= MIB // 4
        program.write(b"and on")
    assert path.stat().st_blocks * 512 <= MIB // 2 + 8192
    said = path.read_bytes()
    assert said.endswith(whole[-MIB // 4 :] + b"and on") or len(said) == 6
    assert drop_beginning(path, OWNER + 1, MIB) == 0, "a file of somebody else is left alone"
