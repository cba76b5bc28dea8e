"""The bells that the daemon makes and gives away."""

from __future__ import annotations

import socket
from pathlib import Path

from carpool.daemon import bells


def test_i45_a_bell_is_rung_by_its_name_and_heard_by_who_was_given_it(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("whatever was there")
    bell = bells.hang(tmp_path, 7)
    assert bell is not None
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [bell.fileno()])
        bell.close()
        _, given, _, _ = socket.recv_fds(other, 1, 1)
    with socket.socket(fileno=given[0]) as heard, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.sendto(b"ring", str(tmp_path / "7"))
        assert heard.recv(10) == b"ring"
    assert (tmp_path / "7").stat().st_mode & 0o777 == 0o666
    bells.take_down(tmp_path, 7)
    bells.take_down(tmp_path, 7)
    assert list(tmp_path.iterdir()) == []


def test_where_no_bell_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert bells.hang(tmp_path / "missing", 7) is None
    for pid in (7, 8):
        bell = bells.hang(tmp_path, pid)
        assert bell is not None
        bell.close()
    bells.take_all_down(tmp_path)
    assert list(tmp_path.iterdir()) == []
