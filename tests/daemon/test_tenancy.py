"""Whose tenant a job is, and what an admin writes of tenants into carpool.toml."""

from __future__ import annotations

import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId, TenantId
from carpool.daemon.config import DaemonConfig
from carpool.daemon.people import Caller, User
from carpool.daemon.reload import InForce
from carpool.daemon.settings_edit import save_tenant, with_tenant
from carpool.daemon.settings_file import TenantSettings, load_settings, parse_settings
from carpool.daemon.tenancy import Tenancy, choose, tenants_of
from carpool.daemon.translate import spec_from, spec_said
from carpool.errors import RefusedError, UsageError
from carpool.wire.places import Places
from tests.daemon.node import ME, Node, in_node

ANA = User(uid=4001, name="ana", groups=frozenset({"students"}))
BEN = User(uid=4002, name="ben")
TEXT = """device = "cpu:1GiB"  # the cores

[tenant.lab]  # the staff
members = ["ana"]
# two of three cards
weight = 2.0

# everybody else
[tenant.class]
members = ["@students"]
"""


def test_a_job_is_of_the_first_tenant_of_which_its_user_is_a_member_i36() -> None:
    settings = parse_settings(TEXT)
    assert tenants_of(settings, ANA) == ["lab", "class"]
    for said in ("", "default", "lab"):
        assert choose(settings, ANA, said) == "lab"
    assert choose(settings, ANA, "class") == "class"
    assert tenants_of(settings, BEN) == ["ben"]
    assert choose(settings, BEN, "default") == "ben"


@pytest.mark.parametrize("said", ["lab", "ana", "root", "LAB"])
def test_nobody_gets_into_a_tenant_by_saying_so_i36(said: str) -> None:
    with pytest.raises(RefusedError, match=f"user ben is no member of tenant {said}; .* yours: ben"):
        choose(parse_settings(TEXT), BEN, said)


def test_nobody_gets_out_of_the_terms_of_his_tenant_by_his_own_name_i36() -> None:
    with pytest.raises(RefusedError, match="user ana is no member of tenant ana; .* yours: lab(,| and) class"):
        choose(parse_settings(TEXT), ANA, "ana")


def test_whoever_has_a_daemon_of_his_own_calls_his_tenants_as_he_likes(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.registry.new_job({"name": "a", "tenant": "night"}, ["true"], "/", caller=ME, environment={})
        assert live.file.spec.tenant == "night"
        with pytest.raises(RefusedError, match="your own has: carpool daemon start --tenant-weights"):
            node.tenancy.change({"tenant": "night", "settings": {"weight": 2}}, by="me")

    in_node(tmp_path, act)


@pytest.mark.parametrize(("part", "wanted"), [("", [0, 0, 0]), ("25%", [250, 0, 0]), ("50%", [300, 200, 0])])
def test_jobs_are_guaranteed_what_their_tenant_is_and_no_more_i38(
    part: str, wanted: list[int], tmp_path: Path
) -> None:
    def act(node: Node) -> None:
        said = f'[tenant.lab]\nguaranteed = "{part}"\n' if part else ""
        places = Places(run=tmp_path, state=tmp_path, root=tmp_path)
        settings = parse_settings('device = "cpu:1GiB"\n' + said)
        tenancy = Tenancy(node.driver, places, InForce(settings, DaemonConfig()))
        given = []
        for number in range(3):
            given.append(tenancy.guarantee_milli(TenantId("lab"), 300))
            live = node.adopt(f"a-{number}", live_bytes=0, needs=None)
            live.file.spec = replace(live.file.spec, tenant=TenantId("lab"), guaranteed_milli=given[-1])
        assert given == wanted
        assert tenancy.guarantee_milli(TenantId("lab"), 300, beside=JobId("a-0")) == given[0]
        assert node.tenancy.guarantee_milli(TenantId("lab"), 1000) == 1000, "a daemon for one user"

    in_node(tmp_path, act)


# --- the file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lab", "class", "new", "two words"])
def test_only_the_table_of_that_tenant_is_written_anew(name: str) -> None:
    tenant = TenantSettings(members=("eve", "@staff"), weight=3.5, memory="2GiB", jobs=4, devices=("cpu",))
    text = with_tenant(TEXT, name, tenant)
    before, after = parse_settings(TEXT), parse_settings(text)
    assert after.tenants == {**before.tenants, name: tenant}
    assert after.daemon == before.daemon
    assert "# the cores" in text and "# everybody else" in text


def test_a_table_that_is_taken_out_takes_no_other_with_it() -> None:
    text = with_tenant(TEXT, "lab", None)
    assert list(parse_settings(text).tenants) == ["class"]
    assert "# everybody else\n[tenant.class]" in text
    assert with_tenant(with_tenant(TEXT, "new", TenantSettings(jobs=1)), "new", None) == TEXT


def test_what_is_saved_is_read_back_and_keeps_the_files_mode_i37(tmp_path: Path) -> None:
    path = tmp_path / "carpool.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    save_tenant(path, "lab", TenantSettings(members=("ana",), jobs=3))
    assert load_settings(path).tenants["lab"] == TenantSettings(members=("ana",), jobs=3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["carpool.toml"]


def test_a_file_that_is_written_in_another_way_is_left_as_it_is_i37(tmp_path: Path) -> None:
    path = tmp_path / "carpool.toml"
    path.write_text('tenant = {lab = {weight = 2.0}}\ndevice = "cpu:1GiB"\n')
    before = path.read_bytes()
    with pytest.raises(RefusedError, match=r"cannot be changed here; write \[tenant.lab\] by hand"):
        save_tenant(path, "lab", TenantSettings(jobs=3))
    assert path.read_bytes() == before
    assert tomllib.loads(path.read_text())["tenant"]["lab"]["weight"] == 2.0


def test_a_directory_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        save_tenant(tmp_path / "nothing" / "carpool.toml", "lab", None)


# --- what users say of their jobs ---------------------------------------------------------------------------


def test_i31_what_one_users_programs_need_is_not_said_by_anothers(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        registry = node.registry
        registry._places = Places(run=tmp_path, state=tmp_path, root=tmp_path)
        said = spec_said({"name": "a", "fingerprint": "the same"})
        mine, theirs = (registry._spec_of(said, Caller(uid=uid, gid=0, pid=0)) for uid in (4001, 4002))
        assert mine.fingerprint != theirs.fingerprint

    in_node(tmp_path, act)


@pytest.mark.parametrize("key", ["name", "tenant", "device", "fingerprint"])
def test_i32_a_word_that_everybody_sees_is_no_book(key: str) -> None:
    with pytest.raises(UsageError, match="length <= 256"):
        spec_said({"name": "a", key: "x" * 257})


def test_i32_a_name_moves_nobodys_cursor() -> None:
    assert spec_from(spec_said({"name": "a\x1b[2Jb"})).name == "a\\x1b[2Jb"
