"""What the daemon reads of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carpool.daemon import processes

SPIN = "import os; os.nice({nice})\nwhile True: pass"
SECONDS = 20.0


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits for a processor"
)
def test_a_process_that_gets_no_processor_is_busy_and_one_that_sleeps_is_not() -> None:
    core = min(os.sched_getaffinity(0))
    starved, rival, asleep = (
        start(SPIN.format(nice=19)),
        start(SPIN.format(nice=0)),
        start("import time; time.sleep(60)"),
    )
    try:
        for child in (starved, rival):
            os.sched_setaffinity(child.pid, {core})
        began = time.monotonic()
        while processes.busy_ns(starved.pid) < 500_000_000 and time.monotonic() - began < SECONDS:
            time.sleep(0.05)
        assert processes.busy_ns(starved.pid) >= 500_000_000
        assert processes.busy_ns(asleep.pid) < 250_000_000
    finally:
        for child in (starved, rival, asleep):
            child.kill()
            child.wait()
    assert processes.busy_ns(starved.pid) == 0
