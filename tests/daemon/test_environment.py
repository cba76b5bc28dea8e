"""What a job finds in its environment: libraries, where LD_PRELOAD can hold their paths, and what is lost without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.core.node.model import JobSpec
from carpool.daemon.environment import job_environment, preloadable
from carpool.daemon.files import JobFile
from carpool.devices.base import DeviceFacts
from carpool.devices.kinds import KINDS
from carpool.errors import UsageError
from carpool.wire.places import Places

GPU = DeviceFacts(id="gpu0", kind=KINDS["cuda"], capacity_bytes=1 << 30, title="")
CPU = DeviceFacts(id="cpu", kind=KINDS["cpu"], capacity_bytes=1 << 30, title="")
ALL_FOUR = JobSpec(
    name="job", cap_bytes=1 << 20, guaranteed_milli=200, limit_milli=200, may_oversubscribe=True, wait_memory_ns=1
)


def file_of(spec: JobSpec, *argv: str, cwd: str = "/") -> JobFile:
    return JobFile(job="job", number=1, spec=spec, argv=list(argv) or ["./app"], cwd=cwd)


def places(directory: Path) -> Places:
    run = directory / "run"
    run.mkdir(parents=True)
    return Places(run=run, state=directory / "state")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "my dir").mkdir()
    (tmp_path / "my dir" / "gpu.so").write_text("the library")
    return tmp_path / "my dir" / "gpu.so"


def test_a_path_without_spaces_and_colons_stays(tmp_path: Path) -> None:
    assert preloadable("/opt/carpool/gpu.so", places(tmp_path)) == "/opt/carpool/gpu.so"
    assert preloadable(None, places(tmp_path / "other")) is None


def test_a_path_with_a_space_becomes_a_link_that_follows_it(tmp_path: Path, library: Path) -> None:
    here = places(tmp_path / "home")
    found = preloadable(str(library), here)
    assert found == preloadable(str(library), here) == str(here.run / "preload" / "gpu.so")
    assert Path(found).read_text() == "the library"
    other = tmp_path / "a:b" / "gpu.so"
    other.parent.mkdir()
    other.write_text("another")
    assert preloadable(str(other), here) == found
    assert Path(found).read_text() == "another"


def test_a_cap_is_refused_where_no_place_will_do(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_NATIVE", str(library.parent))
    here = places(tmp_path / "a home")
    with pytest.raises(
        UsageError, match="--memory cannot be kept .* space or colon, nor from .*a home/run; set CARPOOL_DIR"
    ):
        job_environment(here, GPU, file_of(JobSpec(name="job", cap_bytes=1 << 20)), here.run / "page")
    free = job_environment(here, GPU, file_of(JobSpec(name="job")), here.run / "page")
    assert "LD_PRELOAD" not in str(free)


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """No library of carpool's was built."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("CARPOOL_NATIVE", str(tmp_path / "nothing"))
    return places(tmp_path / "home")


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (JobSpec(name="job", cap_bytes=1 << 20), "--memory"),
        (JobSpec(name="job", guaranteed_milli=200, limit_milli=200), "--compute"),
        (JobSpec(name="job", guaranteed_milli=200), "--compute"),
        (JobSpec(name="job", limit_milli=200), "--compute"),
        (JobSpec(name="job", may_oversubscribe=True), "--oversubscribe"),
        (JobSpec(name="job", wait_memory_ns=1), "--wait-memory"),
        (ALL_FOUR, "--memory, --compute, --oversubscribe and --wait-memory"),
    ],
)
def test_what_only_the_missing_library_keeps_on_a_gpu_is_refused_by_name(
    unbuilt: Places, spec: JobSpec, options: str
) -> None:
    with pytest.raises(UsageError) as refused:
        job_environment(unbuilt, GPU, file_of(spec), unbuilt.run / "page")
    said = str(refused.value)
    assert said.startswith(f"{options} cannot be kept on a GPU: the library that does it was not built; install gcc")
    assert f"reinstall carpool, or run without {options}" in said


def test_a_pythons_share_of_a_gpu_is_kept_by_turns_and_its_other_limits_are_not(
    unbuilt: Places, tmp_path: Path
) -> None:
    share = JobSpec(name="job", guaranteed_milli=200, limit_milli=200)
    launcher = tmp_path / "train"
    launcher.write_text("#!/usr/bin/env python3\n")
    launcher.chmod(0o755)
    for argv in (
        ["python", "train.py"],
        ["/opt/venv/bin/python3.11", "-m", "train"],
        ["torchrun", "x.py"],
        ["./train"],
    ):
        job_environment(unbuilt, GPU, file_of(share, *argv, cwd=str(tmp_path)), unbuilt.run / "page")
    for argv in (["sh", "train.sh"], ["./gone"]):
        with pytest.raises(UsageError, match="PyTorch keeps it by its turns, if python is what you start"):
            job_environment(unbuilt, GPU, file_of(share, *argv, cwd=str(tmp_path)), unbuilt.run / "page")
    with pytest.raises(UsageError, match="^--memory, --oversubscribe and --wait-memory cannot be kept on a GPU"):
        job_environment(unbuilt, GPU, file_of(ALL_FOUR, "python", "train.py"), unbuilt.run / "page")


def test_on_the_cpu_device_a_share_needs_no_library_and_waiting_needs_the_meter(unbuilt: Places) -> None:
    share = JobSpec(name="job", guaranteed_milli=200, limit_milli=200)
    job_environment(unbuilt, CPU, file_of(share), unbuilt.run / "page")
    waits = JobSpec(name="job", guaranteed_milli=200, limit_milli=200, wait_memory_ns=1)
    with pytest.raises(UsageError, match="--wait-memory needs the byte meter"):
        job_environment(unbuilt, CPU, file_of(waits), unbuilt.run / "page")
    (Path(os.environ["CARPOOL_NATIVE"]) / "meter.so").touch()
    made = job_environment(unbuilt, CPU, file_of(waits), unbuilt.run / "page")
    assert "nothing/meter.so" in str(made["prepend"])
