"""Where files are, and that they are nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.errors import PeerError, UsageError
from carpool.wire.places import find_places, make_private


def test_one_directory_can_hold_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARPOOL_DIR", "/x")
    places = find_places()
    assert (places.socket, places.journal) == (Path("/x/run/daemon.sock"), Path("/x/state/journal.db"))


def test_the_usual_directories_of_a_user_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARPOOL_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("XDG_STATE_HOME", "/h/state")
    places = find_places()
    assert (places.run, places.state) == (Path("/run/user/7/carpool"), Path("/h/state/carpool"))


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(PeerError, match="belongs to user 65534"):
        make_private(tmp_path / "theirs")
