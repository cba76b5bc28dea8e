"""The CPU device is as large as the memory that its processes may use: the machine's, or that of a cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.daemon.config import DaemonConfig
from carpool.devices import cpu
from carpool.errors import UsageError
from carpool.units import GIB, MIB

V1_UNLIMITED = 9223372036854771712


def make(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": GIB}, GIB),
        (
            {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/memory.max": GIB, "sys/fs/cgroup/a/b/memory.max": "max"},
            GIB,
        ),
        (
            {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/memory.max": GIB, "sys/fs/cgroup/a/b/memory.max": MIB},
            MIB,
        ),
        ({"proc/self/cgroup": "0::/../../out/side", "sys/fs/cgroup/memory.max": GIB}, GIB),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/slurm/job\n0::/",
                "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes": V1_UNLIMITED,
                "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": GIB,
            },
            GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/of/the/machine",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 2 * GIB,
            },
            2 * GIB,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        ({"proc/self/cgroup": "garbage\n\n::", "sys/fs/cgroup/memory.max": "many"}, None),
        ({}, None),
    ],
    ids=["v2", "up the tree", "the least", "namespace", "v1", "v1 container", "no limit", "garbage", "no cgroups"],
)
def test_the_memory_is_that_of_the_narrowest_cgroup(
    tmp_path: Path, files: dict[str, object], expected: int | None
) -> None:
    found = cpu.memory_bytes(make(tmp_path, files))
    assert found == (cpu.machine_bytes() if expected is None else expected)


def test_device_and_host_memory_are_those_of_the_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": GIB})
    whole = cpu.memory_bytes
    monkeypatch.setattr(cpu, "memory_bytes", lambda: whole(root))
    assert [device.capacity_bytes for device in cpu.find("", 1)] == [GIB // 2]
    assert DaemonConfig(device="cpu", park_to="/tmp").with_host_memory().host_memory == "512MiB"
    with pytest.raises(UsageError, match="asks for 2.00 GiB, this process's memory cgroup has 1.00 GiB"):
        cpu.find("2GiB", 1)


def test_a_real_memory_cgroup_is_seen() -> None:
    own = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    if own is None:
        top, name = Path("/sys/fs/cgroup"), "memory.max"
    else:
        top, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    group = top / f"carpool-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(GIB))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"NOT TESTED: a real memory cgroup. None can be made here: {error}")
    try:
        words = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -c '{ASK}'"
        done = subprocess.run(["/bin/sh", "-c", words], capture_output=True, text=True, timeout=100, check=False)
        assert (done.stdout.split(), done.stderr) == ([str(GIB), str(GIB // 2)], "")
    finally:
        group.rmdir()


ASK = "from carpool.devices import cpu; print(cpu.memory_bytes(), cpu.default_capacity_bytes())"
