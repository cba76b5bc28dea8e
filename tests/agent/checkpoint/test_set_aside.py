"""A recorded program's files are put back as they were, or are those that its replay wrote; none is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.agent.checkpoint.set_aside import SetAside, leave_out
from carpool.agent.checkpoint.written_files import ANEW, WrittenFiles
from carpool.errors import RefusedError

BEFORE = {"all.log": "old line\n", "args.json": "old"}
RECORDED = {
    "all.log": "old line\nnew line\n",
    "args.json": "new",
    "out/version_0/events.111.22": "new",
    "out/version_0/9.pt": "weights",
}


def write(place: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def files_in(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def record(place: Path, *, events: str = "events.111.22") -> WrittenFiles:
    """What a recorded run notes of its files, before it writes them."""
    noted = WrittenFiles()
    for name in ("out", "out/version_0"):
        noted.made_directory(place / name)
    assert noted.opened(place / "all.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) == ""
    for name in ("args.json", f"out/version_0/{events}", "out/version_0/9.pt"):
        assert noted.opened(place / name, ANEW) == ""
    return noted


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write(tmp_path / "here", BEFORE)
    return tmp_path / "here"


def aside_of(place: Path) -> SetAside:
    noted = record(place).contents()
    write(place, RECORDED)
    return SetAside(place.parent / "file", "abcdef0123", noted)


def replayed(place: Path, aside: SetAside) -> WrittenFiles:
    """As a replay of the same program in another process."""
    assert files_in(place) == {**BEFORE, "args.json": "new"}, "it finds what the program had found"
    assert not (place / "out").exists()
    noted = record(place, events="events.333.44")
    for path in noted.rows:
        aside.note_made(path)
    write(place, {**RECORDED, "out/version_0/events.333.44": "new and longer"})
    (place / "out/version_0/events.111.22").unlink()
    leave_out(str(place / "out/version_0/9.pt"))
    return noted


def test_x4_what_a_replay_wrote_stays_and_what_it_left_out_is_put_back(place: Path) -> None:
    aside = aside_of(place)
    aside.begin()
    noted = replayed(place, aside)
    original = aside.original_of(str(place / "out/version_0/9.pt"))
    assert original is not None and original.read_text() == "weights"
    aside.settle(noted)
    expected = {name: text for name, text in RECORDED.items() if "events" not in name}
    assert files_in(place) == {**expected, "out/version_0/events.333.44": "new and longer"}
    assert {path.name for path in place.parent.iterdir()} == {"here"}


def test_x4_a_refused_replay_leaves_no_trace(place: Path) -> None:
    aside = aside_of(place)
    aside.begin()
    replayed(place, aside)
    aside.put_back()
    assert files_in(place) == RECORDED
    assert {path.name for path in place.parent.iterdir()} == {"here"}


def test_x4_a_file_that_the_replay_does_not_touch_comes_back(place: Path) -> None:
    aside = aside_of(place)
    aside.begin()
    aside.settle(WrittenFiles())
    assert files_in(place) == RECORDED


def test_x5_after_a_killed_replay_the_next_one_puts_back_first(place: Path) -> None:
    killed = aside_of(place)
    killed.begin()
    replayed(place, killed)
    with pytest.raises(RefusedError, match="another run goes on from it just now"):
        aside_of_same(killed).begin()
    killed._release()
    following = aside_of_same(killed)
    following.begin()
    replayed(place, following)
    following.put_back()
    assert files_in(place) == RECORDED


def test_x5_files_that_are_new_since_a_replay_was_killed_are_not_replaced(place: Path) -> None:
    killed = aside_of(place)
    killed.begin()
    killed._release()
    write(place, {"out/version_0/9.pt": "of another run"})
    with pytest.raises(RefusedError, match="had set .*9.pt aside"):
        aside_of_same(killed).begin()
    assert (place / "out/version_0/9.pt").read_text() == "of another run"


def aside_of_same(aside: SetAside) -> SetAside:
    """For the same checkpoint, in another process."""
    files = {"rows": aside._rows, "directories": aside._directories}
    return SetAside(aside._place.parent / "file", "abcdef0123", files)
