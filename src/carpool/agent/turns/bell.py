"""The turn goes straight from the holder to the next job, and the daemon hears of it afterwards.

While a turn is recalled, the daemon has chosen which job gets it next (rule D5 of the core). It writes that choice as
a *pass* into the holder's slot, and the same word as an *offer* into the slot of the job that waits. At its boundary
the holder marks the pass as used and rings the bell of the process that the pass names. That process begins at once,
without waiting for the daemon. Ringing and listening are C (native/bell.h): between two jobs the caches are cold, and
Python is slow then.

Rules
  B1  Either the daemon takes a pass back or the holder uses it, never both: one atomic exchange of the word decides.
      The daemon takes it back before it decides anything (daemon/handovers.py).
  B2  A bell is believed only if it rings the word that stands as the offer in this process's own slot.
  B3  A bell is only earlier news: the daemon sends the same grant, with the same serial, to every job that was rung.
      Whichever comes second, bell or grant, is not another turn.
  B4  The holder knocks when the last piece of its turn begins, its optimizer's update. The next job then wakes and
      listens for a moment. A knock promises nothing: a job that heard one and no bell sleeps again. Before it listens
      it rehearses: it runs the code that torch runs after a step, to no effect, because that code left the caches.
  B5  A job that listens is not in the way of the holder. If it wakes on the holder's processor, it moves to another
      one that it may use, and the holder lets it run for that, unless other programs want that processor too. Where
      its threads may run is the same before and after.
  B6  A pass is quiet where nothing depends on when the daemon hears that it was used. The daemon then looks at its
      next event, or when the next job has had its quantum, and tells the core the time at which the pass was used.
      Nobody wakes the daemon for that. A pass is not quiet if limits count the time of turns, or the node has several
      devices. Then the holder tells the daemon at once, and so it does if it could not ring the next job, or if
      Python hands over.
  B7  A program may close descriptors that are not its own, and open others with their numbers. Before carpool uses or
      closes one, it looks whether that is still what it opened. One that is not is the program's: carpool leaves it
      alone, and connects anew or makes a new store for parked tensors.
"""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

from carpool.agent.descriptors import Descriptor
from carpool.agent.turns.hot_path import PlainTurnState, native
from carpool.wire import messages as m
from carpool.wire import page
from carpool.wire.protocol import BELL_LOOK_MS

DIRECTORY = "bells"  # beside the daemon's socket


class OwnSocket:
    """A socket of carpool's inside a program, and whether its descriptor still is that socket (B7)."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self._descriptor = Descriptor(opened.fileno())
        self.inode = self._descriptor.inode

    def is_ours(self) -> bool:
        return self.socket.fileno() >= 0 and self._descriptor.is_ours()

    def close(self) -> None:
        if self.is_ours():
            self.socket.close()
        else:
            self.socket.detach()


class Bell:
    """This process's bell: a datagram socket that the daemon made, named after the process by the pid that the daemon
    sees. So no other process can take its name, and this one needs to write nowhere."""

    def __init__(self, directory: Path, descriptor: int, state: PlainTurnState) -> None:
        self._state = state
        self._own = OwnSocket(socket.socket(fileno=descriptor))
        try:
            state.hang_bell(descriptor, os.fsencode(directory))
        except OSError:
            self._own.close()
            raise

    def is_ours(self) -> bool:
        return self._own.is_ours()

    def wait(self, own_peer: OwnSocket) -> m.Grant | None:
        """Until a turn is rung, which is returned, or the connection has something, or the program closed it (B7)."""
        peer, poll = own_peer.socket, select.poll()
        poll.register(self._own.socket, select.POLLIN)
        poll.register(peer, select.POLLIN)
        while self._own.is_ours() and own_peer.is_ours():
            ready = [fd for fd, _ in poll.poll(BELL_LOOK_MS)]
            word = self._state.hear()
            if word:
                return m.Grant(lane_bytes=0, is_shared=page.pass_is_shared(word), serial=page.pass_serial(word))
            if peer.fileno() in ready:
                break
        return None

    def close(self) -> None:
        """The daemon takes its name away."""
        self._state.take_bell_down()
        self._own.close()


def open_bell(directory: Path, descriptor: int, state: PlainTurnState) -> Bell | None:
    """The bell that the daemon gave this process. None without the C modules (B1 needs the exchange), where it gave
    none, and for a process that it does not see: then every turn goes through the daemon."""
    if descriptor < 0:
        return None
    if native is None or not page.HAS_SWAP:
        os.close(descriptor)
        return None
    try:
        return Bell(directory, descriptor, state)
    except OSError:
        return None
