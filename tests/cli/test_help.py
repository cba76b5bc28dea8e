"""Every command explains itself on one screen, with an example, and says which words it knows."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from carpool import __version__
from carpool.cli.main import carpool

SCREEN_LINES = 40
SCREEN_COLUMNS = 100


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        here = (*path, name)
        found += [here, *(every_command(command, here) if isinstance(command, click.Group) else [])]
    return found


COMMANDS = every_command(carpool)
WITH_EXAMPLE = {("run",), ("submit",), ("daemon", "start"), ("doctor",)}


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help_fits_a_screen(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(carpool, [*command, "--help"])
    lines = done.output.splitlines()
    assert done.exit_code == 0
    assert len(lines) <= SCREEN_LINES
    assert all(len(line) <= SCREEN_COLUMNS for line in lines)
    if command in WITH_EXAMPLE:
        assert any(line.strip().startswith("carpool ") for line in lines), "an example"


@pytest.mark.parametrize("command", [("ps",), ("explain",), ("submit",), ("doctor",), ("daemon", "status")])
def test_every_listing_can_be_json(command: tuple[str, ...]) -> None:
    assert "--json" in CliRunner().invoke(carpool, [*command, "--help"]).output


def test_the_version_is_the_packages() -> None:
    assert __version__ in CliRunner().invoke(carpool, ["--version"]).output


@pytest.mark.parametrize("arguments", [["frobnicate"], ["ps", "--no-such-option"], ["explain"], ["daemon", "pause"]])
def test_a_word_that_is_not_known_is_a_misuse(arguments: list[str]) -> None:
    assert CliRunner().invoke(carpool, arguments).exit_code == 2
