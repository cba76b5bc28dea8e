"""The command line: one file a command; this one puts them together and turns errors into sentences."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from carpool import __version__
from carpool.cli.groups import HelpfulGroup
from carpool.errors import CarpoolError

# Each is imported when it is called: `carpool run` must not wait for what only tables, benches or the simulator
# need.
COMMANDS = (
    "run",
    "submit",
    "adopt",
    "container-args",
    "cdi",
    "ps",
    "top",
    "explain",
    "logs",
    "usage",
    "history",
    "suspend",
    "resume",
    "resize",
    "migrate",
    "checkpoint",
    "cancel",
    "daemon",
    "system",
    "tenant",
    "policy",
    "doctor",
    "verify",
    "sim",
    "bench",
)


YES = {"1", "true", "t", "yes", "y", "on"}  # as click reads the variable of an option without a value


@dataclass(slots=True)
class Asked:
    """What the words of a command said of its errors; every command has it as its context's object."""

    is_json: bool = False


class Commands(HelpfulGroup):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        found: click.Command = getattr(importlib.import_module(f"carpool.cli.{module}"), module)
        if not gc.isenabled():  # main has seen to that
            gc.freeze()
            gc.enable()
        read_environment(found)
        return found


def read_environment(command: click.Command) -> None:
    """Let every option `--some-thing` of a command, and of those below it, be read from CARPOOL_SOME_THING too."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.is_eager:
            name = max(parameter.opts, key=len).lstrip("-")
            parameter.envvar = f"CARPOOL_{name.replace('-', '_').upper()}"
            if name == "json":
                parameter.callback = _note_json
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        read_environment(below)


def _note_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if isinstance(context.obj, Asked):
        context.obj.is_json = value
    return value


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="carpool")
def carpool() -> None:
    """Many deep-learning programs share the devices you already have, in turns.

    \b
    carpool run -- python train.py      run a program; it shares the device
    carpool ps, carpool top             who runs, who waits
    carpool explain JOB                 why it waits, where its time went
    carpool usage, carpool history      who had how much; jobs that are over

    Every option --some-thing is also read from CARPOOL_SOME_THING.
    """


def wants_json(words: list[str], command: click.Command | None) -> bool:
    """Whether words that could not be read as a command ask for JSON; what comes after -- is the program's."""
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own:
        return True
    is_known = command is not None and any("--json" in parameter.opts for parameter in command.params)
    return is_known and os.environ.get("CARPOOL_JSON", "").strip().lower() in YES


def sentence_of(error: OSError) -> str:
    """What the operating system refused, in words."""
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return "the directory this was called in does not exist any more; change to another one"
    said = error.strerror or str(error) or type(error).__name__
    return f"{said}: {error.filename}" if error.filename is not None else said


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def fail(sentence: str, code: int, *, as_json: bool) -> NoReturn:
    """End with one sentence on stderr, or one JSON object on stdout."""
    try:
        if as_json:
            print(json.dumps({"error": sentence, "exit_code": code}), flush=True)
    except OSError:  # stdout is what failed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        as_json = False
    if not as_json:
        print(f"carpool: {sentence}", file=sys.stderr)
    sys.exit(code)


def open_standard_files() -> None:
    """What is written to a closed standard output is lost; no other file takes its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> None:
    """Entry point; exit codes: 0 done, 1 refused or failed, 2 misuse, 3 daemon not reached.

    An error that is neither carpool's nor the operating system's is a bug, and keeps its traceback.
    """
    open_standard_files()
    gc.disable()  # what is loaded stays: to look for garbage in it takes a tenth of a start
    asked = Asked()
    try:
        code = carpool.main(standalone_mode=False, obj=asked)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        command = error.ctx.command if isinstance(error, click.UsageError) and error.ctx is not None else None
        if wants_json(sys.argv[1:], command):
            fail(error.format_message(), 2, as_json=True)
        error.show()
        sys.exit(2)
    except CarpoolError as error:
        fail(str(error), error.exit_code, as_json=asked.is_json)
    except BrokenPipeError:  # the reader of the output has had enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        fail(sentence_of(error), 1, as_json=asked.is_json)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
