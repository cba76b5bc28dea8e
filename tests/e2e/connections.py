"""Cuts a job's connection to the daemon from outside, as a broken link would: neither side closed it."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

PIDFD_GETFD = 438  # the number of the system call, the same on every machine


def cut(daemon_pid: int, peer_pid: int) -> int:
    """Shut down every connection between the two; returns how many. PermissionError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    process, count = os.pidfd_open(daemon_pid), 0
    try:
        for entry in Path(f"/proc/{daemon_pid}/fd").iterdir():
            if not _is_socket(entry):
                continue
            fd = libc.syscall(PIDFD_GETFD, process, int(entry.name), 0)
            if fd >= 0:
                count += _shut(socket.socket(fileno=fd), peer_pid)
            elif ctypes.get_errno() == 1:
                raise PermissionError(f"this user may not reach into process {daemon_pid}")
    finally:
        os.close(process)
    return count


def _is_socket(entry: Path) -> bool:
    try:
        return str(entry.readlink()).startswith("socket:")
    except FileNotFoundError:
        return False


def _shut(end: socket.socket, peer_pid: int) -> bool:
    with end:
        if end.family is not socket.AF_UNIX or end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        pid, _, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid != peer_pid:
            return False
        end.shutdown(socket.SHUT_RDWR)
        return True
