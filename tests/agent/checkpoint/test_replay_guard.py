"""What a recorded program does to the world: what cannot be replayed is noted, what is only looked up is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

CURTAIN = """
import contextlib, os, sys
from carpool.agent.checkpoint.replay_guard import ReplayGuard
os.environ["CARPOOL_SOCKET"] = "/run/somewhere/daemon.sock"
os.environ["CARPOOL_PARKED"] = "/run/state/parked"
guard = ReplayGuard("", "")
sys.addaudithook(guard.audit)
with contextlib.suppress(OSError):
    {}
print(guard.trouble.partition(";")[0])
"""

LOADED = """
import os
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if {forks}:
            child = os.fork()
            os.waitpid(child, 0) if child else os._exit(0)
        return index
list(DataLoader(Numbers(), num_workers={workers}))
"""


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("import ctypes.util; ctypes.util.find_library('dl')", ""),
        ("import tempfile; tempfile.TemporaryFile().close()", ""),
        ("import os; os.remove('/run/somewhere/bells/7')", ""),
        ("import os; os.open('/run/state/parked', os.O_RDWR | os.O_TMPFILE)", ""),
        ("import os; os.open('/run/state', os.O_RDWR | os.O_TMPFILE)", "it wrote to /run/state"),
        ("import os; os.open('/run/state/parked.txt', os.O_RDWR)", "it wrote to /run/state/parked.txt"),
        ("import os; os.remove('/run/elsewhere/weights')", "it removed files"),
        ("open('/dev/null', 'w').close()", ""),
        ("open('/dev/shm/somewhere/weights', 'w').close()", "it wrote to /dev/shm/somewhere/weights"),
        ("import os; os.remove('/dev/shm/somewhere/weights')", "it removed files"),
        ("import subprocess; subprocess.run(['true'])", "it started another program"),
        ("import os; os.system('true')", "it started another program"),
        (f"exec({LOADED.format(forks=False, workers=2)!r})", ""),
        (f"exec({LOADED.format(forks=True, workers=0)!r})", "it started processes that are no data workers"),
    ],
)
def test_only_deeds_of_the_program_itself_stand_in_the_way(deed: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CURTAIN.format(deed)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == said
