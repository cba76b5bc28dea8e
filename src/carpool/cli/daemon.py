"""`carpool daemon`: start, stop and look at the daemon of this user."""

from __future__ import annotations

import json
import sys
import time

import click

from carpool.cli.reach import call, is_running, start_daemon
from carpool.cli.tables import device_table, show
from carpool.daemon.config import DaemonConfig
from carpool.errors import UnreachableError
from carpool.units import format_ns
from carpool.wire.places import find_places

STOP_SECONDS = 10.0


@click.group()
def daemon() -> None:
    """Start, stop and look at the daemon (carpool run starts one by itself)."""


@daemon.command(context_settings={"auto_envvar_prefix": "CARPOOL"})
@click.option("--policy", default="fair", show_default=True, help="fifo, srtf, fair, priority, pack or las.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu:4GiB, cpu:2x4GiB, cuda or cuda:0.")
@click.option(
    "--quantum", default="", help="How long a job keeps its turn at least, like 100ms (default: the policy's)."
)
@click.option("--host-memory", default="", help="What parked jobs may hold together off the device, like 64GiB.")
def start(policy: str, device: str, quantum: str, host_memory: str) -> None:
    """Start the daemon in the background.

    \b
    carpool daemon start --policy srtf --device cpu:4GiB
    """
    places = find_places()
    config = DaemonConfig(policy=policy, device=device, quantum=quantum, host_memory=host_memory)
    if start_daemon(places, config):
        status = call(places, "status")
        print(f"carpool: daemon {status['pid']} runs (policy {policy}, device {device})", file=sys.stderr)
        return
    status = call(places, "status")
    if (status["policy"], status["device"]) != (policy, device):
        raise UnreachableError(
            f"a daemon runs already with policy {status['policy']} and device {status['device']};"
            " stop it first: carpool daemon stop"
        )
    print(f"carpool: daemon {status['pid']} runs already", file=sys.stderr)


@daemon.command()
@click.option("--force", is_flag=True, help="Stop although jobs run; they go on without taking turns.")
def stop(force: bool) -> None:
    """Stop the daemon."""
    places = find_places()
    answer = call(places, "stop", force=force)
    deadline = time.monotonic() + STOP_SECONDS
    while is_running(places) and time.monotonic() < deadline:
        time.sleep(0.02)
    print(f"carpool: daemon {answer['pid']} stopped", file=sys.stderr)


@daemon.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def status(as_json: bool) -> None:
    """Show the daemon, its policy and its devices."""
    answer = call(find_places(), "status")
    if as_json:
        print(json.dumps(answer))
        return
    uptime, cpu_s = int(str(answer["uptime_ns"])), float(str(answer["cpu_s"]))
    share = 100 * cpu_s / max(1e-9, uptime / 1e9)
    print(
        f"daemon {answer['pid']}, carpool {answer['version']}, policy {answer['policy']}, {answer['jobs']} jobs,"
        f" up {format_ns(uptime)}, used {share:.2f} % of a core"
    )
    if answer["journal_trouble"]:
        print(f"warning: {answer['journal_trouble']}")
    show(device_table(answer))
