"""The figures of the house count what they say, and do not become worse."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.testing.house import drawing, fields, figures, imports, rules, walks, words
from carpool.testing.house.fields import Field
from carpool.testing.house.walks import Step


@pytest.mark.parametrize("name", figures.BOUNDS)
def test_no_figure_is_worse_than_it_was(name: str) -> None:
    found = figures.FIGURES[name]()
    assert found.value <= figures.allowed(name), f"{figures.WHAT[name]}:\n" + "\n".join(found.names)


def test_every_figure_has_a_bound_and_says_what_it_counts() -> None:
    assert figures.BOUNDS.keys() == figures.FIGURES.keys() == figures.WHAT.keys()
    assert set(figures.RATCHET) <= set(figures.BOUNDS)


def test_json_is_one_object_with_all_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carpool.testing.house", "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert (found["bench"], found["device"]) == ("house", "")
    assert found["metrics"].keys() == figures.BOUNDS.keys()


# --- imports ------------------------------------------------------------------------------------------------


def test_an_import_of_a_folder_names_the_module_in_it() -> None:
    modules = {name: Path(f"{name}.py") for name in ("a", "a.b", "a.b.c", "a.d")}
    modules["a.b"] = Path("a/b/__init__.py")
    source = "from a.b import c\nfrom a.b.c import thing\nimport a.d\nimport os\n"
    assert set(imports.imported(source, "a.x", modules)) == {"a.b.c", "a.d"}


def test_imports_for_types_and_inside_functions_count() -> None:
    modules = {"a.b": Path("b.py"), "a.c": Path("c.py")}
    source = "if TYPE_CHECKING:\n    from a.b import B\ndef f():\n    from a.c import C\n"
    assert set(imports.imported(source, "a.x", modules)) == {"a.b", "a.c"}


def test_the_longest_chain_is_found_and_a_ring_counts_each_of_its_modules() -> None:
    graph = {name: frozenset(targets) for name, targets in (("a", "b"), ("b", "cd"), ("c", "d"), ("d", ""))}
    assert imports.longest_chain(graph) == ["a", "b", "c", "d"]
    ring = {name: frozenset(targets) for name, targets in (("a", "b"), ("b", "a"), ("c", "a"))}
    assert imports.longest_chain(ring) == ["c", "a", "b"]


# --- writers of fields --------------------------------------------------------------------------------------

RECORDS = """
from dataclasses import dataclass, field

@dataclass
class Job:
    level: int = 0
    state: str = ""
    spent: dict[str, int] = field(default_factory=dict)
    lane: "Lane | None" = None

@dataclass
class Lane:
    level: int = 0
    jobs: list[str] = field(default_factory=list)

@dataclass
class Node:
    jobs: dict[str, Job] = field(default_factory=dict)

    def job_of(self, name: str) -> Job: ...

@dataclass(frozen=True)
class Picture:
    state: str = ""
