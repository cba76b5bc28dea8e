"""carpool.toml: what is read, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.daemon.settings_file import MachineSettings, TenantSettings, group_id, load_settings, parse_settings
from carpool.errors import UsageError

WHOLE = """
policy = "fair"
device = "cpu:2GiB"
warm = true

[access]
group = "root"
admins = ["root", "@wheel"]
private = true

[limits]
jobs = 5
hog = "10m"

[tenant.lab]
members = ["ana", "@students"]
weight = 2
priorities = "0..5"
memory = "1GiB"
compute = "50%"
devices = ["cpu"]
guaranteed = "25%"

[tenant-defaults]
jobs = 3
"""


def test_a_whole_file_is_read() -> None:
    settings = parse_settings(WHOLE)
    assert (settings.daemon.device, settings.daemon.warm) == ("cpu:2GiB", True)
    assert (settings.access.admins, settings.access.private) == (("root", "@wheel"), True)
    assert (settings.limits.jobs, settings.limits.hog) == (5, "10m")
    lab = settings.tenants["lab"]
    assert (lab.members, lab.weight, lab.devices) == (("ana", "@students"), 2.0, ("cpu",))
    assert settings.tenant_defaults == TenantSettings(jobs=3)
    assert settings.config().tenant_weights == "lab=2"
    assert parse_settings("") == MachineSettings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policies = 'fair'", "policies is no setting; do you mean policy?"),
        ("[limit]\njobs = 1", "limit is no setting; do you mean limits?"),
        ("[access]\nadmin = ['ana']", "[access] admin is no setting; do you mean admins?"),
        ("[tenant.lab]\nxyz = 1", "[tenant.lab] xyz is no setting; there are members, weight,"),
        ("policy = 1", "policy: expected `str`, got `int`"),
        ("[limits]\njobs = 'many'", "[limits] jobs: expected `int`, got `str`"),
        ("[limits]\njobs = -1", "[limits] jobs = -1: say how many at most"),
        ("[limits]\nlog_size = 'big'", "[limits] log_size: 'big' is not a size"),
        ("[tenant.lab]\nweight = 0", "weight = 0: it must be above 0"),
        ("[tenant.lab]\npriorities = '5..0'", "priorities = '5..0': write the least and the most, like 0..5"),
        ("[tenant.lab]\ndevices = ['gpu9']", "[tenant.lab] devices: there is no device gpu9; there are "),
        ("[tenant]\nlab = 1", "tenant.lab is a table: write [tenant.lab]"),
        ("access = 1", "access is a table: write [access]"),
        ("policy =", "this is not TOML"),
        ("policy = 'nonsense'", "nonsense"),
        ("device = 'abacus'", "abacus"),
    ],
)
def test_what_is_wrong_is_named_i22(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_settings(text)
    assert words in str(refused.value)


def test_a_file_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read: No such file"):
        load_settings(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="bytes is not UTF-8"):
        load_settings(tmp_path / "bytes")
    (tmp_path / "wrong").write_text("[access")
    with pytest.raises(UsageError, match="wrong: this is not TOML"):
        load_settings(tmp_path / "wrong")


def test_the_group_has_to_be_there() -> None:
    assert (group_id(""), group_id("root")) == (None, 0)
    with pytest.raises(UsageError, match="no such group; make it: groupadd nobody-has-this"):
        group_id("nobody-has-this")
