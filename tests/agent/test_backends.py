"""Inside a job each kind of device has a backend, under the name that the daemon gives it."""

from __future__ import annotations

import pytest

from carpool.agent.backends import BACKENDS, backend_named, own_backend
from carpool.devices.kinds import KINDS
from carpool.errors import PeerError


def test_every_kind_of_device_has_a_backend_of_its_name_that_agrees_with_it() -> None:
    assert set(BACKENDS) == set(KINDS)
    for name, backend in BACKENDS.items():
        assert backend.name == name
        assert backend.is_host_memory == KINDS[name].is_host_memory


def test_a_job_has_the_backend_of_its_device_and_the_cpus_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARPOOL_DEVICE_KIND", raising=False)
    assert own_backend() is BACKENDS["cpu"]
    monkeypatch.setenv("CARPOOL_DEVICE_KIND", "cuda")
    assert own_backend() is BACKENDS["cuda"]


def test_a_kind_without_a_backend_is_named_with_those_that_have_one() -> None:
    with pytest.raises(PeerError, match="devices of the kind 'abacus' is not known here, only on cpu, cuda"):
        backend_named("abacus")
