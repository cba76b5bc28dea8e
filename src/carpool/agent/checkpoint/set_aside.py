"""Sets a recorded program's files aside while it is replayed, so that the replay finds what the program found.

  begin     what the program had made is moved into a directory beside the checkpoint; a file that it made longer is
            cut to its old length. The replay then writes its files again, with the values that were read then.
  settle    the replay arrived: what it wrote stays. What it left out (`torch.save`, which leaves a mark) is put back.
  put_back  it was refused: what it wrote is removed, and every file is where it was.

Rules
  X4  A file that was set aside is never lost: it is put back, or the replay wrote it again.
  X5  A replay that was killed leaves its directory; the next one from the same checkpoint puts back first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from carpool.agent.checkpoint.written_files import APPENDED, MADE, WrittenFiles, absolute
from carpool.errors import RefusedError

MARK = b"carpool: a replay leaves this file out\n"  # and then its first name
CHUNK_BYTES = 1 << 20


class SetAside:
    def __init__(self, checkpoint: Path, digest: str, files: dict[str, Any]) -> None:
        self._rows: list[tuple[str, str, int]] = [tuple(row) for row in files["rows"]]
        self._directories: list[str] = files["directories"]
        self._place = checkpoint.with_name(f"{checkpoint.name}.{digest[:8]}.aside")
        self._lock = -1

    def begin(self) -> None:
        """Raises RefusedError, with every file where it was."""
        try:
            if os.path.lexists(self._place):
                self._take_lock()
                self._check_nothing_new()
                self.put_back()  # X5
            if self._rows:
                self._place.mkdir(mode=0o700)
                self._take_lock()
                self._set_aside()
        except RefusedError:
            self._release()
            raise
        except OSError as error:
            self.put_back()
            raise RefusedError(f"its files cannot be set aside in {self._place}: {error.strerror}") from error

    def _take_lock(self) -> None:
        self._lock = os.open(self._place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(f"another run goes on from it just now ({self._place})") from None

    def _check_nothing_new(self) -> None:
        made = self._made()
        for number, (path, how, _) in enumerate(self._rows):
            if how == MADE and path not in made and os.path.lexists(path) and self._kept(number).exists():
                raise RefusedError(
                    f"a killed replay had set {path} aside as {self._kept(number)}, and now there is another:"
                    " remove one of them"
                )

    def _kept(self, number: int) -> Path:
        return self._place / str(number)

    def _set_aside(self) -> None:
        for number, (path, how, size) in enumerate(self._rows):
            kept = self._kept(number)
            if not os.path.lexists(path):
                continue
            if how == MADE:
                _move(path, kept)
            elif how == APPENDED:
                _move(path, kept)
                _copy_beginning(kept, path, size)
            else:
                _copy(path, kept)
        for path in reversed(self._directories):
            with contextlib.suppress(OSError):  # somebody else has files there
                Path(path).rmdir()

    def note_made(self, path: str) -> None:
        """The replay is about to make or to change this file."""
        if self._lock >= 0:
            with (self._place / "made").open("a") as file:
                file.write(json.dumps(path) + "\n")

    def _made(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {json.loads(line) for line in (self._place / "made").read_text().splitlines()}
        return set()

    def original_of(self, path: str) -> Path | None:
        """What the recorded run saved under the name that this file, left out by the replay, had first."""
        path = absolute(path)
        first = _mark_in(path)
        for number, (name, *_) in enumerate(self._rows if first else []):
            if name in (first, path) and self._kept(number).exists():
                return self._kept(number)
        return None

    def put_back(self) -> None:
        if self._lock < 0:
            return
        kept = {path: self._kept(number) for number, (path, *_) in enumerate(self._rows)}
        kept = {path: place for path, place in kept.items() if os.path.lexists(place)}
        for path in self._made() - kept.keys():
            with contextlib.suppress(OSError):
                Path(path).unlink()
        for path, place in kept.items():
            _put(place, path)
        for path in self._directories:
            with contextlib.suppress(OSError):
                Path(path).mkdir(parents=True, exist_ok=True)
        self._close()

    def settle(self, files: WrittenFiles) -> None:
        """The replay arrived; `files` are those that it wrote."""
        if self._lock < 0:
            return
        recorded = {row[0] for row in self._rows}
        others = [path for path in files.rows if path not in recorded and os.path.lexists(path)]
        anew = Counter(_without_numbers(path) for path in others if not _mark_in(path))
        for path in others:
            if _mark_in(path):
                Path(path).unlink()
        for number, (path, *_) in enumerate(self._rows):
            kept, is_marked = self._kept(number), bool(_mark_in(path))
            if not os.path.lexists(kept):
                if is_marked:
                    Path(path).unlink()
            elif path in files.rows and os.path.lexists(path) and not is_marked:
                continue
            elif path not in files.rows and anew[_without_numbers(path)] > 0:
                anew[_without_numbers(path)] -= 1  # its name holds a time or the number of a process
            else:
                _put(kept, path)
        self._close()

    def _close(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def leave_out(path: str) -> None:
    """In place of what a replay does not save."""
    with open(path, "wb") as file:
        file.write(MARK + os.fsencode(absolute(path)))


def _mark_in(path: str) -> str:
    """The name under which a replay left this file out; empty if it did not."""
    if not Path(path).is_file():
        return ""
    with open(path, "rb") as file:
        return os.fsdecode(file.read()) if file.read(len(MARK)) == MARK else ""


def _without_numbers(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _move(source: str | Path, target: str | Path) -> None:
    """In one step, also between file systems: the target is whole, or not there."""
    try:
        Path(source).rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
        Path(source).unlink()


def _copy(source: str | Path, target: str | Path) -> None:
    draft = f"{target}.part"
    shutil.copy2(source, draft, follow_symlinks=False)
    Path(draft).rename(target)


def _put(kept: Path, path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _move(kept, path)


def _copy_beginning(source: Path, target: str, size: int) -> None:
    with source.open("rb") as whole, open(target, "wb") as file:
        while size > 0 and (chunk := whole.read(min(size, CHUNK_BYTES))):
            file.write(chunk)
            size -= len(chunk)
    shutil.copymode(source, target)
