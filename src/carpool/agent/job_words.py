"""What the daemon told this process of its job, as its environment had it when the interpreter started (boot.py).

A program may clear or change its environment before its first turn; it is part of the job all the same.
"""

from __future__ import annotations

import os

from carpool.agent import boot


def job_word(name: str, default: str = "") -> str:
    """The environment tells it where no interpreter was started for a job."""
    return (os.environ if boot.words is None else boot.words).get(name, default)
