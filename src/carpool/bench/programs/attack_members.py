"""Attempts to stop others: by the seat of another process, and by a page that is cut short.

Each answers with what it achieved, which should be nothing.
"""

import json
import os
import socket
import struct

from attack_driver import NotHereError

# attach and detach: made from src/carpool/wire by make docs
_PROTOCOL = 5
_FRAME, _FRAME_BYTES = "<HHI4Q", 40


def _attach(job, pid, slot, holding, version, protocol):
    return 1, {"job": job, "pid": pid, "slot": slot, "holding": holding, "version": version, "protocol": protocol}


def _detach(reason):
    return 7, {"reason": reason}


# end of what is made
ATTACHED, REFUSE = 2, 11
ANSWER_SECONDS = 20


def attach_as(pid):
    """The kind of the daemon's answer to a process that says it is this one; None if there is no daemon any more."""
    job, where = os.environ.get("CARPOOL_JOB"), os.environ.get("CARPOOL_SOCKET")
    if not job or not where:
        raise NotHereError("there is no daemon")
    kind, fields = _attach(
        job=job, pid=pid, slot=0, holding=False, version=os.environ["CARPOOL_VERSION"], protocol=_PROTOCOL
    )
    body = json.dumps(fields).encode()
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(ANSWER_SECONDS)
            peer.connect(where)
            peer.sendall(struct.pack(_FRAME, kind, 0, len(body), 0, 0, 0, 0) + body)
            answer = peer.recv(_FRAME_BYTES, socket.MSG_WAITALL)
    except OSError:
        return None
    return struct.unpack(_FRAME, answer)[0] if len(answer) == _FRAME_BYTES else None


def turn_claimed(_):
    """Say that this process is the one that started it."""
    answer = attach_as(os.getppid())
    return {ATTACHED: ["the seat of another process"], REFUSE: []}.get(answer, ["an end of the daemon"])


def turn_page_cut(_):
    """Cut the page short, and look whether the daemon is still there: its answer must read the page."""
    path = os.environ.get("CARPOOL_PAGE")
    if not path:
        raise NotHereError("there is no page")
    os.truncate(path, 0)
    answer = attach_as(os.getpid())
    return {ATTACHED: ["a turn without a page"], REFUSE: []}.get(answer, ["an end of the daemon"])
