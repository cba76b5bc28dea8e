"""The process between the warm parent and one program: the program's parent, and what its runner talks to.

It lives as long as the program, so the warm parent may end or be killed meanwhile. It leads the process group in
which the program is, so the program can make a session of its own, as in a cold start. It takes no signal.

Rules
  V15 A program begins to run only when its runner has said go; a runner that has given up, and started it cold, never
      does. A program runs once.
  V16 A runner of `carpool run` that is gone takes its program with it: what killed both in a cold start kills one
      here. That of a submitted job leaves it running, as in a cold start.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any

from carpool.wire import warm

GO = b"g"
READY_SECONDS = 30.0


def keep(peer: socket.socket, request: Mapping[str, Any]) -> tuple[int, int] | None:
    """Fork the program and stay until its end; in the program, where it tells that it is ready and where it hears
    that it may go. Never returns in the keeper."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.setpgid(0, 0)
    ready_out, ready_in = os.pipe()
    go_out, go_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready_out)
        os.close(go_in)
        return ready_in, go_out
    os.close(ready_in)
    os.close(go_out)
    code = 1
    try:
        _Keeper(pid, peer, stays=bool(request["keep"])).serve(ready_out, go_in)
        code = 0
    finally:
        os._exit(code)


class _Keeper:
    def __init__(self, pid: int, peer: socket.socket, *, stays: bool) -> None:
        self._pid = pid
        self._peer: socket.socket | None = peer
        self._stays = stays

    def serve(self, ready: int, go: int) -> None:
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        if not self._begin(ready, go):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            return
        while not self._tell_changes():
            files = [wake_out, *([self._peer.fileno()] if self._peer is not None else [])]
            found = select.select(files, [], [])[0]
            if wake_out in found:
                os.read(wake_out, 4096)
            if self._peer is not None and self._peer.fileno() in found:
                self._hear()

    def _begin(self, ready: int, go: int) -> bool:
        """Whether the program became what was asked for, and its runner still wants it (V15)."""
        trouble = b""
        while part := os.read(ready, 4096):
            if part == GO:
                break
            trouble += part
        else:
            self._say(cold=trouble.decode(errors="replace") or "the warm parent could not become the program")
            return False
        self._say(pid=self._pid, keeper=os.getpid())
        if self._peer is None or not select.select([self._peer], [], [], READY_SECONDS)[0]:
            return False
        with contextlib.suppress(OSError):
            if self._peer.recv(1) == GO:
                os.write(go, GO)
                os.close(go)
                os.close(ready)
                return True
        return False

    def _say(self, **word: object) -> None:
        if self._peer is not None:
            with contextlib.suppress(OSError):
                warm.send_word(self._peer, **word)

    def _hear(self) -> None:
        """Its runner says nothing more; it is gone, then (V16)."""
        with contextlib.suppress(OSError):
            if self._peer is not None and self._peer.recv(4096):
                return
        self._peer = None
        if not self._stays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.killpg(0, signal.SIGKILL)  # with those it started, and this process

    def _tell_changes(self) -> bool:
        """Tell that it was stopped, or its end; whether it ended."""
        while True:
            pid, status, usage = os.wait4(self._pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return False
            if os.WIFSTOPPED(status):
                self._say(status=status)
                continue
            self._say(status=status, cpu_s=usage.ru_utime + usage.ru_stime)
            return True
