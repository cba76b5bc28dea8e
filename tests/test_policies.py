"""Policies from anywhere: carpool's own files, files of yours, modules, entry points; and what is wrong with one."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import random
import re
import sys
from pathlib import Path

import pytest

import carpool.core.policies
from carpool import policies
from carpool.cli.main import main
from carpool.cli.policy import checked
from carpool.core.cluster.order import Order
from carpool.errors import UsageError
from carpool.policies import POLICIES, Guarded, find_policy, in_full, load, names_for
from carpool.testing.policies import check_policy, random_views, review_policy

HEAD = "from carpool.policies import JobView, Policy\n"
WHY = "    def why(self, chosen, over):\n        return 'so'\n"
NEWEST = (
    f"{HEAD}class Newest(Policy):\n    '''The job that came last runs.'''\n    name = 'newest'\n"
    f"    def rank(self, view, *, now):\n        return (-view.arrived_ns,)\n{WHY}"
)
SMALL = "job,submit_s,duration_s,tenant,iterations\nlong,0,30,a,60\nshort,1,10,b,20\n"


def written(directory: Path, text: str, name: str = "mine.py") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def ranking(body: str, *, more: str = "") -> str:
    """A file with one policy whose rank has this body."""
    head = f"{HEAD}class Mine(Policy):\n    name = 'mine'\n{more}"
    return f"{head}    def rank(self, view, *, now):\n        {body}\n{WHY}"


def carpool_said(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["carpool", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return int(str(ended.value.code)), out.getvalue(), err.getvalue()


# --- found -----------------------------------------------------------------------------------------------------


def test_a_new_policy_of_carpools_own_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, NEWEST, "newest.py")
    monkeypatch.setattr(carpool.core.policies, "__path__", [*carpool.core.policies.__path__, str(tmp_path)])
    found = {policy.name for policy in policies._built_in()}
    sys.modules.pop("carpool.core.policies.newest")
    assert found == {*POLICIES, "newest"}


def test_a_file_needs_no_class_where_it_has_one_policy(tmp_path: Path) -> None:
    path = written(tmp_path, NEWEST)
    assert find_policy(path).name == find_policy(f"{path}:Newest").name == "newest"
    assert in_full(path) == f"{path}:Newest"


def test_a_reference_in_full_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, NEWEST)
    monkeypatch.chdir(tmp_path)
    reference = in_full("./mine.py:Newest")
    monkeypatch.chdir("/")
    assert find_policy(reference).name == "newest"
    assert in_full("srtf") == "srtf"


def test_a_module_that_can_be_imported_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, NEWEST, "policies_of_a_module.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_policy("policies_of_a_module:Newest").name == "newest"


def test_an_entry_point_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, NEWEST, "policies_of_a_package.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = importlib.metadata.EntryPoint("young", "policies_of_a_package:Newest", policies.GROUP)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda *, group: [entry] if group == policies.GROUP else []
    )
    assert find_policy("young").name == "newest"
    with pytest.raises(UsageError, match="srtf, young, or a file"):
        find_policy("old", place="node")


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("lottery", "unknown policy 'lottery'; there are fair, fifo"),
        ("./none.py:Mine", "there is no file ./none.py"),
        ("mine.py:Other", "mine.py has no class Other; it has Newest"),
        ("mine.py:HEAD", "HEAD in mine.py is no policy; it must derive from"),
        ("none_such:Mine", "module none_such cannot be imported: ModuleNotFoundError"),
        ("broken.py", "broken.py cannot be loaded: SyntaxError: .*line 1"),
        ("raises.py", "raises.py cannot be loaded: RuntimeError: no"),
        ("two.py", "two.py has A and B; say which"),
        ("empty.py", "empty.py has no class that derives from Policy"),
        ("ranks_nothing.py:Mine", "has no rank; docs/policies.md"),
        ("argument.py", r"cannot be made: Mine\(\) raises TypeError"),
        ("nameless.py", "name must be a word; it is None"),
        ("fair.py", "it calls itself fair, and carpool has a policy of that name"),
    ],
)
def test_what_cannot_be_found_or_used_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "mine.py": NEWEST + "HEAD = 3\n",
        "broken.py": "class",
        "raises.py": "raise RuntimeError('no')",
        "two.py": NEWEST.replace("Newest", "A") + NEWEST.replace("Newest", "B"),
        "empty.py": "",
        "ranks_nothing.py": f"{HEAD}class Mine(Policy):\n    name = 'mine'\n{WHY}",
        "argument.py": ranking("return (1,)", more="    def __init__(self, depth):\n        pass\n"),
        "nameless.py": ranking("return (1,)").replace("    name = 'mine'\n", ""),
        "fair.py": NEWEST.replace("'newest'", "'fair'"),
    }.items():
        written(tmp_path, text, name)
    with pytest.raises(UsageError, match=sentence):
        find_policy(reference, place="node")


def test_a_policy_that_runs_in_a_cluster_only_is_refused_on_a_node() -> None:
    with pytest.raises(UsageError, match="policy tiresias runs on a cluster only; on a node there are fair"):
        find_policy("tiresias", place="node")
    assert "tiresias" in names_for("cluster") and "tiresias" not in names_for("node")


# --- one rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names_for("cluster"))
def test_node_and_cluster_ask_the_same_object(name: str) -> None:
    assert Order(POLICIES[name]).policy is find_policy(name)


# --- checked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_carpools_own_keeps_the_contract(name: str) -> None:
    assert check_policy(POLICIES[name]) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("return (1 // view.priority,)", r"rank\(\) raises ZeroDivisionError: .*, for JobView\(id='job-"),
        ("return view.level / 2", r"must be a tuple of whole numbers, like \(5,\) or \(0, 7\); it is \d+\.\d"),
        ("return ()", "must be a tuple of whole numbers"),
        ("import random; return (random.randrange(9),)", "rank of the same job is .* when asked again"),
        ("self.seen = view.id; return (view.level,)", "it remembers something"),
        ("return (1,) * (1 + view.priority % 2)", "all its ranks must have as many parts"),
    ],
)
def test_the_check_says_what_is_wrong_with_a_rank(tmp_path: Path, body: str, fault: str) -> None:
    (complaint,) = check_policy(load(written(tmp_path, ranking(body))))
    assert re.search(fault, complaint), complaint


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("    quantum_ns = '5'\n", "quantum_ns must be a whole number of nanoseconds, 0 or more, or None; it is '5'"),
        ("    lanes_max = 0\n", "lanes_max must be a whole number, 1 or more; it is 0"),
        ("    runs_on = ('moon',)\n", "runs_on must be a tuple of some of node and cluster"),
        (
            "    def speed(self, view):\n        return 2\n",
            "its speed is 2, but the first part",
        ),
    ],
)
def test_the_check_says_what_is_wrong_with_the_rest(tmp_path: Path, more: str, fault: str) -> None:
    complaints = check_policy(load(written(tmp_path, ranking("return (view.level,)", more=more))))
    assert any(fault in complaint for complaint in complaints), complaints


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("return (view.arrived_ns,)", "jobs may wait without end"),
        ("return (view.remaining_ns,)", "speed() is None"),
        ("return (view.level - now,)", "changes with `now` alone"),
        ("return (7,)", "in a cluster all jobs have the same rank"),
        ("return (view.waited_ns,)", "in a cluster all jobs have the same rank"),
    ],
)
def test_the_review_hints_at_what_may_be_meant(tmp_path: Path, body: str, hint: str) -> None:
    review = review_policy(load(written(tmp_path, ranking(body))))
    assert review.faults == ()
    assert any(hint in each for each in review.hints), review.hints


def test_the_review_names_a_decision_that_takes_too_long(tmp_path: Path) -> None:
    slow = ranking("import time; time.sleep(0.004); return (view.level,)")
    (fault,) = review_policy(load(written(tmp_path, slow))).faults
    assert "a decision among 8 jobs takes" in fault and fault.endswith("jobs would wait for it")


def test_a_daemon_is_not_started_with_a_policy_for_which_jobs_would_wait(tmp_path: Path) -> None:
    """A simulation may be: nobody waits for it but its author."""
    path = written(tmp_path, ranking("import time; time.sleep(0.06); return (view.level,)"))
    with pytest.raises(UsageError, match=r"a decision among 8 jobs takes [\d.]+ ms; jobs would wait for it"):
        checked(path, place="node", is_live=True)
    assert checked(path, place="node").name == "mine"


def test_las_has_no_hint_and_is_quick() -> None:
    review = review_policy(POLICIES["las"])
    assert (review.faults, review.hints) == ((), ())
    assert review.decision_us is not None and review.decision_us < 20_000


# --- the command line ------------------------------------------------------------------------------------------


def test_check_exits_with_1_for_a_fault_and_0_without(tmp_path: Path) -> None:
    assert carpool_said("policy", "check", written(tmp_path, NEWEST))[0] == 0
    code, said, _ = carpool_said("policy", "check", written(tmp_path, ranking("return 5")))
    assert code == 1 and said.startswith("fault: a rank must be a tuple")
    code, said, _ = carpool_said("policy", "check", written(tmp_path, ranking("return 5")), "--json")
    found = json.loads(said)
    assert (code, found["policy"], len(found["faults"])) == (1, "mine", 1)


def test_list_says_rule_origin_and_place_of_every_policy(tmp_path: Path) -> None:
    path = written(tmp_path, NEWEST)
    rows = json.loads(carpool_said("policy", "list", "--also", path, "--json")[1])["policies"]
    assert [row["name"] for row in rows] == [*POLICIES, "newest"]
    assert rows[-1]["rule"] == "The job that came last runs." and rows[-1]["origin"] == f"file {path}"
    assert {row["name"] for row in rows if row["runs_on"] == ["cluster"]} == {"tiresias"}
    assert all(row["rule"].endswith(".") for row in rows)
    assert "tiresias" in carpool_said("policy", "list")[1]


@pytest.mark.parametrize(("cluster", "scheduler"), [("1x1x16GiB", "node"), ("1x2x16GiB", "cluster")])
def test_sim_runs_a_file_and_says_which_scheduler_ran(tmp_path: Path, cluster: str, scheduler: str) -> None:
    trace = tmp_path / "small.csv"
    trace.write_text(SMALL)
    path = written(tmp_path, NEWEST)
    words = ("sim", "--trace", str(trace), "--policy", f"fifo,{path}", "--cluster", cluster)
    found = json.loads(carpool_said(*words, "--json")[1])
    assert (found["engine"], found["scheduler"].split(",")[0]) == (scheduler, f"the {scheduler}'s scheduler")
    assert [(row["policy"], row["reference"]) for row in found["policies"]] == [("fifo", "fifo"), ("newest", path)]
    assert f"decided by the {scheduler}'s scheduler" in carpool_said(*words)[1]


def test_sim_and_daemon_start_refuse_a_policy_that_breaks_the_contract(tmp_path: Path) -> None:
    path = written(tmp_path, ranking("return (1 // view.priority,)"))
    for words in (("sim", "--trace", "salus"), ("daemon", "start")):
        code, _, said = carpool_said(*words, "--policy", path)
        assert code == 2 and f"policy {path}: rank() raises ZeroDivisionError" in said


def test_a_policy_that_raises_in_the_middle_of_a_simulation_is_a_sentence(tmp_path: Path) -> None:
    trace = tmp_path / "small.csv"
    trace.write_text(SMALL)
    path = written(tmp_path, ranking("return (1 // (view.name != 'short'),)"))
    code, _, said = carpool_said("sim", "--trace", str(trace), "--policy", path)
    assert code == 2 and f"policy {path} raised ZeroDivisionError" in said


def test_the_check_ends_where_a_policy_ends_the_program_or_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (complaint,) = check_policy(load(written(tmp_path, ranking("raise SystemExit(7)"), "exits.py")))
    assert "rank() raises SystemExit: 7" in complaint
    monkeypatch.setattr("carpool.testing.policies.ENDLESS_S", 0.3)
    (complaint,) = check_policy(load(written(tmp_path, ranking("while True: pass"), "endless.py")))
    assert "does not come to an end" in complaint


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
def test_whatever_a_policy_raises_jobs_then_go_as_they_came(tmp_path: Path, error: str) -> None:
    said: list[str] = []
    guarded = Guarded(load(written(tmp_path, ranking(f"raise {error}"))), said.append)
    for view in random_views(random.Random(0), 2):
        assert guarded.rank(view, now=0) == ()
    assert len(said) == 1 and error in said[0]
