"""`carpool cdi`: a file by which container runtimes give carpool to a container as if it were a device."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from carpool.cli.container_edits import CDI_KIND, cdi_spec, shared_edits
from carpool.cli.joining_options import joining_options
from carpool.errors import UsageError
from carpool.wire.places import find_places

_IS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


@click.command(short_help="A CDI file: containers get carpool as a device.", hidden=True)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--device-name", default="all", help="What the device is called (all).")
@click.option("--no-meter", is_flag=True, help="Preload nothing: for images with musl, like Alpine.")
@joining_options
@click.option("--json", "as_json", is_flag=True, help="Without FILE it is printed as JSON anyway.")
def cdi(file: Path | None, device_name: str, no_meter: bool, as_json: bool, **options: Any) -> None:
    """Write a file of the Container Device Interface, or print it.

    A Python in a container with that device becomes a job when it imports
    torch. Such containers have to be trusted like you.

    \b
    carpool cdi /etc/cdi/carpool.json     (as root)
    podman run --device carpool.dev/share=all IMAGE python train.py
    """
    if not _IS_NAME.fullmatch(device_name):
        raise UsageError(f"--device-name {device_name} may have letters, digits and _ . : - only")
    text = json.dumps(cdi_spec(shared_edits(find_places(), options, no_meter=no_meter), device_name), indent=2)
    if file is None:
        print(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)  # /etc/cdi is there only once something was put into it
    draft = file.with_name(f".{file.name}.{os.getpid()}")  # runtimes read every *.json there
    draft.write_text(text + "\n")
    draft.chmod(0o644)
    draft.replace(file)
    print(f"carpool: wrote {file}; start containers with --device {CDI_KIND}={device_name}", file=sys.stderr)
