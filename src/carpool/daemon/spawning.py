"""The process that becomes the runner of a job in the background: the daemon's child, and nobody's prisoner.

It has a session of its own, so it outlives the daemon. An own daemon starts the runner itself. The machine's daemon
starts descent.py, which makes itself the job's user first (I43). What the runner has to know comes to it by a
descriptor then: the daemon keeps it where no user can read (I44).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from carpool.daemon import descent
from carpool.daemon.files import encode_file
from carpool.daemon.jobs import LiveJob
from carpool.daemon.standing import Standing
from carpool.daemon.user_files import make_directory
from carpool.wire.places import Places

PATH = "/usr/local/bin:/usr/bin:/bin"  # of the runner; its program has its submitter's


def start_runner(live: LiveJob, log: Path, places: Places) -> subprocess.Popen[bytes]:
    """OSError if the machine cannot start a process now."""
    words = ["-m", "carpool.cli.runner", str(live.directory), str(log)]
    if live.file.standing is None:
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    make_directory(log.parent, live.file.uid)
    return _descend(live, words, live.file.standing, places)


def _descend(live: LiveJob, words: list[str], standing: Standing, places: Places) -> subprocess.Popen[bytes]:
    told = os.memfd_create("carpool-job", os.MFD_CLOEXEC)
    try:
        orders = {
            "standing": standing,
            "argv": [sys.executable, "-I", *words, str(told)],
            "environment": {"PATH": PATH, "LC_ALL": "C.UTF-8", "CARPOOL_ROOT": str(places.root)},
            "end": str(live.directory / "end.json"),
        }
        with open(told, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(orders) + b"\n" + encode_file(live.file))
        os.lseek(told, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", descent.__file__, str(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={},
            pass_fds=[told],
        )
    finally:
        os.close(told)
