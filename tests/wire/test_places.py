"""Where files are, and that they are nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.errors import PeerError, UsageError
from carpool.wire.lock import make_sign, read_sign, take_lock
from carpool.wire.places import RUN_PARENT, find_places, make_private


def test_one_directory_can_hold_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARPOOL_DIR", "/x")
    places = find_places()
    assert (places.socket, places.journal) == (Path("/x/run/daemon.sock"), Path("/x/state/journal.db"))


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /var/tmp, of which this user may be using a part."""
    monkeypatch.delenv("CARPOOL_DIR", raising=False)
    monkeypatch.setattr("carpool.wire.places.RUN_PARENT", tmp_path / "parent")
    return tmp_path / "parent"


def test_no_variable_moves_the_run_directory_and_the_machine_names_the_other(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path("/var/tmp") == RUN_PARENT
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("TMPDIR", "/h/tmp")
    monkeypatch.setenv("HOME", "/h")
    host = os.uname().nodename
    for kept, state in (
        ("/h/state", f"/h/state/carpool/{host}"),
        ("not/absolute", f"/h/.local/state/carpool/{host}"),
    ):
        monkeypatch.setenv("XDG_STATE_HOME", kept)
        places = find_places()
        assert (places.run, places.state) == (parent / f"carpool-{os.geteuid()}", Path(state))


def test_the_journal_stays_where_a_daemon_with_jobs_has_it(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = find_places()
    (usual.jobs / "x-1").mkdir(parents=True)
    sign = make_sign(run=usual.run, state=tmp_path, is_brought_back=False)
    lock = take_lock(usual.lock, sign)
    assert lock is not None
    monkeypatch.setenv("HOME", "/another")
    assert find_places().state == tmp_path
    assert find_places().find_daemon() == sign
    (usual.jobs / "x-1").rmdir()
    assert find_places().state.is_relative_to("/another"), "nothing is left of it"
    lock.close()


def test_a_path_too_long_for_a_socket_is_said_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_DIR", "/tmp/" + "x" * 120)
    with pytest.raises(UsageError, match="longer than the 107 characters.*CARPOOL_DIR"):
        find_places()


def test_a_directory_is_made_private_and_an_open_one_refused(tmp_path: Path) -> None:
    make_private(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(PeerError, match="open to other users .mode 755.; run: chmod 700"):
        make_private(tmp_path / "open")


def test_a_link_does_not_hide_an_open_directory(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(PeerError, match="link is open to other users .mode 755."):
        make_private(tmp_path / "link")
    (tmp_path / "open").chmod(0o700)
    make_private(tmp_path / "link")


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_missing_parents_are_private_too_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3


def test_a_file_in_the_place_of_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PeerError, match="file is not a directory; remove it"):
        make_private(tmp_path / "file")


def test_a_lock_that_was_removed_is_known_as_lost(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    sign = make_sign(run=tmp_path, state=tmp_path, is_brought_back=True)
    lock = take_lock(path, sign)
    assert lock is not None and lock.is_own()
    assert read_sign(path) == sign
    assert take_lock(path, sign) is None, "a second one waits for nothing"
    path.unlink()
    assert not lock.is_own()
    another = take_lock(path, sign)
    assert another is not None and another.is_own() and not lock.is_own()
    lock.close()
    another.close()


WRONG = '{"pid": 1, "birth": 1, "boot": "", "host": "", "run": "", "state": 7, "is_brought_back": true}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1}', "\xff", '{"pid": "x"}', WRONG])
def test_what_is_no_sign_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert read_sign(tmp_path / "lock") is None
    assert read_sign(tmp_path / "nowhere") is None
    assert read_sign(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(PeerError, match="belongs to user 65534"):
        make_private(tmp_path / "theirs")
