"""The command line: one file a command; this one puts them together and turns errors into sentences."""

from __future__ import annotations

import json
import sys

import click

from carpool import __version__
from carpool.cli.bench import bench
from carpool.cli.checkpoint import checkpoint
from carpool.cli.daemon import daemon
from carpool.cli.doctor import doctor
from carpool.cli.jobs import cancel, explain, logs, ps, resize, resume, suspend
from carpool.cli.move import migrate
from carpool.cli.run import run, submit
from carpool.cli.sim import sim
from carpool.cli.top import top
from carpool.cli.verify import verify
from carpool.errors import CarpoolError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    carpool migrate JOB --to gpu1       go on on another device of this node
    carpool checkpoint JOB FILE         write it; carpool run --from FILE goes on

    Every option --some-thing is also read from CARPOOL_SOME_THING.
    """


for command in (
    run,
    submit,
    ps,
    top,
    explain,
    logs,
    suspend,
    resume,
    resize,
    migrate,
    checkpoint,
    cancel,
    daemon,
    doctor,
    verify,
    sim,
    bench,
):
    carpool.add_command(command)


def read_environment(command: click.Command) -> None:
    """Let every option `--some-thing` of a command, and of those below it, be read from CARPOOL_SOME_THING too."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.is_eager:
            name = max(parameter.opts, key=len).lstrip("-")
            parameter.envvar = f"CARPOOL_{name.replace('-', '_').upper()}"
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        read_environment(below)


read_environment(carpool)


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
