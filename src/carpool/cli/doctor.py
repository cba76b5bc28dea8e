"""`carpool doctor`: what was found on this machine, what works, what is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from carpool import __version__
from carpool._native import STABLE
from carpool.cli.child import merged_environment
from carpool.client import Client
from carpool.daemon.environment import INJECT
from carpool.devices import cpu, nvml
from carpool.devices.kinds import find_devices
from carpool.devices.libraries import BUILT
from carpool.errors import CarpoolError
from carpool.units import format_bytes, format_count
from carpool.wire.page import Page

AddFinding = Callable[[str, str, str], None]  # mark (ok, note or missing), what, text
PROBE_SECONDS = 60
# Understood by Pythons of any age: an old one has to be named as that.
PROBE = """
import json, sys
facts = {"python": "%d.%d.%d" % tuple(sys.version_info[:3]), "torch": None, "points": False, "moves": False}
try:
    from carpool.agent.turns import hot_path
    from carpool.agent.parking import find_and_copy
    facts["points"], facts["moves"] = hot_path.native is not None, find_and_copy.native is not None
except (ImportError, SyntaxError):
    pass
try:
    import torch
    call = torch.nn.Module.__call__
    facts["hooked"], facts["points"] = hasattr(call, "__wrapped__"), type(call).__name__ == "ModuleCall"
    facts["torch"], facts["cuda"] = torch.__version__, torch.cuda.is_available()
except Exception as error:
    facts["why"] = str(error)
print(json.dumps(facts))
"""
# The versions of docs/versions.md: first and last.
PYTHONS, TORCHES = ((3, 11), (3, 13)), ((2, 13), (2, 13))
C_PARTS = {
    "points": ("hot_path", "boundaries are counted in C", "boundaries are counted in pure Python, 10 to 20 µs each"),
    "moves": (
        "find_and_copy",
        "tensors are found and copied in C",
        "parking finds and copies tensors in pure Python, slower",
    ),
}


@click.command(short_help="Check this machine: device, driver, Python, torch, hooks, meter.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--python", default=sys.executable, help="The Python your programs use (default: carpool's own).")
def doctor(as_json: bool, python: str) -> int:
    """Check this machine: device, driver, meter, Python, torch, hooks, points, moves, place, daemon.

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
    _examine_programs_python(python, add)
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


def _examine_programs_python(python: str, add: AddFinding) -> None:
    environment = merged_environment(
        os.environ, {"set": {"CARPOOL_JOB": "doctor"}, "prepend": {"PYTHONPATH": str(INJECT)}}
    )
    example = "give the path of one, such as ~/venvs/train/bin/python"
    try:
        done = subprocess.run(
            [python, "-c", PROBE], env=environment, capture_output=True, timeout=PROBE_SECONDS, text=True
        )
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
        if not isinstance(answer, dict) or not answer.keys() >= {"python", "torch", *C_PARTS}:
            raise ValueError("not the probe's answer")
    except OSError as error:
        add("missing", "python", f"{python} cannot be started ({error.strerror}); {example}")
    except subprocess.TimeoutExpired:
        add("missing", "python", f"{python} did not answer within {PROBE_SECONDS} s; {example}")
    except ValueError:
        add("missing", "python", f"{python} is no Python: it does not do what `-c` says; {example}")
    else:
        if _examine_version(python, answer["python"], add):
            _examine_torch(python, answer, done.stderr, add)
            _examine_c_parts(answer, add)


def _examine_version(python: str, version: str, add: AddFinding) -> bool:
    """Whether its programs can take turns at all."""
    tested = _range(PYTHONS)
    if _minor(version) < PYTHONS[0]:
        why = f"{version} is older than 3.11, so its programs run outside carpool's turns; use {tested} ({python})"
        add("missing", "python", why)
        return False
    if _minor(version) > PYTHONS[1]:
        add("note", "python", f"{version} is not tested; {tested} are ({python})")
    else:
        add("ok", "python", f"{version}; {tested} are tested ({python})")
    return True


def _examine_torch(python: str, answer: dict[str, Any], said: str, add: AddFinding) -> None:
    version = answer["torch"]
    if version is None:
        add("missing", "torch", f"{python} has no torch ({answer['why']}); only `with carpool.turn()` works there")
        return
    found = f"{version}, CUDA {'usable' if answer['cuda'] else 'not usable'}"
    if TORCHES[0] <= _minor(version) <= TORCHES[1]:
        add("ok", "torch", f"{found}; {_range(TORCHES)} are tested")
    else:
        add("note", "torch", f"{found}; this version is not tested, {_range(TORCHES)} are")
    if answer["hooked"]:
        add("ok", "hooks", "installed when the program imports torch: turns and parking work")
    else:
        add("missing", "hooks", f"not installed: {said.strip()[:200] or 'sitecustomize did not run'}")


def _examine_c_parts(answer: dict[str, Any], add: AddFinding) -> None:
    """One library serves every Python from 3.11 on: it was built, or was not, whichever Python asks."""
    for what, (library, works, without) in C_PARTS.items():
        if answer[what]:
            add("ok", what, works)
        elif (BUILT / f"{library}{STABLE}").exists():
            why = f"Python {answer['python']} does not load {library}{STABLE} (free-threaded, or of another machine?)"
            add("note", what, f"{why}: {without}")
        else:
            add("note", what, f"the C library is not built: {without} (install gcc, then carpool again)")


def _minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version; of one that has none, one that nobody has."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _range(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    first, last = versions
    return f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
