"""Docs that lie are bugs: links, commands, snippets, diagrams and tables are checked against the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from carpool.cli.accounts import ROWS
from carpool.cli.main import carpool
from carpool.core.node.words.pictures import WAITS
from carpool.policies import POLICIES
from carpool.testing import diagrams
from carpool.testing.house import drawing
from carpool.testing.house.imports import LAYERS
from carpool.testing.policies import check_policy
from carpool.units import format_ns
from tests.test_architecture import (
    FUNCTION_LINES_MAX,
    GUEST_LINES_MAX,
    MODULE_LINES_MAX,
)

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
SCREEN_LINES, SCREEN_COLUMNS = 40, 100
CELL_COLUMNS = 50
TOP_FOLDERS = ("src", "native", "tests", "docs")
PROSE_COLUMNS, TABLE_CELL_COLUMNS = 118, 200
COMMAND = re.compile(r"(?:^|`|\s)(?:\.venv/bin/)?(carpool [a-z][^`#\n|]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def made_by_hand(page: Path) -> list[str]:
    """The lines of a page without those that `make docs` makes."""
    return re.sub(
        r"<!-- made from .*?<!-- end of what is made -->", "", page.read_text(), flags=re.DOTALL
    ).splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_can_be_read_without_scrolling(page: Path) -> None:
    wide = [line for line in made_by_hand(page) if not line.startswith("|") and len(line) > PROSE_COLUMNS]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_cell_of_a_table_holds_a_paragraph(page: Path) -> None:
    cells = [cell for line in made_by_hand(page) if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell) > TABLE_CELL_COLUMNS] == []


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands_in(page: Path) -> list[str]:
    blocks = "\n".join(fenced(page, "")) + "\n".join(re.findall(r"`([^`\n]+)`", page.read_text()))
    return [found.strip() for found in COMMAND.findall(blocks)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_carpool_command_in_the_docs_exists_with_its_options(page: Path) -> None:
    for line in commands_in(page):
        words = shlex.split(line.split(" -- ")[0].split("(")[0])[1:]
        command: click.Command = carpool
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            name = words.pop(0).rstrip(",;:.")
            below = command.get_command(click.Context(command), name)
            if below is None:
                assert name.isupper() or "|" in line, f"{page.name}: no command {line!r}"
                break
            command = below
        known = {option for param in command.params for option in param.opts} | {"--help", "--version"}
        for word in words:
            if word.startswith("--") and word != "--":
                assert word.split("=")[0].rstrip(",;:.") in known, f"{page.name}: {line!r} uses {word}"


def test_the_readme_snippet_runs_outside_a_job() -> None:
    for snippet in fenced(ROOT / "README.md", "python"):
        done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_the_policy_snippet_is_a_file_that_the_pages_commands_accept(tmp_path: Path) -> None:
    (snippet,) = fenced(ROOT / "docs" / "policies.md", "python")
    (tmp_path / "mine.py").write_text(snippet)
    typed = [line for line in (ROOT / "docs" / "policies.md").read_text().splitlines() if line.startswith("carpool ")]
    tried = [line for line in typed if "daemon" not in line and "philly" not in line]
    assert len(tried) == 2, "the check, and a simulation"
    for line in tried:
        words = [sys.executable, "-m", "carpool", *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert "newest" in done.stdout


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_the_contract_and_has_a_row(name: str) -> None:
    assert check_policy(POLICIES[name]) == []
    rows = [line.strip("|").split("|") for line in (ROOT / "docs" / "policies.md").read_text().splitlines()]
    row = next((cells for cells in rows if cells[0].split()[:1] == [f"`{name}`"]), None)
    policy = POLICIES[name]
    assert row is not None, f"docs/policies.md has no row for {name}: add one to the table of policies"
    assert (row[3].strip(), row[4].strip()) == (str(policy.lanes_max), ", ".join(policy.runs_on))
    quantum = "chosen" if policy.quantum_ns is None else format_ns(policy.quantum_ns) if policy.quantum_ns else "–"
    assert row[2].strip() == quantum


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    text = diagrams.PAGE.read_text()
    assert diagrams.redraw(text) == text, "run: make docs"


def first_screen() -> list[str]:
    lines = (ROOT / "README.md").read_text().splitlines()
    return lines[: next(number for number, line in enumerate(lines) if line.startswith("## "))]


def test_the_readme_opens_as_agreed() -> None:
    lines = first_screen()
    assert len("\n".join(lines).rstrip().splitlines()) <= SCREEN_LINES
    assert [line for line in lines if len(line) > SCREEN_COLUMNS] == []
    text = "\n".join(lines)
    parts = (
        "# carpool\ncarpool lets many deep-learning programs share the GPUs",
        "before   gpu0",
        "after    gpu0",
        "Measured on the CPU device",
        "carpool bench boundary",
        "What it does not do",
        "1 to 3 minutes and 1.5 GB",
        "carpool run -- python",
        "second terminal",
        "carpool explain",
        "waits for memory: it needs",
        "```python",
        "| you are",
        "| a lab |",
        "| a platform team |",
        "| serving models |",
        "| a researcher |",
    )
    places = [text.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)
    assert "![" not in text, "no badges"


def test_the_readme_gives_three_numbers_each_with_the_command_that_makes_it() -> None:
    numbers = [line for line in first_screen() if line.startswith("- ")]
    assert len(numbers) == 3
    for line in numbers:
        assert re.search(r"\*\*.*\d.*\*\*.*: `(carpool bench \w+|make demo)`$", line), line


def test_what_the_readme_runs_is_in_a_fresh_clone() -> None:
    (block,) = [each for each in fenced(ROOT / "README.md", "") if "carpool run" in each]
    programs = re.findall(r"-- python (\S+)", block)
    assert len(programs) == 2
    assert [name for name in programs if not (ROOT / name).is_file()] == []


def test_the_readmes_loop_is_a_training_loop_of_six_lines() -> None:
    (snippet,) = fenced(ROOT / "README.md", "python")
    assert len(snippet.splitlines()) == 6
    assert "with carpool.turn():" in snippet
    names: dict[str, Any] = {}
    exec(snippet, names)
    errors = names["features"] @ names["weights"] - names["targets"]
    assert (errors**2).mean() < (names["targets"] ** 2).mean() / 4, "it learns"


def test_the_readmes_table_has_short_cells() -> None:
    rows = [line for line in first_screen() if line.startswith("|")][2:]
    shown = [re.sub(r"\]\([^)]*\)|\[", "", cell).strip() for row in rows for cell in row.strip("|").split("|")]
    assert [cell for cell in shown if len(cell) > CELL_COLUMNS] == []


def test_the_map_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([\w/]+/)`", text.partition("## Rooms")[2].partition("\n## ")[0])
    rooms = {f"{room}/" for room in drawing.rooms() if (ROOT / "src" / "carpool" / room).is_dir()}
    assert sorted(rooms - set(named)) == [], "rooms that the map lacks"


def test_the_map_names_only_files_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    there = [
        f"/{path.relative_to(ROOT).as_posix()}/" for folder in TOP_FOLDERS for path in (ROOT / folder).rglob("*")
    ]
    there += [f"/{folder}/" for folder in TOP_FOLDERS]
    named = [name.strip("/") for name in re.findall(r"`([\w/]+(?:\.py|\.c|\.h|\.def|/))`", text)]
    assert [name for name in named if not any(path.endswith(f"/{name}/") for path in there)] == []


def test_the_contributors_rules_are_the_ones_that_are_checked() -> None:
    text = (ROOT / "docs" / "style.md").read_text()
    rows = [line for line in text.splitlines() if " · " in line and "|" not in line]
    layers = [{word.strip() for word in re.split(r" {2,}", row)[0].split(" · ")} for row in rows]
    assert layers == [layer for layer in LAYERS[::-1] if len(layer) > 1]


def test_the_sizes_in_the_contributors_rules_are_the_ones_that_are_checked() -> None:
    text = (ROOT / "docs" / "style.md").read_text()
    sizes = f"At most {FUNCTION_LINES_MAX} lines a function and {MODULE_LINES_MAX} a module"
    assert sizes in text
    assert f"C: at most {GUEST_LINES_MAX:,} lines" in text


def test_what_the_column_waited_is_made_of_is_told() -> None:
    words = {"turn": "for turns", "limit": "at its compute limit", "memory": "for memory", "parked": "parked"}
    [line] = [
        line for line in (ROOT / "docs" / "operations.md").read_text().splitlines() if "| had, waited |" in line
    ]
    assert [row for row in WAITS if words[row] not in line] == []


def test_every_row_of_an_account_is_explained() -> None:
    text = (ROOT / "docs" / "parking.md").read_text().partition("## Where the time went")[2]
    titles = {title.partition(" (")[0] for title in ROWS.values()}
    assert [title for title in sorted(titles) if not re.search(rf"^\|.*\b{re.escape(title)}\b.*\|", text, re.M)] == []
