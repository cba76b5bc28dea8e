"""Who may do what: the table, whose jobs are whose, and what others see of them."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from carpool import calls
from carpool import client as client_module
from carpool.core.kernel.ids import JobId, TenantId
from carpool.core.node.effects import ExplainWait
from carpool.core.node.model import JobSpec
from carpool.daemon import authority as authority_module
from carpool.daemon import records
from carpool.daemon.authority import HIDDEN, VERBS, Authority, Right
from carpool.daemon.driver import Driver
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.people import User
from carpool.daemon.settings_file import Access
from carpool.daemon.turns import Peer
from carpool.errors import RefusedError, UsageError
from carpool.wire import messages as m

DAEMON = Path(authority_module.__file__).parent
ROOT, ANA, BEN, EVE, SERVICE = 0, 4001, 4002, 4003, 4999
PEOPLE = {
    ROOT: User(uid=ROOT, name="root"),
    ANA: User(uid=ANA, name="ana", groups=frozenset({"students"})),
    BEN: User(uid=BEN, name="ben", groups=frozenset({"students"})),
    EVE: User(uid=EVE, name="eve", groups=frozenset({"staff", "wheel"})),
    SERVICE: User(uid=SERVICE, name="carpool"),
}


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up accounts, and a daemon that runs as one of them."""
    monkeypatch.setattr(authority_module, "user_of", PEOPLE.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: SERVICE)


def live_job(name: str, uid: int, directory: Path) -> LiveJob:
    user = PEOPLE[uid].name
    spec = JobSpec(name=name, user=user, tenant=TenantId(user))
    file = JobFile(job=name, number=1, spec=spec, uid=uid, argv=["train", "--key", "secret"], cwd="/")
    return LiveJob(id=JobId(name), directory=directory, file=file)


def machine(*live: LiveJob, **said: Any) -> Authority:
    return Authority({each.id: each for each in live}, Access(**said), is_for_all=True)


# --- the table ----------------------------------------------------------------------------------------------


def verbs_taken() -> set[str]:
    """Every verb for which some part of the daemon has a case or a comparison."""
    found: set[object] = set(records.VERBS)
    for path in DAEMON.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Match) and ast.unparse(node.subject).endswith("verb"):
                values = [each for case in node.cases for each in ast.walk(case.pattern)]
                found |= {each.value.value for each in values if isinstance(each, ast.MatchValue)}  # type: ignore[attr-defined]  # of a constant
            if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("verb"):
                found |= {each.value for each in node.comparators if isinstance(each, ast.Constant)}
    return {str(each) for each in found}


