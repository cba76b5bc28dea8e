"""Which programs a preloaded library gets into, read from their files; ELF files of machines that this one is not are
written here byte by byte."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.devices.loading import Binary, obstacle, read_binary

ET_EXEC, ET_DYN, PT_LOAD, PT_DYNAMIC, PT_INTERP = 2, 3, 1, 2, 3
X86_64, I386, AARCH64 = 62, 3, 183
GLIBC, MUSL = "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"


def elf(
    path: Path, *, machine: int = X86_64, bits: int = 64, kind: int = ET_DYN, loader: str = "", is_pie: bool = False
) -> Path:
    """The head of an executable file: no code, but all that is looked at."""
    parts = [(PT_LOAD, b"")]
    if loader:
        parts.append((PT_INTERP, loader.encode() + b"\0"))
    if kind == ET_DYN:
        word = "Q" if bits == 64 else "I"
        flags = struct.pack(f"<{word}{word}", 0x6FFFFFFB, 0x08000000) if is_pie else b""
        parts.append((PT_DYNAMIC, flags + struct.pack(f"<{word}{word}", 0, 0)))
    head, each = (64, 56) if bits == 64 else (52, 32)
    body, table = b"", b""
    for number, data in parts:
        at = head + each * len(parts) + len(body)
        if bits == 64:
            table += struct.pack("<IIQQQQQQ", number, 4, at, 0, 0, len(data), len(data), 1)
        else:
            table += struct.pack("<IIIIIIII", number, at, 0, 0, len(data), len(data), 4, 1)
        body += data
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    words = "<HHIQQQIHHHHHH" if bits == 64 else "<HHIIIIIHHHHHH"
    rest = struct.pack(words, kind, machine, 1, 0, head, 0, 0, head, each, len(parts), 0, 0, 0)
    path.write_bytes(ident + rest + table + body)
    path.chmod(0o755)
    return path


@pytest.fixture
def library(tmp_path: Path) -> str:
    return str(elf(tmp_path / "gpu.so"))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"loader": GLIBC}, None),
        ({"loader": GLIBC, "kind": ET_EXEC}, None),
        ({"kind": ET_EXEC}, "linked statically"),
        ({"is_pie": True}, "linked statically"),
        ({}, None),  # a loader itself, or a library: what it starts is not known
        ({"loader": MUSL}, "musl"),
        (
            {"loader": "/lib/ld-linux.so.2", "machine": I386, "bits": 32},
            "32-bit i386 program and carpool's library is",
        ),
        ({"loader": "/lib/ld-linux-aarch64.so.1", "machine": AARCH64}, "64-bit aarch64"),
    ],
)
def test_a_program_is_reached_if_it_has_our_kind_of_loader(
    tmp_path: Path, library: str, facts: dict[str, int], why: str | None
) -> None:
    found = obstacle(str(elf(tmp_path / "program", **facts)), library)  # type: ignore[arg-type]  # the names above
    assert (found is None) if why is None else (found is not None and why in found)


@pytest.mark.parametrize(
    "line", ["#!{program}", "#! {program} -x", "#!/usr/bin/env {name}", "#!/usr/bin/env -S A=1 {name} -x"]
)
def test_of_a_script_the_interpreter_counts(tmp_path: Path, library: str, line: str) -> None:
    path = f"{tmp_path}:/usr/bin:/bin"
    for kind, is_reached in ((ET_EXEC, False), (ET_DYN, True)):
        program = elf(tmp_path / "interpreter", kind=kind, loader=GLIBC if is_reached else "")
        script = tmp_path / "script"
        script.write_text(line.format(program=program, name=program.name) + "\nwhatever\n")
        script.chmod(0o755)
        assert (obstacle(str(script), library, path=path) is None) == is_reached


def test_what_nobody_can_tell_counts_as_reached(tmp_path: Path, library: str) -> None:
    odd = {
        "empty": b"",
        "text": b"echo hello",
        "cut": b"\x7fELF\x02\x01\x01",
        "loop": f"#!{tmp_path}/loop\n".encode(),
    }
    for name, data in odd.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o755)
        assert obstacle(str(tmp_path / name), library) is None, name
    static = elf(tmp_path / "static", kind=ET_EXEC)
    assert obstacle(str(tmp_path / "missing"), library) is None
    assert obstacle(str(static), str(tmp_path / "text")) is None


def test_a_program_of_another_user_takes_no_library(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = elf(tmp_path / "program", loader=GLIBC)
    program.chmod(0o755 | stat.S_ISUID)
    assert obstacle(str(program), library) is None  # its own
    monkeypatch.setattr("os.getuid", lambda: program.stat().st_uid + 1)
    assert "other rights than yours" in (obstacle(str(program), library) or "")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler 'cc': real static programs are NOT looked at")
@pytest.mark.parametrize("how", ["-static", "-static-pie"])
def test_what_a_compiler_links_statically_is_seen(tmp_path: Path, how: str) -> None:
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }\n")
    done = subprocess.run(["cc", how, source, "-o", tmp_path / "main"], capture_output=True, timeout=60)
    if done.returncode:
        pytest.skip(f"cc {how} does not work here: its programs are NOT looked at")
    found = read_binary(tmp_path / "main")
    ours = read_binary(Path(sys.executable).resolve())
    assert found is not None and ours is not None and ours.loader is not None
    assert found == Binary(bits=ours.bits, machine=ours.machine, loader=None, is_program=True)


def patched(program: Path, where: Path, *changes: tuple[int, bytes]) -> Path:
    """A copy of a 64-bit program with other bytes in its head or table."""
    text = bytearray(program.read_bytes()[: 1 << 16])
    for at, said in changes:
        text[at : at + len(said)] = said
    where.write_bytes(text)
    return where


@pytest.mark.timeout(60)
def test_whatever_a_file_says_of_its_lengths_little_of_it_is_read(tmp_path: Path) -> None:
    """The daemon looks at programs of users: none of them may cost it memory, time or its life."""
    program, huge = Path(sys.executable).resolve(), (1 << 62).to_bytes(8, "little")
    table = int.from_bytes(program.read_bytes()[32:40], "little")
    every_part_is_huge = [(table + 56 * number + 32, huge) for number in range(12)]
    assert read_binary(patched(program, tmp_path / "huge", *every_part_is_huge)) is not None
    for name, changes in {
        "nowhere": [(32, huge)],
        "beyond": [(32, b"\xff" * 8)],
        "many": [(54, b"\xff" * 4)],
        "none": [(54, bytes(4))],
    }.items():
        read_binary(patched(program, tmp_path / name, *changes))
    endless = tmp_path / "endless"
    endless.write_bytes(program.read_bytes()[: 1 << 16])
    os.truncate(endless, 1 << 42)
    assert read_binary(endless) is not None
    os.mkfifo(tmp_path / "pipe", 0o777)
    (tmp_path / "pipe").chmod(0o777)
    assert read_binary(tmp_path / "pipe") is None
    assert obstacle(str(tmp_path / "pipe"), str(program)) is None
    assert read_binary(Path("/dev/zero")) is None
