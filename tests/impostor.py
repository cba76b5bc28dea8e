"""Something that listens on the daemon's socket in its place, for what a command makes of an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from carpool.wire.places import Places

ACCEPT_SECONDS = 30


@contextlib.contextmanager
def impostor(places: Places, reply: Callable[[], bytes]) -> Iterator[None]:
    """Answer everything with what `reply` gives then."""
    for directory in (places.run, places.state):
        directory.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(places.socket))
    listener.listen()
    listener.settimeout(ACCEPT_SECONDS)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    if peer.recv(1 << 16):
                        peer.sendall(reply())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(ACCEPT_SECONDS)
