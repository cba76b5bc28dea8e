"""What a submitted job's runner takes over from whoever submitted it."""

from __future__ import annotations

import os
import subprocess
import sys

# A process that may not raise its own limits any more, nor its priority.
WITHOUT_RIGHTS = """
import os, resource
from carpool.calls import Inherited
from carpool.cli.inherit import take_over
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(5)
if os.geteuid() == 0:
    os.setuid(65534)
wanted = Inherited(
    umask=0o22, nice=0, scheduler=os.SCHED_OTHER, cpus=sorted(os.sched_getaffinity(0)),
    limits={"RLIMIT_CORE": (4096, 8192), "RLIMIT_NOFILE": (100, 100), "RLIMIT_OF_ANOTHER_SYSTEM": (1, 1)},
    ignored_signals=[], blocked_signals=[],
)
take_over(wanted, print)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_what_may_not_be_taken_over_is_said_and_the_rest_is() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_RIGHTS], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    lines, nice = done.stdout.splitlines(), min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    assert lines == [
        f"the program runs with nice {nice} instead of 0: Permission denied",
        "the program runs with RLIMIT_CORE 0 instead of 4096: the daemon's runner may give no more",
        "(100, 100)",
    ]
