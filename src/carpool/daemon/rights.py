"""What a daemon of all users may do that other programs of its account may not, where that is not root.

Root, or systemd, starts it with a few of root's rights (cli/launch.py). They are for the daemon's process alone.

Rules
  I27 As a service account the machine's daemon has rights over files and processes, and none to become another user:
      it starts nobody's program. What it starts itself has none of them.
"""

from __future__ import annotations

import ctypes
import os

AMBIENT, CLEAR_ALL = 47, 4  # prctl(2)


def keep_rights() -> None:
    """From now on nothing that this process starts inherits its rights; root's are of another kind."""
    if os.geteuid() != 0:
        ctypes.CDLL(None, use_errno=True).prctl(AMBIENT, CLEAR_ALL, 0, 0, 0)
