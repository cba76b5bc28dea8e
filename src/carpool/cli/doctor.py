"""`carpool doctor`: what was found on this machine, what works, what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from carpool import __version__
from carpool.cli.runner import merged_environment
from carpool.client import Client
from carpool.daemon.environment import INJECT
from carpool.devices import cpu, nvml
from carpool.devices.kinds import find_devices
from carpool.errors import CarpoolError
from carpool.units import format_bytes, format_count
from carpool.wire.page import Page

AddFinding = Callable[[str, str, str], None]  # mark (ok, note or missing), what, text
PROBE_SECONDS = 60
PROBE = """
import json, sys
try:
    import torch
except ImportError as error:
    print(json.dumps({"torch": None, "why": str(error)})); sys.exit()
call = torch.nn.Module.__call__
facts = {"torch": torch.__version__, "cuda": torch.cuda.is_available(), "version": sys.version.split()[0]}
try:
    from carpool.agent.parking.find_and_copy import native
    facts["moves"] = native is not None
except ImportError:
    facts["moves"] = False
print(json.dumps({**facts, "hooked": hasattr(call, "__wrapped__"), "kind": type(call).__name__}))
"""


@click.command(short_help="Check this machine: device, torch, driver, hooks, meter.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--python", default=sys.executable, help="The Python your programs use (default: carpool's own).")
def doctor(as_json: bool, python: str) -> int:
    """Check this machine: device, torch, driver, hooks, meter, points, moves, place, daemon.

    \b
    carpool doctor --python ~/venvs/train/bin/python
    """
    findings = examine(python)
    if as_json:
        print(json.dumps({"version": __version__, "findings": findings}))
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}[finding["mark"]]
            print(f"{mark} {finding['what']:<8} {finding['text']}")
    return 1 if any(finding["mark"] == "missing" for finding in findings) else 0


def examine(python: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    def add(mark: str, what: str, text: str) -> None:
        found.append({"mark": mark, "what": what, "text": text})

    for device in find_devices("auto"):
        add("ok", "device", f"{device.id}: {format_bytes(device.capacity_bytes)}, {device.title}")
    gpus, trouble = nvml.count(), nvml.trouble()
    if gpus:
        add("ok", "driver", f"{gpus} NVIDIA GPUs")
    if trouble:
        add("note", "driver", trouble if gpus else f"no GPU: {trouble}")
    meter = cpu.meter_path()
    if meter is None:
        add(
            "note",
            "meter",
            "the C byte meter is not built: memory is measured in pure Python (install gcc, reinstall)",
        )
    else:
        _examine_meter(meter, add)
    _examine_torch(python, add)
    try:
        _examine_daemon(Client(), add)
    except CarpoolError as error:
        add("missing", "daemon", str(error))
    return found


def _examine_daemon(client: Client, add: AddFinding) -> None:
    """Which daemon answers, in which directory, and why it is that one."""
    places = client.places
    if places.base is not None:
        why = f"CARPOOL_DIR is {places.base}"
    else:
        why = f"CARPOOL_DIR is not set: the place of user {os.geteuid()} on this machine"
    add("ok", "place", f"{places.run} ({why}); journal and logs in {places.state}")
    if not client.is_running():
        unreached = places.find_daemon()
        if unreached is None:
            add("note", "daemon", "not running; carpool run starts one")
        else:
            add(
                "missing",
                "daemon",
                f"pid {unreached.pid} runs in {unreached.run} and does not answer at {places.socket}",
            )
        return
    status = client.status()
    add("ok", "daemon", f"pid {status.pid}, policy {status.policy}, {format_count(status.jobs, 'job')}")
    for each in status.devices:
        add("ok", "daemon", f"has {each.id}: {format_bytes(each.capacity_bytes)}, {each.title}")


def _examine_meter(meter: str, add: AddFinding) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "page"
        shared = Page.create(path)
        code = "b = bytearray(8 << 20); import time; print(len(b))"
        environment = {**os.environ, "LD_PRELOAD": meter, "CARPOOL_PAGE": str(path)}
        try:
            done = subprocess.run(
                [sys.executable, "-S", "-c", code], env=environment, capture_output=True, timeout=PROBE_SECONDS
            )
            claimed = shared.header.slots_used > 1
        except (OSError, subprocess.TimeoutExpired) as error:
            add("missing", "meter", f"{Path(meter).name} could not be tried: {error}")
            return
        finally:
            shared.close()
    if done.returncode == 0 and claimed and not done.stderr:
        add("ok", "meter", f"counts bytes ({Path(meter).name})")
    else:
        said = done.stderr.decode(errors="replace").strip()[:200]
        add("missing", "meter", f"{Path(meter).name} does not count: {said or 'it claimed no slot'}")


def _examine_torch(python: str, add: AddFinding) -> None:
    environment = merged_environment(
        os.environ, {"set": {"CARPOOL_JOB": "doctor"}, "prepend": {"PYTHONPATH": str(INJECT)}}
    )
    try:
        done = subprocess.run(
            [python, "-c", PROBE], env=environment, capture_output=True, timeout=PROBE_SECONDS, text=True
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        add("missing", "torch", f"{python} could not be tried: {error}")
        return
    if answer["torch"] is None:
        add("missing", "torch", f"{python} has no torch ({answer['why']}); only `with carpool.turn()` works there")
        return
    add("ok", "torch", f"{answer['torch']}, CUDA {'usable' if answer['cuda'] else 'not usable'} ({python})")
    if answer["hooked"]:
        add("ok", "hooks", "installed when the program imports torch")
        if answer["kind"] == "ModuleCall":
            add("ok", "points", "boundaries are counted in C")
        else:
            why = f"not built for Python {answer['version']}: boundaries are counted in pure Python, 10 to 20 µs each"
            add("note", "points", f"the C points are {why} (install gcc, reinstall with that Python)")
        if answer["moves"]:
            add("ok", "moves", "tensors are found and copied in C")
        else:
            why = f"not built for Python {answer['version']}: parking finds and copies tensors in pure Python, slower"
            add("note", "moves", f"the C moves are {why} (install gcc, reinstall with that Python)")
    else:
        add("missing", "hooks", f"not installed: {done.stderr.strip()[:200] or 'sitecustomize did not run'}")
