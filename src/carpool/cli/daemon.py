"""`carpool daemon`: start, stop and look at the daemon of this user."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from carpool.calls import Status, as_dict
from carpool.cli.groups import HelpfulGroup
from carpool.cli.launch import replace_brought_back, start_daemon, start_machine
from carpool.cli.policy import checked
from carpool.cli.tables import device_table, show
from carpool.cli.values import origin, parsed
from carpool.client import Client
from carpool.daemon.config import DaemonConfig
from carpool.daemon.processes import birth_of, is_alive
from carpool.devices.kinds import find_devices
from carpool.errors import PeerError, UnreachableError, UsageError
from carpool.policies import in_full, names_for
from carpool.units import (
    SECOND,
    format_bytes,
    format_count,
    format_ns,
    format_tenants,
    parse_bytes,
    parse_duration_ns,
    parse_tenants,
)

STOP_SECONDS = 10.0
LOOK_SECONDS = 0.01
SHARE_AFTER_NS = 60 * SECOND  # before that its share of a core is that of its start


def _limit(count: Any) -> str:
    return "unlimited" if count is None else format_bytes(count)


def _quantum(span_ns: Any) -> str:
    return "chosen" if span_ns is None else format_ns(span_ns)


def _weights(milli: Any) -> str:
    return format_tenants(milli) or "1 each"


# What a daemon was told at its start, in the words of its options.
SETTINGS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "policy": ("policy", str),
    "quantum_ns": ("quantum", _quantum),
    "latency_ns": ("latency", format_ns),
    "share_policy": ("share policy", str),
    "hog_after_ns": ("hog after", format_ns),
    "device": ("device", str),
    "host_bytes_max": ("host memory", _limit),
    "tenant_weights_milli": ("tenant weights", _weights),
    "journal_bytes_max": ("journal size", format_bytes),
    "warm": ("start", lambda is_warm: "warm" if is_warm else "cold"),
}


@click.group(cls=HelpfulGroup, short_help="Start, stop and look at the daemon.")
def daemon() -> None:
    """Start, stop and look at the daemon (carpool run starts one by itself).

    \b
    carpool daemon start --policy srtf
    carpool daemon status
    carpool daemon stop
    """


@daemon.command()
@click.option(
    "--policy",
    default="fair",
    show_default=True,
    help=f"{', '.join(names_for('node'))}, or one of yours: ./mine.py:Mine (see carpool policy).",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="auto, cpu:4GiB, cpu:2x4GiB (two of one size), cuda, cuda:0 or stub:16GiB (no GPU).",
)
@click.option(
    "--quantum",
    default="",
    help="How long a job keeps its turn at least: 100ms; 5 is 5 s (default: the policy's, or chosen).",
)
@click.option("--latency", default="", help="Where that is chosen: within this all who wait have a turn each (2s).")
@click.option("--hog-after", default="", help="How late a job may be with its turn before it is a hog (2s).")
@click.option("--tenant-weights", default="", metavar="A=2,B=1", help="Under fair: what each tenant counts (1).")
@click.option(
    "--share-policy",
    default="fixed",
    show_default=True,
    help="What --compute means: fixed, best-effort, equal, weighted or burst.",
)
@click.option(
    "--host-memory",
    default="",
    help="What parked jobs may hold together off the device, like 64GiB (default: half the memory, for GPUs).",
)
@click.option("--journal-size", default="", help="What the journal's file may have at most (64MiB).")
@click.option(
    "--park-to",
    default="",
    metavar="DIR",
    help="Where the CPU device's parked jobs are kept; /dev/shm, say, is memory (default: with carpool's state).",
)
@click.option("--warm", is_flag=True, help="Jobs start warm, unless they say --cold: forked from one that has torch.")
def start(policy: str, device: str, tenant_weights: str, park_to: str, warm: bool, **options: str) -> None:
    """Start the daemon in the background.

    \b
    carpool daemon start --policy srtf --device cpu:4GiB
    carpool daemon start --policy ./mine.py:Mine
    carpool daemon start --device cpu:4GiB --park-to /dev/shm
    carpool daemon start --tenant-weights ana=2,ben=1
    """
    client = Client()
    for option, parse, text in (
        ("--device", find_devices, device),
        ("--quantum", parse_duration_ns, options["quantum"]),
        ("--latency", parse_duration_ns, options["latency"]),
        ("--hog-after", parse_duration_ns, options["hog_after"]),
        ("--tenant-weights", parse_tenants, tenant_weights),
        ("--host-memory", parse_bytes, options["host_memory"]),
        ("--journal-size", parse_bytes, options["journal_size"]),
    ):
        if text:
            parsed(option, parse, text)
    if not checked(policy, place="node", is_live=True).by_tenant and tenant_weights:
        raise UsageError(f"{origin('--tenant-weights')} counts under policy fair; {policy} does not go by tenants")
    policy = in_full(policy)
    config = DaemonConfig(
        policy=policy,
        device=device,
        tenant_weights=tenant_weights,
        park_to=str(Path(park_to).absolute()) if park_to else "",
        warm=warm,
        **options,
    )
    if client.places.is_machine:
        _start_machine(client, config)
    elif start_daemon(client.places, config):
        print(f"carpool: {_running(client)} (policy {policy}, device {device})", file=sys.stderr)
    else:
        _compare(client, config)


def _start_machine(client: Client, config: DaemonConfig) -> None:
    """The one daemon of all users goes by what an admin wrote, however it is started."""
    from carpool.cli.system_steps import start_step

    places = client.places
    if config != DaemonConfig():
        raise UsageError(
            f"the daemon of all users goes by {places.settings}, not by options: an admin writes it there, then:"
            " carpool system reload; for a daemon of your own set CARPOOL_DIR"
        )
    if client.is_running():
        print(f"carpool: daemon {client.status().pid} serves all users of this machine already", file=sys.stderr)
        return
    if os.geteuid() == 0:
        start_step(places).do()
    else:
        start_machine(places)
    print(f"carpool: {_running(client)}, for all users", file=sys.stderr)


def _running(client: Client) -> str:
    return f"daemon {client.status().pid} runs in {client.places.run}"


def _compare(client: Client, config: DaemonConfig) -> None:
    """A daemon runs already: it has these settings, or was chosen by nobody and makes way, or it is a misuse."""
    status = client.status()
    asked = config.with_host_memory().facts()
    others = [
        f"{name} {show_setting(getattr(status, key))} (not {show_setting(asked[key])})"
        for key, (name, show_setting) in SETTINGS.items()
        if getattr(status, key) != asked[key]
    ]
    if not others:
        print(f"carpool: daemon {status.pid} runs already in {client.places.run}", file=sys.stderr)
    elif replace_brought_back(client.places, config):
        print(
            f"carpool: {_running(client)} (policy {config.policy}, device {config.device}), in place of {status.pid},"
            " which was brought back with the settings of the one before it",
            file=sys.stderr,
        )
    else:
        raise UsageError(
            f"daemon {status.pid} runs already in {client.places.run}, with {', '.join(others)}; to change that, stop"
            " it and start it again with all its options: carpool daemon stop, then carpool daemon start"
        )


@daemon.command()
@click.option("--force", is_flag=True, help="Stop even if jobs run; they go on without taking turns.")
def stop(force: bool) -> None:
    """Stop the daemon and wait until it has ended.

    \b
    carpool daemon stop
    carpool daemon stop --force     even if jobs run
    """
    client = Client()
    if not client.is_running():
        unreached = client.places.find_daemon()
        if unreached is not None:
            raise UnreachableError(
                f"daemon {unreached.pid} does not answer at {client.places.socket}; to end it: kill {unreached.pid}"
            )
        raise UnreachableError(f"no daemon answers at {client.places.socket}: there is none to stop")
    pid = client.stop(force=force)
    birth = birth_of(pid)
    deadline = time.monotonic() + STOP_SECONDS
    while is_alive(pid, birth):
        if time.monotonic() > deadline:
            raise PeerError(
                f"daemon {pid} was told to stop {STOP_SECONDS:.0f} s ago and has not ended; see"
                f" {client.places.daemon_log}, or end it: kill {pid}"
            )
        time.sleep(LOOK_SECONDS)
    print(f"carpool: daemon {pid} stopped (it ran in {client.places.run})", file=sys.stderr)


@daemon.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def show_status(as_json: bool) -> None:
    """Show the daemon, its policy and its devices.

    \b
    carpool daemon status --json
    """
    client = Client()
    status = client.status()
    if as_json:
        print(json.dumps(as_dict(status)))
        return
    uptime, jobs, cpu_ns = status.uptime_ns, format_count(status.jobs, "job"), round(status.cpu_s * SECOND)
    used = (
        f"{100 * cpu_ns / uptime:.2f} % of a core" if uptime >= SHARE_AFTER_NS else f"{format_ns(cpu_ns)} of a core"
    )
    print(f"daemon {status.pid}, carpool {status.version}, {jobs}, up {format_ns(uptime)}, used {used}")
    told = [f"{name} {show_setting(getattr(status, key))}" for key, (name, show_setting) in SETTINGS.items()]
    print(f"{', '.join(told[:5])}\n{', '.join(told[5:7])} ({format_bytes(status.host_bytes)} used)")
    for turn in status.turns:
        print(f"{turn.job} has the turn on {turn.device}, {format_ns(turn.quantum_ns)} while others wait")
        if turn.why:
            print(f"  {turn.why}")
    if status.tenant_weights_milli:
        print(f"{told[7]} (1 for all others)")
    if status.kept_bytes:
        kept = format_bytes(status.kept_bytes)
        print(f"beside that, jobs that are back keep {kept} for their next move")
    waiting = f", {format_count(status.journal_waiting_rows, 'row')} wait to be written"
    print(f"journal {format_bytes(status.journal_bytes)}, at most {format_bytes(status.journal_bytes_max)}{waiting}")
    print(f"{told[-1]}{'' if status.warm_parents else ', no warm parent'}")
    for parent in status.warm_parents:
        idle, programs = format_ns(parent.idle_ns), format_count(parent.programs, "program")
        does = f"{programs}, idle {idle}" if parent.is_ready else f"has imported for {idle}"
        print(f"warm parent {parent.pid}: {format_bytes(parent.memory_bytes)}, {does}, {parent.python}")
    for warning in warnings_of(status):
        print(f"warning: {warning}")
    if client.places.is_machine:
        print(f"it serves all users of this machine; its settings are {client.places.settings}")
    print(f"run directory {status.run}\njournal and logs in {status.state}")
    show(device_table(status.devices))


def warnings_of(status: Status) -> list[str]:
    """What is wrong with a daemon that goes on all the same."""
    troubles = (status.journal_trouble, status.descriptor_trouble, status.policy_trouble)
    found = [each for each in troubles if each]
    found += [
        f"{name} failed and is shown nothing any more ({why}); see daemon.log, and start the daemon again"
        for name, why in status.observers_dropped.items()
        if name != "Journal" or not status.journal_trouble
    ]
    if status.log_dropped_lines:
        lines = format_count(status.log_dropped_lines, "line")
        found.append(f"daemon.log lacks {lines}: its disk did not take them in time")
    return found
