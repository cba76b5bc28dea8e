"""Waiting for a turn: every job waits here, every time it has none.

The wait may be long, so the daemon may ask for something meanwhile: that the program is parked or comes back
(agent/parking), or that it gives back what it only keeps for later.
"""

from __future__ import annotations

from collections.abc import Callable

from carpool.agent.link import Link
from carpool.agent.parking.park import Parking
from carpool.wire import messages as m


class Waiting:
    """The wait of this process for its turn; Turns begins it and says what becomes of it."""

    def __init__(self, link: Link, parking: Parking, trim: Callable[[], m.Measured]) -> None:
        self._link = link
        self._parking = parking
        self._trim = trim

    def wait_grant(self) -> m.Grant:
        """Block until the turn is granted, parked or not as the daemon says; the tensors are there at the end.

        LinkLostError leaves them where they are: the next wait, or `Parking.come_back`, follows.
        """
        while True:
            if self._parking.is_away:
                self._parking.wait_message()
            message = self._link.wait()
            match message:
                case m.Grant():
                    self._parking.come_back()
                    return message
                case m.Park():
                    self._link.send(self._parking.park(message.limit_bytes))
                case m.Unpark():
                    self._link.send(self._parking.unpark())
                case m.Trim() if not self._parking.is_away:
                    self._link.send(self._trim())
                case _:
                    pass
