"""Whether a preloaded library gets into a program, read from their files before anything is started.

A library is loaded by the program's own loader. Some programs start without it: a static one, which has no loader,
one for another machine, and one with another C library than ours. Code that promises a limit must know that first.
A program that starts others (a shell, a launcher) counts as reached, because its file does not tell.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPTS_MAX = 4  # a script whose interpreter is a script; the kernel stops there too
MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}
HEAD_BYTES, NAME_BYTES_MAX, TABLE_BYTES_MAX = 64, 4096, 1 << 16
PT_DYNAMIC, PT_INTERP, ET_EXEC, DT_FLAGS_1, DF_1_PIE = 2, 3, 2, 0x6FFFFFFB, 0x08000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """What an ELF file says of itself."""

    bits: int
    machine: str
    loader: str | None
    is_program: bool  # else a library, or a loader itself

    def __str__(self) -> str:
        return f"{self.bits}-bit {self.machine}"


def obstacle(program: str, library: str, *, path: str | None = None) -> str | None:
    """Why this library would not get into this program, and what to do; None if it would, or nobody can tell."""
    files = interpreters(program, path=path)
    ours = read_binary(Path(library))
    theirs = read_binary(files[-1]) if files else None
    if ours is None or theirs is None:
        return None
    if _runs_as_another(files[-1]):
        return (
            "it runs with other rights than yours, and then its loader takes no libraries from you; run a plain copy"
        )
    if (theirs.bits, theirs.machine) != (ours.bits, ours.machine):
        return f"it is a {theirs} program and carpool's library is {ours}; build it for that"
    if theirs.loader is None and theirs.is_program:
        return "it is linked statically, so no loader puts carpool's library into it; link it dynamically"
    if _is_musl(theirs):
        return "it uses the C library musl and carpool's library uses glibc; build it with glibc"
    return None


def would_not_start(program: str, *, path: str | None = None) -> bool:
    """Whether the program's loader ends it because of our library, where others would only leave that out."""
    files = interpreters(program, path=path)
    theirs = read_binary(files[-1]) if files else None
    return theirs is not None and _is_musl(theirs)


def _is_musl(binary: Binary) -> bool:
    return Path(binary.loader or "").name.startswith("ld-musl")


def interpreters(program: str, *, path: str | None = None) -> list[Path]:
    """The files that a command comes to: itself, the interpreter of a script, and so on to the binary."""
    files: list[Path] = []
    found = shutil.which(program, path=path)
    while found is not None and len(files) <= SCRIPTS_MAX:
        files.append(Path(found))
        words = _shebang(files[-1])
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(words[0], path=path) if words else None
    return files


def _shebang(path: Path) -> list[str]:
    try:
        with _opened(path) as fd:
            line = os.read(fd, NAME_BYTES_MAX).partition(b"\n")[0]
    except OSError:
        return []
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []


def _runs_as_another(path: Path) -> bool:
    facts = path.stat()
    is_other_user = facts.st_mode & stat.S_ISUID and facts.st_uid != os.getuid()
    is_other_group = facts.st_mode & stat.S_ISGID and facts.st_gid != os.getgid()
    return bool(is_other_user or is_other_group or _has_capabilities(path))


def _has_capabilities(path: Path) -> bool:
    """Whether it gains rights of its file's, which the loader treats as it does another user's."""
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def read_binary(path: Path) -> Binary | None:
    """What kind of ELF file it is; None for anything else, and for what cannot be read."""
    try:
        with _opened(path) as fd:
            return _parse(fd)
    except (OSError, ValueError, OverflowError, struct.error):  # all but the first: one that was cut, or is nonsense
        return None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a file; an OSError for what is none, as a pipe, at which one would wait."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        yield fd
    finally:
        os.close(fd)


def _parse(fd: int) -> Binary | None:
    """Read in pieces of bounded length: somebody else may write it meanwhile, and say anything of its lengths. A file
    that is mapped would end this process when it is cut."""
    head = os.pread(fd, HEAD_BYTES, 0)
    if head[:4] != b"\x7fELF":
        return None
    is_wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    kind, machine = struct.unpack_from(f"{order}HH", head, 16)
    offset = struct.unpack_from(f"{order}{'Q' if is_wide else 'I'}", head, 32 if is_wide else 28)[0]
    size, count = struct.unpack_from(f"{order}HH", head, 54 if is_wide else 42)
    table = os.pread(fd, min(size * count, TABLE_BYTES_MAX), offset)
    loader, is_program = None, kind == ET_EXEC
    for at in range(0, len(table) - size + 1, size or TABLE_BYTES_MAX):
        part = struct.unpack_from(f"{order}I", table, at)[0]
        word, places = ("Q", (8, 32)) if is_wide else ("I", (4, 16))
        begin, length = (struct.unpack_from(f"{order}{word}", table, at + place)[0] for place in places)
        if part == PT_INTERP:
            loader, is_program = os.fsdecode(os.pread(fd, min(length, NAME_BYTES_MAX), begin).rstrip(b"\0")), True
        elif part == PT_DYNAMIC:
            said = os.pread(fd, min(length, TABLE_BYTES_MAX), begin)
            pair = struct.Struct(f"{order}{word}{word}")
            pairs = pair.iter_unpack(said[: len(said) // pair.size * pair.size])
            is_program |= any(tag == DT_FLAGS_1 and value & DF_1_PIE for tag, value in pairs)
    name = MACHINES.get(machine, f"machine {machine}")
    return Binary(bits=64 if is_wide else 32, machine=name, loader=loader, is_program=is_program)
