"""How a process ended that is nobody's child here, as the kernel tells it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

from carpool.daemon import processes

INFO_BYTES, INFO_EXIT = 64, 1 << 3  # of the first version of struct pidfd_info; since Linux 6.15 it tells ends
GET_INFO = 0xC0000000 | INFO_BYTES << 16 | 0xFF << 8 | 11
EXIT_CODE = 49  # which field of `stat` that is, counted from the state


def exit_status(pid: int, pidfd: int | None) -> int | None:
    """As wait(2) has it: of a process that has not been waited for yet, or of which a descriptor is there from
    before. None if this kernel does not tell."""
    if os.geteuid() in (0, processes.owner_of(pid)):  # else the kernel shows 0 in its place
        fields = processes.look(pid, "stat", Path(f"/proc/{pid}/stat").read_bytes, b"").rpartition(b")")[2].split()
        if fields and fields[0] == b"Z":
            return int(fields[EXIT_CODE])
    if pidfd is None:
        return None
    told = bytearray(struct.pack("=Q", INFO_EXIT).ljust(INFO_BYTES, b"\0"))
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, GET_INFO, told)
        if struct.unpack_from("=Q", told)[0] & INFO_EXIT:
            return int(struct.unpack_from("=i", told, INFO_BYTES - 4)[0])
    return None
