"""What carpool.toml says of tenants reaches the core: at the start, and what changed when it is read again."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, TenantId
from carpool.core.node.settings import TenantTerms
from carpool.daemon.settings_file import parse_settings
from carpool.daemon.terms import changes, said_in
from carpool.errors import UsageError
from carpool.units import GIB

LAB = """
device = "cpu:2GiB"
[tenant.lab]
weight = 2
priorities = "0..5"
memory = "8GiB"
compute = "50%"
jobs = 4
devices = ["cpu"]
guaranteed = "25%"
order = "srtf"
[tenant-defaults]
jobs = 3
"""


def test_the_core_is_told_what_the_file_says() -> None:
    settings = parse_settings(LAB)
    told = settings.node_settings(settings.config())
    assert told.tenants == {
        "lab": TenantTerms(
            weight_milli=2000,
            guaranteed_milli=250,
            memory_bytes_max=8 * GIB,
            compute_milli_max=500,
            jobs_max=4,
            devices=(DeviceId("cpu"),),
            priorities=(0, 5),
            order="srtf",
        )
    }
    assert told.tenant_default == TenantTerms(jobs_max=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[tenant.a]\nguaranteed = "60%"\n[tenant.b]\nguaranteed = "60%"',
            "cannot be guaranteed 60 % of each device: 40 %",
        ),
        ('[tenant.a]\nguaranteed = "60%"\ncompute = "50%"', "a guarantee at most the ceiling"),
        ('[tenant.a]\norder = "pack"', "[tenant.a] the jobs of tenant a cannot go by pack"),
        ('[tenant-defaults]\nguaranteed = "1%"', "[tenant-defaults] a part of a device cannot be guaranteed to all"),
    ],
)
def test_what_makes_no_sense_together_is_refused_i22(text: str, words: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_settings(f'device = "cpu:2GiB"\n{text}')
    assert words in str(found.value)


def test_a_new_configuration_tells_only_what_changed_and_smaller_guarantees_first() -> None:
    before = said_in(parse_settings('[tenant.a]\nguaranteed = "80%"\n[tenant.b]\njobs = 1\n[tenant.c]\njobs = 2'))
    after = said_in(
        parse_settings('[tenant.b]\nguaranteed = "70%"\n[tenant.a]\nguaranteed = "20%"\n[tenant.c]\njobs = 2')
    )
    events = changes(before, after, by="root")
    assert [(event.tenant, event.by) for event in events] == [("a", "root"), ("b", "root")]
    gone = changes(after, said_in(parse_settings("")), by="root")
    assert {event.tenant: event.terms for event in gone} == dict.fromkeys(map(TenantId, "abc"))
