"""`carpool doctor`: what was found on this machine, what works, what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from carpool import __version__
from carpool.cli.programs_python import AddFinding, Answer, look_at
from carpool.client import Client
from carpool.devices import cpu, nvml
from carpool.devices.kinds import find_devices
from carpool.errors import CarpoolError
from carpool.units import format_bytes, format_count
from carpool.wire.page import Page
from carpool.wire.places import Places

METER_SECONDS = 60


@click.command(short_help="Check this machine: device, driver, Python, torch, meter.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--python", default=sys.executable, help="The Python your programs use (default: carpool's own).")
def doctor(as_json: bool, python: str) -> int:
    """Check this machine: device, driver, meter, place, daemon; and what will work with your programs' Python: its
    version, torch, hooks, C parts (points, moves), turns, parking, checkpoint.

    \b
    carpool doctor --python ~/venvs/train/bin/python
    """
    findings, programs = examine_all(python)
    if as_json:
        print(json.dumps({"version": __version__, "findings": findings, "programs": programs.as_json()}))
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}[finding["mark"]]
            print(f"{mark} {finding['what']:<10} {finding['text']}")
    return 1 if any(finding["mark"] == "missing" for finding in findings) else 0


def examine(python: str) -> list[dict[str, str]]:
    return examine_all(python)[0]


def examine_all(python: str) -> tuple[list[dict[str, str]], Answer]:
    """What was found, and what will work with this Python."""
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
    programs = look_at(python, add)
    try:
        _examine_daemon(Client(), add)
    except CarpoolError as error:
        add("missing", "daemon", str(error))
    return found, programs


def _examine_daemon(client: Client, add: AddFinding) -> None:
    """Which daemon answers, in which directory, and why it is that one."""
    places = client.places
    kept = (
        f"journal in {places.state}, logs in {places.logs}"
        if places.is_machine
        else f"journal and logs in {places.state}"
    )
    add("ok", "place", f"{places.run} ({_why(places)}); {kept}")
    if not client.is_running():
        unreached = places.find_daemon()
        if places.is_machine:
            add("missing", "daemon", _why_unreachable(client))
        elif unreached is None:
            add("note", "daemon", "not running; carpool run starts one")
        else:
            add(
                "missing",
                "daemon",
                f"pid {unreached.pid} runs in {unreached.run} and does not answer at {places.socket}",
            )
        return
    status = client.status()
    whose = "the machine's, for all users: " if places.is_machine else ""
    add("ok", "daemon", f"{whose}pid {status.pid}, policy {status.policy}, {format_count(status.jobs, 'job')}")
    for each in status.devices:
        add("ok", "daemon", f"has {each.id}: {format_bytes(each.capacity_bytes)}, {each.title}")


def _why(places: Places) -> str:
    """Why a command uses the daemon of these places (I20)."""
    if places.is_machine:
        return f"CARPOOL_DIR is not set, and a daemon for all users is installed: {places.settings}"
    if places.base is not None:
        return f"CARPOOL_DIR is {places.base}"
    return f"CARPOOL_DIR is not set, no daemon for all users is installed: the place of user {os.geteuid()}"


def _why_unreachable(client: Client) -> str:
    try:
        client.status()
    except (CarpoolError, OSError) as error:
        return str(error)
    return "it answers now"


def _examine_meter(meter: str, add: AddFinding) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "page"
        shared = Page.create(path)
        code = "b = bytearray(8 << 20); import time; print(len(b))"
        environment = {**os.environ, "LD_PRELOAD": meter, "CARPOOL_PAGE": str(path)}
        try:
            done = subprocess.run(
                [sys.executable, "-S", "-c", code], env=environment, capture_output=True, timeout=METER_SECONDS
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
