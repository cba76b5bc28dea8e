"""What a job finds in its environment: a library whose path LD_PRELOAD cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.core.model import JobSpec
from carpool.daemon.environment import job_environment, preloadable
from carpool.devices.base import DeviceFacts
from carpool.errors import UsageError
from carpool.wire.places import Places

GPU = DeviceFacts(id="gpu0", kind="cuda", capacity_bytes=1 << 30, title="")


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
        job_environment(here, GPU, JobSpec(name="job", cap_bytes=1 << 20), job="job", page=here.run / "page")
    free = job_environment(here, GPU, JobSpec(name="job"), job="job", page=here.run / "page")
    assert "LD_PRELOAD" not in str(free)
