"""Who somebody is: by the kernel's number, and by the lists of the system."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.model import JobSpec
from carpool.daemon.files import JobFile, load_file
from carpool.daemon.people import User, user_of
from tests.daemon.node import ME, Node, in_node

NOBODY_HERE = 3_999_999_999


def test_an_account_has_its_name_and_its_groups() -> None:
    me = pwd.getpwuid(os.geteuid())
    found = user_of(me.pw_uid)
    assert found.name == me.pw_name
    assert grp.getgrgid(me.pw_gid).gr_name in found.groups


def test_a_number_that_the_system_does_not_know_is_named_by_itself() -> None:
    assert user_of(NOBODY_HERE) == User(uid=NOBODY_HERE, name=f"#{NOBODY_HERE}")


def test_a_list_names_users_and_with_an_at_sign_groups() -> None:
    ana = User(uid=1001, name="ana", groups=frozenset({"students", "lab"}))
    assert ana.is_one_of(["ben", "ana"])
    assert ana.is_one_of(["@lab"])
    assert not ana.is_one_of(["lab", "@ana", "ben"])


def test_a_job_has_the_user_of_whoever_submitted_it_in_its_file_and_its_answers(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        made = node.registry.new_job({"name": "a"}, ["true"], "/", caller=ME, environment={})
        kept = load_file(made.directory)
        assert kept is not None
        assert (kept.uid, kept.spec.user) == (ME.uid, user_of(ME.uid).name)

    in_node(tmp_path, act)


def test_a_file_of_an_older_daemon_is_of_the_account_that_runs_it(tmp_path: Path) -> None:
    JobFile(job="a-1", number=1, spec=JobSpec(name="a"), argv=["a"], cwd="/").save(tmp_path)
    text = (tmp_path / "job.json").read_text()
    (tmp_path / "job.json").write_text(text.replace(f'"uid":{os.geteuid()},', "").replace(',"user":""', ""))
    kept = load_file(tmp_path)
    assert kept is not None
    assert (kept.uid, kept.spec.user, JobId(kept.job)) == (os.geteuid(), "", "a-1")
