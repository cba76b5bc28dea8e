"""The page both sides share: the same numbers in Python and C, private, whole, and told apart from garbage."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.errors import PeerError
from carpool.wire import page


def test_g4_a_page_is_private_whole_and_can_be_opened_again(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    facts = (tmp_path / "page").stat()
    assert (facts.st_mode & 0o777, facts.st_size) == (0o600, page.PAGE_BYTES)
    assert facts.st_blocks * 512 >= page.PAGE_BYTES  # allocated, so that no later store meets a full disk
    slot = made.lend_slot(4711)
    assert slot == page.FIRST_LENT
    again = page.Page.open(tmp_path / "page")
    assert again.slot_of(4711) == slot
    assert again.pids() == {slot: 4711}
    made.clear_slot(slot)
    assert again.slot_of(4711) is None


def test_g2_slots_are_lent_until_there_are_no_more(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    lent = [made.lend_slot(pid) for pid in range(1, page.SLOTS - page.FIRST_LENT + 1)]
    assert lent == list(range(page.FIRST_LENT, page.SLOTS))
    assert made.lend_slot(9999) is None
    assert made.words[page.H_LENT_USED] == page.SLOTS


def test_a_page_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    page.Page.create(tmp_path / "page").close()
    (tmp_path / "page").chmod(0o644)
    with pytest.raises(PeerError, match="not a private file"):
        page.Page.open(tmp_path / "page")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_page_of_another_user_is_not_used(tmp_path: Path) -> None:
    page.Page.create(tmp_path / "page").close()
    os.chown(tmp_path / "page", 65534, 65534)
    with pytest.raises(PeerError, match="not a private file"):
        page.Page.open(tmp_path / "page")


def test_a_link_a_short_file_and_another_layout_are_not_used(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    (tmp_path / "link").symlink_to(tmp_path / "page")
    with pytest.raises(PeerError, match="cannot open"):
        page.Page.open(tmp_path / "link")
    short = tmp_path / "short"
    short.touch(mode=0o600)
    short.write_bytes(b"x" * 100)
    short.chmod(0o600)
    with pytest.raises(PeerError, match="100 bytes instead of 131072"):
        page.Page.open(short)
    made.words[page.H_LAYOUT] = 99
    with pytest.raises(PeerError, match=f"layout 99, this one speaks {page.LAYOUT}"):
        page.Page.open(tmp_path / "page")


def test_a_negative_count_is_taken_for_nothing() -> None:
    assert page.as_count((1 << 64) - 5) == 0
    assert page.as_count(5) == 5


def test_every_word_of_the_page_has_a_name_and_no_two_share_one() -> None:
    for record, prefix, unnamed in (
        (page.Header, "H_", {page.H_MAGIC, page.H_LAYOUT}),
        (page.Slot, "S_", {page.S_LIVE, page.S_PEAK, page.S_CHANGE_NS}),  # counts, which are not read as they stand
    ):
        numbers = {value for name, value in vars(page).items() if name.startswith(prefix)}
        named = [each.index for each in vars(record).values() if isinstance(each, page.Word)]
        assert sorted(named) == sorted(numbers - unnamed)


def test_names_read_and_write_the_words_of_their_own_slot(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    made.header.cap_bytes = 77
    slot = made.slot(3)
    slot.recall, slot.pending_bytes = 5, 10
    assert (made.words[page.H_CAP], slot.number) == (77, 3)
    assert made.words[page.slot_base(3) + page.S_RECALL] == made.slot(3).recall == 5
    assert made.slot(2).recall == made.slot(4).recall == 0
    made.words[page.slot_base(3) + page.S_LIVE] = 30
    assert made.live_bytes(3) == slot.live_bytes == 20
    slot.raise_flag(page.FLAG_ASIDE)
    assert slot.has(page.FLAG_ASIDE) and not slot.has(page.FLAG_IDLE)
    assert slot.live_bytes == 30  # what it waits for is not counted there


@pytest.mark.skipif(not page.HAS_SWAP, reason="the C part is not built: install gcc, 'make native'")
def test_a_pass_is_swapped_only_where_it_still_stands(tmp_path: Path) -> None:
    slot = page.Page.create(tmp_path / "page").slot(1)
    slot.pass_word = 8
    assert not slot.swap_pass(9, 10)
    assert slot.swap_pass(8, 8 | page.PASSED)
    assert slot.pass_word == 8 | page.PASSED


def test_g4_a_page_that_the_disk_refuses_is_not_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        page.Page.create(tmp_path / "page")
    assert list(tmp_path.iterdir()) == []


def test_g5_the_sentence_is_whole_before_the_number_that_announces_it(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    text = bytes(made.words.cast("B")[page.TEXT_AT :])
    assert text == bytes(page.TEXT_BYTES)

    class Watched(page.Words):
        """Looks at the sentence when the number is stored."""

        def __setitem__(self, index: int, value: int) -> None:
            assert index == page.H_DENIED_NS and bytes(self.all.cast("B")[page.TEXT_AT :]).startswith(
                b"there is no room\0"
            )
            self.all[index] = value

    made.words = Watched(made.words)  # type: ignore[assignment]  # it is only stored to
    made.deny("there is no room", now=77)
    assert made.header.denied_ns == 77


@pytest.mark.skipif(not page.HAS_SWAP, reason="the C module was not built")
@pytest.mark.parametrize("size", [0, 4096, page.PAGE_BYTES - 4096])
def test_g6_a_guarded_page_that_is_cut_short_reads_as_zeroes_and_is_known_as_spoilt(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "page"
    spoilt, whole = page.Page.create(path), page.Page.create(tmp_path / "whole")
    spoilt.guard()
    whole.guard()
    before = page.cuts()
    assert not spoilt.is_spoilt()
    os.truncate(path, size)
    assert spoilt.is_spoilt()
    assert (page.cuts(), spoilt.slot(5).steps, whole.is_spoilt()) == (before + 1, 0, False)
    spoilt.slot(5).recall = 3  # nobody sees it, and nothing breaks
    spoilt.close()
    whole.close()
    renewed = page.Page.renew(path)
    assert (renewed.is_spoilt(), path.stat().st_size) == (False, page.PAGE_BYTES)
    renewed.close()


@pytest.mark.skipif(not page.HAS_SWAP, reason="the C module was not built")
def test_g6_the_guard_of_a_page_that_nobody_closed_ends_with_it(tmp_path: Path) -> None:
    """Else a cut of any other file that is mapped there later would be taken for the page's."""
    code = f"""
import mmap, os
from pathlib import Path
from carpool.wire import page

def place(words):
    return [line.split("-")[0] for line in open("/proc/self/maps") if words in line]

made = page.Page.create(Path({str(tmp_path / "page")!r}))
made.guard()
where = place("/page")
del made  # nobody closed it, and nobody has a view of it
path = {str(tmp_path / "other")!r}
with open(path, "wb+") as file:
    file.truncate(page.PAGE_BYTES)
    other = mmap.mmap(file.fileno(), page.PAGE_BYTES)
assert place("/other") == where, "the kernel took another place: this test says nothing"
os.truncate(path, 0)
print("cut", flush=True)
other[0]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, b"cut\n"), done.stderr.decode()


@pytest.mark.skipif(not page.HAS_SWAP, reason="the C module was not built")
def test_g6_a_closed_page_of_which_a_view_is_kept_stays_guarded(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    made.guard()
    view = memoryview(made._mapping)
    made.close()
    os.truncate(tmp_path / "page", 0)
    assert view[0] == 0  # without the guard this process would end here


def test_g6_a_page_whose_beginning_was_overwritten_is_known_as_spoilt(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    (tmp_path / "page").write_bytes(bytes(page.PAGE_BYTES))
    assert made.is_spoilt()


def test_g6_a_wild_number_is_read_as_a_count_that_can_be_added_to(tmp_path: Path) -> None:
    made = page.Page.create(tmp_path / "page")
    slot = made.slot(1)
    for word in range(page.SLOT_WORDS):
        made.words[page.slot_base(1) + word] = (1 << 64) - 2
    assert slot.steps == slot.boundary_ns == slot.pending_bytes == slot.device_ns == page.COUNT_MAX
    assert slot.live_bytes == 0
    slot.recall = slot.steps + 2
