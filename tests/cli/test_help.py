"""Every command explains itself on one screen, with an example, and says which words it knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.core import ParameterSource
from click.testing import CliRunner

from carpool import __version__
from carpool.cli.main import carpool
from carpool.core.node.model import JobSpec
from carpool.daemon.environment import job_environment
from carpool.daemon.files import JobFile
from carpool.devices.kinds import find_devices
from carpool.wire.places import Places

SCREEN_LINES = 40
SCREEN_COLUMNS = 80


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(click.Context(group)):
        here, command = (*path, name), command_in(group, name)
        found += [here, *(every_command(command, here) if isinstance(command, click.Group) else [])]
    return found


def command_in(group: click.Command, name: str) -> click.Command:
    assert isinstance(group, click.Group)
    found = group.get_command(click.Context(group), name)
    assert found is not None, name
    return found


COMMANDS = every_command(carpool)
NOT_OPTIONS = {"CARPOOL_DIR", "CARPOOL_LOG"}  # read by the daemon and by everybody, not by one command


def command_at(path: tuple[str, ...]) -> click.Command:
    found: click.Command = carpool
    for name in path:
        found = command_in(found, name)
    return found


OPTIONS = [
    (path, option)
    for path in COMMANDS
    for option in command_at(path).params
    if isinstance(option, click.Option) and not option.is_eager
]


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help_fits_a_screen_and_shows_an_example(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(carpool, [*command, "--help"])
    lines = done.output.splitlines()
    assert done.exit_code == 0
    assert len(lines) <= SCREEN_LINES
    assert all(len(line) <= SCREEN_COLUMNS for line in lines)
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage:")], (
        "a sentence was cut"
    )
    said = " ".join(["carpool", *command])
    assert any(line.strip().startswith(f"{said} ") or line.strip() == said for line in lines), "no example"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_examples_in_the_help_can_be_typed(path: tuple[str, ...]) -> None:
    examples = re.findall(r"^  (carpool .*)$", CliRunner().invoke(carpool, [*path, "--help"]).output, re.MULTILINE)
    for example in examples:
        words = re.split(r" {3,}", example)[0].split()[1:]
        command: click.Command = carpool
        while isinstance(command, click.Group):
            command = command_in(command, words.pop(0))
        command.make_context("example", words)


@pytest.mark.parametrize(
    ("path", "option"), OPTIONS, ids=[f"{' '.join(path)} {max(option.opts, key=len)}" for path, option in OPTIONS]
)
def test_every_option_is_also_read_from_the_environment(
    path: tuple[str, ...], option: click.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [option_name for option_name in option.opts if option_name.startswith("--")]
    variable = "CARPOOL_" + words[0].removeprefix("--").replace("-", "_").upper()
    number = max(3, getattr(option.type, "min", None) or 0)
    monkeypatch.setenv(variable, str(number))
    if option.is_flag:
        monkeypatch.setenv(variable, "1")
    command = command_at(path)
    needed = ["x" for parameter in command.params if isinstance(parameter, click.Argument)]
    context = command.make_context(path[-1], needed)
    assert option.name is not None
    assert context.params[option.name] in (True, str(number), number, (number,), Path(str(number)))
    assert context.get_parameter_source(option.name) is ParameterSource.ENVIRONMENT


def test_no_option_is_read_from_a_variable_with_another_meaning(tmp_path: Path) -> None:
    places, device = Places(run=tmp_path, state=tmp_path), find_devices("cpu:64MiB")[0]
    file = JobFile(job="a-1", number=1, spec=JobSpec(name="a", cap_bytes=1 << 20), argv=["true"], cwd="/")
    added = job_environment(places, device, file, tmp_path)["set"]
    assert isinstance(added, dict)
    taken = {option.envvar for _, option in OPTIONS}
    assert not taken & (NOT_OPTIONS | set(added))


@pytest.mark.parametrize("command", [("ps",), ("explain",), ("submit",), ("doctor",), ("daemon", "status")])
def test_every_listing_can_be_json(command: tuple[str, ...]) -> None:
    assert "--json" in CliRunner().invoke(carpool, [*command, "--help"]).output


@pytest.mark.parametrize("command", ["run", "submit", "suspend", "cancel"])
def test_a_command_loads_only_what_it_needs(command: str) -> None:
    """Somebody waits for each start of it; the scheduler, asyncio and the tables took half of one."""
    load = f"from carpool.cli.main import carpool; carpool.get_command(None, {command!r})"
    code = f"import sys; {load}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "carpool.client" in loaded
    assert not loaded & {
        "asyncio",
        "carpool.core.node.scheduler",
        "carpool.core.node.events",
        "carpool.sim",
        "carpool.bench",
    }
    assert command not in ("run", "submit") or "rich" not in loaded


def test_the_version_is_the_packages() -> None:
    assert __version__ in CliRunner().invoke(carpool, ["--version"]).output


@pytest.mark.parametrize("arguments", [["frobnicate"], ["ps", "--no-such-option"], ["explain"], ["daemon", "pause"]])
def test_a_word_that_is_not_known_is_a_misuse(arguments: list[str]) -> None:
    assert CliRunner().invoke(carpool, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runn", "--", "python", "x.py"], "there is no command 'runn'; did you mean run?"),
        (["bench", "boundry"], "there is no command 'boundry'; did you mean boundary?"),
        (["daemon", "nothing"], "there is no command 'nothing'; there are start, status, stop"),
    ],
)
def test_a_mistyped_command_is_told_what_was_meant_or_what_there_is(arguments: list[str], says: str) -> None:
    said = CliRunner().invoke(carpool, arguments)
    assert (said.exit_code, says in said.output) == (2, True), said.output


@pytest.mark.parametrize(
    ("words", "offered"), [("carpool benc", "bench"), ("carpool bench jc", "jct"), ("carpool xyz ", "run")]
)
def test_a_shell_completes_commands_and_is_told_of_no_error(words: str, offered: str) -> None:
    environment = {"_CARPOOL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = CliRunner().invoke(carpool, [], env=environment, prog_name="carpool")
    assert f"plain,{offered}" in done.output.splitlines()
    assert "Error" not in done.output


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carpool", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert __version__ in done.stdout


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_mistyped_option_is_named_and_not_taken_for_the_program(verb: str) -> None:
    done = CliRunner().invoke(carpool, [verb, "--memroy", "2GiB", "--", "python", "x.py"])
    assert done.exit_code == 2
    assert "--memroy" in done.output
    assert "--memory" in done.output, "what was meant"


@pytest.mark.parametrize("between", [[], ["--"]])
def test_options_behind_the_program_are_the_programs(between: list[str]) -> None:
    context = command_at(("run",)).make_context(
        "run", ["--steps", "7", *between, "python", "x.py", "--memroy", "--", "1"]
    )
    assert context.params["argv"] == ("python", "x.py", "--memroy", "--", "1")
    assert (context.params["steps"], context.params["memory"]) == (7, None)


def test_a_command_has_at_most_one_positional_but_for_the_two_that_the_rules_name() -> None:
    positionals = {
        path: [each for each in command_at(path).params if isinstance(each, click.Argument)] for path in COMMANDS
    }
    assert {path for path, each in positionals.items() if len(each) > 1} == {("checkpoint",)}
    several = {path for path, each in positionals.items() if any(one.nargs != 1 for one in each)}
    assert several == {("cancel",), ("run",), ("submit",)}  # the last two: a program and its words
