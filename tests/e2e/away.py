"""A directory that nobody can enter for a while: whoever looks up a name below it waits, as on a server that is gone.

A frozen file system lets everybody read. Here the kernel's automounter stands before the directory (autofs(5)), and
the one who would have to answer it does not, until it is told to.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKET = struct.Struct("=iiI")  # version, kind, and the token of who waits; more follows
PACKET_BYTES = 304
READY = 0x9360  # AUTOFS_IOC_READY


def _mount(source: str, target: str, kind: str, flags: int, words: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, words.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _serve(target: str, same: str) -> None:
    """Stand before `target` until a line comes, then let everybody through to `same`, the same directory."""
    reading, writing = os.pipe()
    words = f"fd={writing},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    _mount("carpool-test", target, "autofs", 0, words)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    print("away", flush=True)
    sys.stdin.readline()
    subprocess.run(["mount", "--bind", same, target], check=True)
    os.set_blocking(reading, False)
    print("back", flush=True)
    while True:
        try:
            fcntl.ioctl(root, READY, PACKET.unpack_from(os.read(reading, PACKET_BYTES))[2])
        except BlockingIOError:
            if not sys.stdin.readline():
                return


@contextmanager
def away(directory: Path) -> Iterator[None]:
    """Whoever goes through the directory waits until this is left; what is open already stays usable."""
    same = directory.with_suffix(".same")
    same.mkdir()
    subprocess.run(["mount", "--bind", str(directory), str(same)], check=True, capture_output=True)
    words = [sys.executable, __file__, str(directory), str(same)]
    pipe = subprocess.PIPE
    server = subprocess.Popen(words, text=True, process_group=0, stdin=pipe, stdout=pipe)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "away\n"
        yield
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "back\n"
        server.stdin.close()
        server.wait(60)
    finally:
        for each in (directory, directory, same):
            subprocess.run(["umount", "-l", str(each)], check=False, capture_output=True, timeout=60)
        server.kill()
        server.wait(60)
        server.stdout.close()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
