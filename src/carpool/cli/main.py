"""The command line: one file a command; this one puts them together and turns errors into sentences."""

from __future__ import annotations

import sys

import click

from carpool import __version__
from carpool.cli.bench import bench
from carpool.cli.daemon import daemon
from carpool.cli.doctor import doctor
from carpool.cli.jobs import cancel, explain, logs, ps, resume, suspend
from carpool.cli.run import run, submit
from carpool.cli.top import top
from carpool.errors import CarpoolError, UnreachableError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="carpool")
def carpool() -> None:
    """Many deep-learning programs share the devices you already have, in turns, unmodified.

    \b
    carpool run -- python train.py          run a program; it shares the device with the others
    carpool submit -- python train.py       the same in the background
    carpool ps, carpool top                 who runs, who waits
    carpool explain JOB                     why it waits, in one sentence
    carpool suspend JOB, carpool resume JOB leave the device and come back, bit for bit
    """


for command in (run, submit, ps, top, explain, logs, suspend, resume, cancel, daemon, doctor, bench):
    carpool.add_command(command)


def main() -> None:
    """Entry point; exit codes: 0 done, 1 refused or failed, 2 misuse, 3 daemon not reached."""
    try:
        code = carpool.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except UnreachableError as error:
        _fail(str(error), 3)
    except CarpoolError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str, code: int) -> None:
    print(f"carpool: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