def verbs_asked() -> set[str]:
    """Every verb that `carpool.Client` asks."""
    tree = ast.parse(Path(client_module.__file__).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    asked = [node.args[0] for node in found if ast.unparse(node.func).split(".")[-1] in ("_ask", "_call")]
    return {str(each.value) for each in asked if isinstance(each, ast.Constant)}


def test_every_verb_has_a_row_in_the_table_and_every_row_a_verb_i30() -> None:
    assert verbs_taken() == set(VERBS)
    assert verbs_asked() == set(VERBS)


def test_every_verb_of_an_admin_can_be_named_in_the_sentence_that_refuses_it() -> None:
    assert set(authority_module.WHAT) == {verb for verb, right in VERBS.items() if right is Right.ADMIN}


@pytest.mark.parametrize("verb", ["", "shutdown", "STOP", "_flush", "__class__"])
def test_what_has_no_row_does_not_exist_not_even_for_root_i30(verb: str) -> None:
    with pytest.raises(UsageError, match="the daemon knows no "):
        machine().check(verb, ROOT)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_who_may_ask_a_verb_is_what_its_row_says_i30(verb: str) -> None:
    authority = machine(admins=("@wheel",))
    for uid in (ROOT, EVE, SERVICE):
        assert authority.check(verb, uid) is VERBS[verb]
    if VERBS[verb] is Right.ADMIN:
        with pytest.raises(RefusedError, match=r"only an admin may .*, and ana is none"):
            authority.check(verb, ANA)
    else:
        assert authority.check(verb, ANA) is VERBS[verb]


# --- whose job ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb for verb, right in VERBS.items() if right is Right.OWNER])
def test_an_order_about_a_job_is_for_its_owner_and_admins_i31(verb: str, tmp_path: Path) -> None:
    live = live_job("a-1", ANA, tmp_path)
    authority = machine(live, admins=("eve",))
    for uid in (ANA, ROOT, EVE, SERVICE):
        authority.check_owner(verb, uid, live)
    with pytest.raises(RefusedError, match=f"job a-1 is of user ana: only its owner and admins may {verb} it"):
        authority.check_owner(verb, BEN, live)


def test_a_refusal_in_private_mode_does_not_say_whose_the_job_is_i35(tmp_path: Path) -> None:
    live = live_job("a-1", ANA, tmp_path)
    with pytest.raises(RefusedError, match="job a-1 is of another user: "):
        machine(live, private=True).check_owner("cancel", BEN, live)


@pytest.mark.parametrize("uid", [ROOT, BEN, EVE, SERVICE])
def test_a_process_of_another_uid_is_no_part_of_a_job_not_even_an_admins_i33(uid: int, tmp_path: Path) -> None:
    """An admin orders jobs about; he does not compute as one of them."""
    live = live_job("a-1", ANA, tmp_path)
    authority = machine(live, admins=("eve",))
    authority.check_process(ANA, live)
    with pytest.raises(RefusedError, match="job a-1 is another user's"):
        authority.check_process(uid, live)


def test_admins_change_while_the_daemon_runs() -> None:
    authority = machine()
    assert not authority.is_admin(EVE)
    authority.change(Access(admins=("@wheel",)))
    assert authority.is_admin(EVE) and not authority.is_admin(ANA)
    authority.change(Access(admins=()))
    assert not authority.is_admin(EVE) and authority.is_admin(ROOT)


def test_the_user_of_a_daemon_of_his_own_may_do_everything_and_no_list_makes_others_admins() -> None:
    own = Authority({}, Access(admins=("ana", "@students")))
    for verb, right in VERBS.items():
        assert own.check(verb, SERVICE) is right
    assert not own.is_admin(ANA)
    assert own.by(SERVICE) == ""


# --- what others see ----------------------------------------------------------------------------------------


def answered(uid: int | None, **more: Any) -> calls.Job:
    job = calls.Job(
        id="a-1",
        name="bert",
        tenant="ana",
        state="running",
        device="gpu0",
        user="ana",
        uid=uid,
        live_bytes=5,
        served_ns=7,
        waited_ns=8,
        reason="runs; tenant ana has had 3 s less for its weight than tenant ben",
        pids=[11],
        argv=["train", "--key", "secret"],
        unwritable="it reads secret.py from a pipe",
        limit_loss="process 11 runs without carpool's library",
        start="cold: another secret.py",
        orders=[calls.Order(verb="suspended", by="eve", after_ns=1)],
        processes=[calls.Process(pid=11)],
        orphans=[12],
        container="a1b2c3",
    )
    return msgspec.structs.replace(job, **more)


HIDES = ("argv", "unwritable", "limit_loss", "start")
HIDES_NAMES = (
    *HIDES,
    "name",
    "user",
    "uid",
    "tenant",
    "pids",
    "processes",
    "orphans",
    "container",
    "orders",
    "reason",
)


def differing(before: calls.Job, after: calls.Job) -> set[str]:
    return {name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)}


def test_of_anothers_job_the_command_line_and_files_are_not_seen_i32() -> None:
    job = answered(ANA)
    authority = machine()
    for uid in (ANA, ROOT, SERVICE):
        assert authority.shown(job, uid) == job
    shown = authority.shown(job, BEN)
    assert isinstance(shown, calls.Job)
    assert differing(job, shown) == set(HIDES)
    assert "secret" not in str(calls.as_dict(shown))


def test_a_job_of_which_nobody_noted_whose_it_was_is_nobodys_i32() -> None:
    shown = machine().shown(answered(None), ANA)
    assert isinstance(shown, calls.Job) and shown.argv == []


def test_every_answer_with_jobs_is_filtered_i32() -> None:
    authority, job = machine(), answered(ANA)
    answers: list[calls.Answer] = [calls.Node(jobs=[job]), calls.JobAnswer(job=job, log="/var/log/secret"), job]
    for answer in answers:
        assert "secret" in str(calls.as_dict(answer))
        assert "secret" not in str(calls.as_dict(authority.shown(answer, BEN)))
        assert authority.shown(answer, ANA) == answer


def test_a_new_field_of_a_job_is_judged_before_others_see_it_i32() -> None:
    """Whoever adds one says here whether others see it, and in private mode too."""
    seen = set(calls.Job.__struct_fields__) - set(HIDES)
    assert seen == JUDGED, (
        "others see this field: is that right? Then name it in JUDGED; else hide it in authority.py"
    )