"""


def stores(source: str) -> list[str]:
    trees = {"records": ast.parse(RECORDS), "x": ast.parse(source)}
    found, _ = fields.stores_in(trees, fields.read_classes(trees))
    return [str(each) for each, module, _ in found if module == "x"]


@pytest.mark.parametrize(
    ("source", "fields_stored"),
    [
        ("def f(job: Job): job.level = 1", ["Job.level"]),
        ("def f(lane: Lane): lane.level += 1", ["Lane.level"]),
        ("def f(node: Node): node.jobs['a'].level = 1", ["Job.level"]),
        ("def f(node: Node): node.job_of('a').level = 1", ["Job.level"]),
        ("def f(node: Node):\n    for job in node.jobs.values(): job.level = 1", ["Job.level"]),
        ("def f(node: Node):\n    for _, job in node.jobs.items(): job.level = 1", ["Job.level"]),
        ("def f(node: Node):\n    for each in [job for job in node.jobs.values()]: each.level = 1", ["Job.level"]),
        ("def f(job: Job): job.level, job.state = 1, ''", ["Job.level", "Job.state"]),
        ("def f(job: Job): job.spent['run'] = 1", ["Job.spent"]),
        ("def f(job: Job): del job.spent['run']", ["Job.spent"]),
        ("def f(job: Job):\n    spent = job.spent\n    spent['run'] = 1", ["Job.spent"]),
        ("def f(job: Job): job.spent.pop('run')", ["Job.spent"]),
        ("def f(lane: Lane): lane.jobs.append('a')", ["Lane.jobs"]),
        ("def f(job: Job): setattr(job, name, 1)", ["Job.level", "Job.state", "Job.spent", "Job.lane"]),
        (
            "def f(node: Node):\n    job = Job()\n    node.jobs['a'] = job\n    job.level = 1",
            ["Node.jobs", "Job.level"],
        ),
    ],
)
def test_a_store_is_found_and_its_record_known(source: str, fields_stored: list[str]) -> None:
    assert stores(source) == fields_stored


@pytest.mark.parametrize(
    "source",
    [
        "def f(job: Job): return job.level == 1",
        "def f():\n    job = Job()\n    job.level = 1\n    return job",
        "def f(picture: Picture): picture.state = ''",
        "class Other:\n    def f(self): self.level = 1",
        "def f(job: Job):\n    spent = dict(job.spent)\n    spent['run'] = 1",
        "def f(job: Job): return sorted(job.spent)",
    ],
)
def test_what_changes_no_state_is_no_store(source: str) -> None:
    assert stores(source) == []


def test_a_store_whose_record_is_not_known_counts_for_each_that_has_the_field() -> None:
    assert sorted(stores("def f(thing): thing.level = 1")) == ["Job.level", "Lane.level"]


def test_two_modules_that_store_to_one_field_are_two_writers() -> None:
    found = fields.writers(
        [(Field("Job", "level"), "a", 1), (Field("Job", "level"), "b", 2), (Field("Job", "x"), "a", 3)]
    )
    assert list(fields.several_writers(found)) == [Field("Job", "level")]


# --- rules ---------------------------------------------------------------------------------------------------


def test_the_page_of_rules_is_current() -> None:
    page = rules.PAGE.read_text()
    assert rules.renew(page) == page, "run: make docs"


def test_rules_are_found_in_both_languages_with_their_whole_text() -> None:
    found = {rule.id: rule for rule in rules.find_rules()}
    assert found["L2"].text == "Every promise is at least zero and belongs to a resident job of this device."
    assert found["L5"].text.startswith("Σ parked bytes ≤ host budget, but for what jobs of an earlier driver bring.")
    assert found["C1"].file == "native/share.c"


def test_a_test_names_a_rule_in_its_name_docstring_or_comment_but_not_in_the_head_of_its_file() -> None:
    source = (
        '"""W1 to W8"""\ndef test_w2_it_waits():\n    """Also W3."""\n    x = 1  # W4\n'
        '@pytest.mark.parametrize("x", ["W5"])\ndef test_more(x):\n    pass\n'
    )
    assert rules.named_in(source) == {"W2", "W3", "W4", "W5"}


# --- words -----------------------------------------------------------------------------------------------------


def test_the_glossary_is_every_table_below_its_heading() -> None:
    tables = "| word | x |\n|---|---|\n| lane, big lanes (of a device) | y |\n\n| `hog` | z |\n"
    page = f"# Style\n## Words\n{tables}## Next\n| not | w |\n"
    assert {"lane", "big lane", "hog"} <= words.glossary(page)
    assert "not" not in words.glossary(page)


def test_a_module_is_defined_whole_or_by_its_parts_in_singular_or_plural() -> None:
    known = {"lane", "torch", "hook", "first call"}
    assert all(words.is_defined(name, known) for name in ("lanes", "torch_hooks", "first_calls"))
    assert not words.is_defined("torch_books", known)


def test_the_states_of_both_schedulers_are_looked_at() -> None:
    found = words.states()
    assert "queued" in found["JobState"] and "held" in found["LeaseState"]


# --- the picture -------------------------------------------------------------------------------------------------


def test_the_picture_shows_the_rooms_and_imports_of_now() -> None:
    kept, now = drawing.kept_facts(drawing.PAGE.read_text()), drawing.facts([])
    assert {key: kept[key] for key in ("rooms", "imports")} == {key: now[key] for key in ("rooms", "imports")}, (
        "run: make docs"
    )


def test_the_walks_of_the_picture_lead_through_modules_that_are_there() -> None:
    found = walks.from_plain(drawing.kept_facts(drawing.PAGE.read_text())["walks"])
    names = ["one lease", "one park", "one waiting allocation", "one simulated job"]
    assert [walk.name for walk in found] == names
    assert drawing.strangers(found) == [], "run: make house"


def test_a_walk_stays_in_a_room_until_it_enters_another_or_another_process_goes_on() -> None:
    notes = [(1, "a", "agent.link"), (2, "a", "wire.page"), (3, "a", "agent.link"), (4, "b", "daemon.driver")]
    notes += [(5, "b", "daemon.jobs"), (6, "b", "units"), (7, "a", "agent.link"), (8, "a", "agent.memory")]
    assert walks.steps_of(notes) == (
        Step(who="a", room="agent", modules=("agent.link",)),
        Step(who="a", room="wire", modules=("wire.page",)),
        Step(who="b", room="daemon", modules=("daemon.driver", "daemon.jobs")),
        Step(who="a", room="agent", modules=("agent.memory",)),
    )


def test_walks_survive_being_kept() -> None:
    found = [walks.Walk(name="one", steps=(Step(who="a", room="wire", modules=("wire.page",)),))]
    assert walks.from_plain(walks.to_plain(found)) == found
