"""Moments at which a test wants the daemon dead: it kills itself there, as the machine might.

`CARPOOL_DIE_AT` names one. Each message has two, like `Enter.before` and `Enter.after` it was taken in; so have a
`Start` that is sent, and a call by its verb. `spawned`: a runner runs of which nothing is noted. `ended`: a job is
over, and that is in no journal.
"""

from __future__ import annotations

import os
import signal

from carpool.wire import messages as m

DIE_AT = os.environ.get("CARPOOL_DIE_AT", "")


def pass_by(moment: str) -> None:
    if moment == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def name_of(message: m.Message) -> str:
    return message.verb if isinstance(message, m.Call) else type(message).__name__