JUDGED = {
    *("id", "name", "tenant", "state", "device", "lane", "priority", "weight_milli", "steps", "steps_declared"),
    *("step_ns", "remaining_ns", "arrived_ns", "state_ns", "served_ns", "waited_ns", "spent_ns", "waited_for_ns"),
    *("silent_ns", "is_hog", "needs", "promised_bytes", "live_bytes", "pending_bytes", "cap_bytes"),
    *("guaranteed_milli", "limit_milli", "is_suspended", "leaving_for", "is_shrinking", "parked_bytes", "move_ns"),
    *("move_trouble", "reason", "moving_to", "departures", "kept_on", "kept_bytes", "move_refused", "change_ns"),
    *(
        "quantum_ns",
        "quantum_why",
        "borrowed_ns",
        "user",
        "orders",
        "uid",
        "pids",
        "gradient_bytes",
        "device_ns",
        "processes",
    ),
    *("orphans", "refusals", "container"),
}


def test_in_private_mode_nothing_names_another_user_i35(tmp_path: Path) -> None:
    jobs = [live_job("job-1", ANA, tmp_path), live_job("job-2", BEN, tmp_path)]
    authority, job = machine(*jobs, private=True), answered(ANA)
    shown = authority.shown(job, BEN)
    assert isinstance(shown, calls.Job)
    assert differing(job, shown) == set(HIDES_NAMES)
    assert (shown.user, shown.tenant, shown.name) == (HIDDEN, HIDDEN, "")
    assert shown.reason == "runs; tenant another user has had 3 s less for its weight than tenant ben"
    assert "ana" not in str(calls.as_dict(shown))
    own = authority.shown(answered(BEN, user="ben", tenant="ben"), BEN)
    assert isinstance(own, calls.Job)
    assert own.argv and own.reason == shown.reason
    assert authority.shown(job, ROOT) == job


def test_in_private_mode_a_stream_and_the_status_name_nobody_i35(tmp_path: Path) -> None:
    authority = machine(live_job("job-1", ANA, tmp_path), live_job("job-2", BEN, tmp_path), private=True)
    change = calls.Change(at_ns=1, job="job-1", state="waiting", reason="tenant ana has had less, and anas more")
    told = authority.shown(calls.Changes(changes=[change]), BEN)
    assert isinstance(told, calls.Changes)
    assert told.changes[0].reason == "tenant another user has had less, and anas more"
    status = calls.Status(
        pid=1, tenant_weights_milli={"ana": 2000, "ben": 3000}, warm_parents=[calls.WarmParent(pid=2)]
    )
    seen = authority.shown(status, BEN)
    assert isinstance(seen, calls.Status)
    assert (seen.tenant_weights_milli, seen.warm_parents) == ({"ben": 3000}, [])


def test_a_daemon_for_one_user_hides_nothing_from_him() -> None:
    job = answered(ANA)
    assert Authority({}, Access(private=True)).shown(job, SERVICE) is job


def test_in_private_mode_no_wait_and_no_refusal_names_another_i35(tmp_path: Path) -> None:
    authority = machine(live_job("job-1", ANA, tmp_path), live_job("job-2", BEN, tmp_path), private=True)
    said = "job-1 has what tenant ana is guaranteed of gpu0; tenant ben waits"
    assert authority.words(said, BEN) == "job-1 has what tenant another user is guaranteed of gpu0; tenant ben waits"
    assert authority.words(said, ROOT) == said
    status = calls.Status(pid=1, tenant_weights_milli={"eve": 2000, "ben": 3000})
    seen = authority.shown(status, BEN)
    assert isinstance(seen, calls.Status)
    assert seen.tenant_weights_milli == {"ben": 3000}, "eve has no job, and stands in carpool.toml"


def test_in_private_mode_the_runner_and_the_caller_are_told_no_names_i35(tmp_path: Path) -> None:
    ana, ben = live_job("job-1", ANA, tmp_path), live_job("job-2", BEN, tmp_path)
    authority, told = machine(ana, ben, private=True), list[m.Message]()
    driver = SimpleNamespace(jobs={ben.id: ben}, words=authority.words)
    ben.runner = cast(Peer, SimpleNamespace(send=told.append))
    Driver._perform_rare(cast(Driver, driver), ExplainWait(job=ben.id, reason="waits: tenant ana is owed its 25 %"))
    assert told == [m.Wait(job="job-2", reason="waits: tenant another user is owed its 25 %")]
