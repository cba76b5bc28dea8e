"""What a recorded program does to the world: what cannot be replayed is noted, what is only looked up is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CURTAIN = """
import contextlib, os, shutil, sys
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
        ("import tempfile; tempfile.TemporaryDirectory().cleanup()", ""),
        ("import os; os.remove('/run/somewhere/bells/7')", ""),
        ("import os; os.open('/run/state/parked', os.O_RDWR | os.O_TMPFILE)", ""),
        ("open('/dev/null', 'w').close()", ""),
        # What a replay does again, because it finds the files as they were.
        ("open('new', 'w').close(); os.remove('new')", ""),
        ("open('new', 'w').close(); os.replace('new', 'old')", ""),
        ("os.mkdir('out'); open('out/new', 'w').close(); os.rename('out', 'in'); os.remove('in/new')", ""),
        ("os.mkdir('out'); open('out/new', 'w').close(); shutil.rmtree('out')", ""),
        ("os.symlink('old', 'link'); os.remove('link')", ""),
        ("open('old', 'a').close()", ""),
        ("open('old', 'w').close()", ""),
        ("open('old').close(); open('old', 'a').close()", ""),
        ("import sqlite3; sqlite3.connect('new')", ""),
        # What cannot be undone.
        ("open('old').close(); open('old', 'w').close()", "it read HERE/old and then wrote it anew"),
        (
            "open('old').close(); open('new', 'w').close(); os.replace('new', 'old')",
            "it read HERE/old and then wrote it anew",
        ),
        ("open('old', 'r+').close()", "it changed HERE/old, which was there before it"),
        ("os.truncate('old', 1)", "it changed HERE/old, which was there before it"),
        ("import sqlite3; sqlite3.connect('old')", "it changed HERE/old, which was there before it"),
        ("os.remove('old')", "it removed HERE/old, which was there before it"),
        ("open('old', 'a').close(); os.remove('old')", "it removed HERE/old, which was there before it"),
        ("shutil.rmtree('there')", "it removed HERE/there/old, which was there before it"),
        ("os.rename('old', 'new')", "it renamed HERE/old, which was there before it"),
        ("os.rename('there', 'new')", "it renamed HERE/there, which was there before it"),
        ("import subprocess; subprocess.run(['true'])", "it started another program"),
        ("import os; os.system('true')", "it started another program"),
        (f"exec({LOADED.format(forks=False, workers=2)!r})", ""),
        (f"exec({LOADED.format(forks=True, workers=0)!r})", "it started processes that are no data workers"),
    ],
)
def test_only_deeds_that_cannot_be_done_again_stand_in_the_way(tmp_path: Path, deed: str, said: str) -> None:
    (tmp_path / "there").mkdir()
    for name in ("old", "there/old"):
        (tmp_path / name).write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", CURTAIN.format(deed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == said.replace("HERE", str(tmp_path))
