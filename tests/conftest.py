"""What tests of several parts share."""

from __future__ import annotations

import pytest

from tests.native.gpu import Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The CUDA guest, the stand-in driver and the probe, compiled once a run."""
    return build(tmp_path_factory.mktemp("gpu"))
