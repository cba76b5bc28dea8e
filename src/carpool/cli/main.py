"""The command line: one file a command; this one puts them together and turns errors into sentences."""

from __future__ import annotations

import importlib
import json
import sys

import click

from carpool import __version__
from carpool.cli.groups import HelpfulGroup
from carpool.errors import CarpoolError

# Which file has each command. It is imported when the command is called: `carpool run` must not wait for what only
# tables, benches and the simulator need.
FILES = {
    "run": "run",
    "submit": "run",
    "ps": "jobs",
    "top": "top",
    "explain": "jobs",
    "logs": "jobs",
    "suspend": "jobs",
    "resume": "jobs",
    "resize": "jobs",
    "migrate": "move",
    "checkpoint": "checkpoint",
    "cancel": "jobs",
    "daemon": "daemon",
    "doctor": "doctor",
    "verify": "verify",
    "sim": "sim",
    "bench": "bench",
}


class Commands(HelpfulGroup):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(FILES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in FILES:
            return None
        found: click.Command = getattr(importlib.import_module(f"carpool.cli.{FILES[cmd_name]}"), cmd_name)
        read_environment(found)
        return found


def read_environment(command: click.Command) -> None:
    """Let every option `--some-thing` of a command, and of those below it, be read from CARPOOL_SOME_THING too."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.is_eager:
            name = max(parameter.opts, key=len).lstrip("-")
            parameter.envvar = f"CARPOOL_{name.replace('-', '_').upper()}"
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        read_environment(below)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="carpool")
def carpool() -> None:
    """Many deep-learning programs share the devices you already have, in turns, unmodified.

    \b
    carpool run -- python train.py      run a program; it shares the device
    carpool submit -- python train.py   the same in the background
    carpool ps, carpool top             who runs, who waits
    carpool explain JOB                 why it waits, where its time went
    carpool suspend JOB                 leave the device until carpool resume
    carpool resize JOB --memory 4GiB    give a running job more or less
    carpool migrate JOB --to cpu1       go on on another device of this node
    carpool checkpoint JOB FILE         write it; carpool run --from FILE goes on

    Every option --some-thing is also read from CARPOOL_SOME_THING.
    """


def wants_json(words: list[str]) -> bool:
    """Whether --json stands among carpool's own words; what comes after -- is the program's."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def main() -> None:
    """Entry point; exit codes: 0 done, 1 refused or failed, 2 misuse, 3 daemon not reached."""
    try:
        code = carpool.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        if wants_json(sys.argv[1:]):
            print(json.dumps({"error": error.format_message(), "exit_code": 2}))
        else:
            error.show()
        sys.exit(2)
    except CarpoolError as error:
        print(f"carpool: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
