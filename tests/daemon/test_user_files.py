"""What a user's program may put where the daemon looks, and what the daemon makes of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from carpool.core.node.model import JobSpec
from carpool.daemon import user_files
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.start_and_end import End, Start
from carpool.daemon.translate import picture_lost

OWNER = os.geteuid()
NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
NONSENSE = [
    b"",
    b"[]",
    b'"code"',
    b"\xff\xfe",
    b'{"code": 1e300}',
    b'{"code": 99999999999999999999}',
    b'{"code": 0, "signal": -1}',
    b'{"code": 0, "reason": "' + b"x" * 5000 + b'"}',
    b'{"code": ' + b"[" * 30_000,
    b"x" * (user_files.NOTE_BYTES_MAX + 1),
]


@pytest.mark.parametrize("said", NONSENSE)
def test_i41_an_end_that_is_nonsense_is_none(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "end.json").write_bytes(said)
    assert End.load(tmp_path, OWNER) is None


@pytest.mark.parametrize("said", [*NONSENSE, b'{"runner_pid": -1, "runner_birth": 0}'])
def test_i41_a_start_that_is_nonsense_is_none(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "started.json").write_bytes(said)
    assert Start.load(tmp_path, OWNER) is None


@pytest.mark.timeout(30)
def test_i41_a_pipe_a_link_a_directory_and_a_file_without_end_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("of somebody else")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "directory").mkdir()
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("pipe", "link", "directory", "endless", "missing"):
        with pytest.raises(OSError):
            user_files.read_file(tmp_path / name, OWNER)
    assert [user_files.is_there(tmp_path / name, OWNER) for name in ("pipe", "link", "directory")] == [False] * 3
    assert user_files.is_there(tmp_path / "secret", OWNER)


@ROOT
def test_i41_a_file_of_another_user_is_none(tmp_path: Path) -> None:
    (tmp_path / "end.json").write_text('{"code": 0}')
    assert End.load(tmp_path, 0) == End(code=0)
    os.chown(tmp_path / "end.json", 65534, -1)
    assert End.load(tmp_path, 0) is None
    assert End.load(tmp_path, 65534) == End(code=0)


@ROOT
def test_i41_what_the_daemon_writes_is_a_new_file_of_the_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("as before")
    place = tmp_path / "place"
    user_files.make_directory(place, 65534)
    (place / "order").symlink_to(secret)
    (place / "draft").symlink_to(secret)
    user_files.replace_file(place / "order", b"do it", place / "draft", 65534)
    facts = (place / "order").lstat()
    assert (secret.read_text(), (place / "order").read_text()) == ("as before", "do it")
    assert (facts.st_uid, facts.st_mode & 0o777, place.stat().st_uid) == (65534, 0o600, 65534)
    assert place.stat().st_mode & 0o777 == 0o700


def job(tmp_path: Path, *, is_apart: bool) -> LiveJob:
    file = JobFile(job="a-1", number=1, spec=JobSpec(name="a"), argv=["true"], cwd="/")
    directory, kept = tmp_path / "users", tmp_path / "kept" if is_apart else tmp_path / "users"
    for each in {directory, kept}:
        each.mkdir()
    return LiveJob(id=file.job, directory=directory, kept=kept, file=file)  # type: ignore[arg-type]  # a JobId is a str


@pytest.mark.parametrize("is_apart", [False, True])
def test_i44_what_became_of_a_job_only_the_daemon_says(tmp_path: Path, is_apart: bool) -> None:
    live = job(tmp_path, is_apart=is_apart)
    said = {"code": 3, "state": "nonsense", "reason": "because I say so"}
    (live.directory / "end.json").write_text(json.dumps(said))
    end = live.learn_end()
    assert end is not None and end.code == 3
    assert end.state == ("" if is_apart else "nonsense")
    assert picture_lost(live.file, end).state == "failed", "a state that there is not kept the next daemon away"
    End(code=0, state="cancelled", reason="x" * 10_000).save(live.kept)
    end = live.learn_end()
    assert end is not None and end.state == "cancelled"


def test_a_directory_is_gone_at_once_whatever_is_in_it(tmp_path: Path) -> None:
    place = tmp_path / "job-1"
    (place / "deep" / "deeper").mkdir(parents=True)
    user_files.remove_aside(place)
    assert not place.exists()
    user_files.remove_aside(place)  # nobody minds


@ROOT
def test_i54_whoever_has_a_directory_open_makes_nothing_in_it_while_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "job-1"
    (place / "deep").mkdir(parents=True)
    fds = [os.open(each, os.O_RDONLY) for each in (place, place / "deep")]
    for fd in fds:
        os.fchown(fd, NOBODY, -1)
    found: list[tuple[int, int]] = []
    is_over = threading.Event()
    remove = shutil.rmtree

    def removes(directory: Path, *, ignore_errors: bool) -> None:
        found.extend((os.fstat(fd).st_uid, os.fstat(fd).st_mode & 0o777) for fd in fds)
        remove(directory, ignore_errors=ignore_errors)
        is_over.set()

    monkeypatch.setattr(shutil, "rmtree", removes)
    user_files.remove_aside(place)
    assert is_over.wait(20)
    assert found == [(OWNER, 0o700)] * 2, "its user can make files in a directory that nobody measures"
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("said", ["\x1b[2Jroot", "a\nb", "\u202ecod"])
def test_i41_what_a_user_wrote_of_an_end_moves_nobodys_cursor(tmp_path: Path, said: str) -> None:
    (tmp_path / "end.json").write_text(json.dumps({"code": 1, "reason": said}))
    end = End.load(tmp_path, OWNER)
    assert end is not None and end.reason.isprintable() and end.reason != said
