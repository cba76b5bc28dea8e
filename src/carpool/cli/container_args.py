"""`carpool container-args`: what to add to the start of a container, so that its programs take turns."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import click

from carpool.cli.container_edits import Edits, bwrap_words, cdi_spec, edits_of_job, engine_words, shared_edits
from carpool.cli.joining_options import joining_options
from carpool.cli.values import parsed
from carpool.client import Client
from carpool.errors import UsageError
from carpool.units import parse_duration_ns
from carpool.wire.joining import spec_of
from carpool.wire.places import find_places

FORMS = ("docker", "podman", "bwrap", "cdi")


@click.command("container-args", short_help="What to add to docker, podman or bwrap.")
@click.option("--docker", is_flag=True, help="For docker run; so it is without these four.")
@click.option("--podman", is_flag=True, help="For podman run.")
@click.option("--bwrap", is_flag=True, help="For bubblewrap.")
@click.option("--cdi", is_flag=True, help="A CDI file for this container.")
@click.option("--shared", is_flag=True, help="For many containers, each trusted like you.")
@click.option("--no-meter", is_flag=True, help="Preload nothing: for images with musl.")
@click.option("--patience", default="10m", metavar="TIME", help="How long its job waits for it.")
@joining_options
@click.option("--json", "as_json", is_flag=True, help="The words as a JSON list.")
def container_args(shared: bool, no_meter: bool, patience: str, as_json: bool, **options: Any) -> None:
    """Print what to add so that a container's programs take turns.

    It makes a job for one container. With --shared none is made, and each
    Python in a container joins when it imports torch; carpool cdi writes
    such a file.

    \b
    carpool container-args --bwrap
    docker run $(carpool container-args) IMAGE python train.py
    """
    named = [form for form in FORMS if options.pop(form)]
    if len(named) > 1:
        raise UsageError(f"--{named[0]} and --{named[1]} are two forms; give one of them")
    form = named[0] if named else FORMS[0]
    if shared:
        edits = shared_edits(find_places(), options, no_meter=no_meter)
    else:
        edits = _with_job(options, patience, no_meter=no_meter)
    if form == "cdi":
        print(json.dumps(cdi_spec(edits, edits.job or "all"), indent=2))
        return
    words = bwrap_words(edits) if form == "bwrap" else engine_words(edits, form)
    if as_json:
        print(json.dumps(words))
        return
    if any(any(letter.isspace() for letter in word) for word in words):
        raise UsageError("one of the paths has a space, which $(…) would cut in two; take --json, or a CDI file")
    print(" ".join(shlex.quote(word) for word in words))


def _with_job(options: dict[str, Any], patience: str, *, no_meter: bool) -> Edits:
    patience_ns = parsed("--patience", parse_duration_ns, patience)
    if patience_ns < 1:
        raise UsageError("--patience 0 leaves the container no time to start; leave it out, or write --patience 10m")
    spec = spec_of({**options, "park": not options["no_park"]}, name="container")
    client = Client()
    joined = client.adopt(
        spec,
        argv=["container"],
        patience_ns=patience_ns,
        on_wait=lambda it: print(f"carpool: {it.job} {it.reason}", file=sys.stderr),
    )
    return edits_of_job(client.places, joined, no_meter=no_meter)
