"""Faults in a seeded order against a real daemon and real jobs: nobody who was not hit loses an iteration.

A short part runs with the other tests; `make chaos` runs a long one (CHAOS_FAULTS, CHAOS_SEED).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from carpool.errors import CarpoolError
from tests.chaos.plan import FAULTS, Fault, plan
from tests.e2e.alone import Alone
from tests.e2e.connections import cut
from tests.e2e.node import Node, Started, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 20 * FAULTS)]

SEED = int(os.environ.get("CHAOS_SEED", "8844"))  # its first twelve faults are of every hard kind
STEPS = "100000000"
DEVICES = 2
FULL_BYTES = 64 << 10  # less than any of the jobs has
MIB = 1 << 20
RESIZES = {"grow": {"cap_bytes": 500 * MIB}, "shrink": {"cap_bytes": 20 * MIB}, "weigh": {"weight_milli": 3000}}
ENDED = {"finished", "failed", "cancelled"}
BOOKED_SECONDS = 1.0  # how long bytes of a dead job may stay booked, on a machine that has time for us


def program(shape: str, steps: str = STEPS) -> list[str]:
    return ["held.py", shape, "--width", "120", "--pause", "0.005", "--steps", steps]


class World:
    """Three jobs that may be hit and one that is not; every one of them is compared with its run alone at the end."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.made = 0
        self.jobs: dict[str, Started] = {}
        self.over: list[Started] = []
        self.did: Counter[str] = Counter()  # the faults, by what was really done
        self.start()
        self.bystander = node.run(*program("groups"), options=["--name", "bystander", "--memory", "400MiB"])
        for _ in range(2):
            self.add()
        self.slowest_s = 0.0  # until the bytes of a dead job were free

    def start(self) -> None:
        self.node.start(device=f"cpu:{DEVICES}x2GiB", quantum="20ms")

    def daemon_pid(self) -> int:
        """Not always the one this test started: a runner that waits long enough for the next daemon starts it."""
        return int(self.node.status()["pid"])

    def add(self) -> None:
        self.made += 1
        name = f"job{self.made}"
        self.jobs[name] = self.node.run(*program("sgd"), options=["--name", name, "--memory", "400MiB"])
        self.node.wait_steps(name, 3)

    def order(self, verb: str, job: str, **arguments: object) -> None:
        """What the command line would ask; a refusal is an answer too."""
        with contextlib.suppress(CarpoolError):
            self.node.client.call(verb, job=job, **arguments)

    def harm(self, fault: Fault) -> None:
        name = list(self.jobs)[fault.target % len(self.jobs)]
        self.did[fault.verb] += 1
        match fault.verb:
            case "suspend" | "resume":
                self.order(fault.verb, name)
            case "grow" | "shrink" | "weigh":
                self.order("resize", name, **RESIZES[fault.verb])
            case "migrate":
                self.order("migrate", name, device=f"cpu{fault.target % DEVICES}")
            case "cancel":
                self.order("cancel", name)
                self.gone(name)
            case "kill_job":
                kill(self.node.program_pid(name))
                self.gone(name)
            case "kill_daemon":
                daemon = self.daemon_pid()
                kill(daemon)
                wait_until(lambda: not is_alive(daemon), "the daemon is dead")
                self.start()
            case "stall_daemon":
                daemon = self.daemon_pid()
                kill(daemon, signal.SIGSTOP)
                time.sleep(0.2)
                kill(daemon, signal.SIGCONT)
            case "cut_agent" | "cut_runner":
                self.cut(self.node.program_pid(name) if fault.verb == "cut_agent" else self.jobs[name].pid)
            case _:
                {"close_store": self.close_store, "fill_store": self.fill_store, "open_store": self.open_store}[
                    fault.verb
                ]()

    def gone(self, name: str) -> None:
        """A job was ended: its bytes are free soon, and another takes its place."""
        started = self.jobs.pop(name)
        started.wait()
        dead = time.monotonic()
        wait_until(lambda: self.node.state(name) in ENDED, f"{name} is over")
        self.slowest_s = max(self.slowest_s, time.monotonic() - dead)
        picture = self.node.ps(ended=False)
        booked = sum(device["promised_bytes"] for device in picture["devices"])
        assert booked == sum(job["promised_bytes"] for job in picture["jobs"])
        self.over.append(started)
        self.add()

    def cut(self, pid: int) -> None:
        """Break the connection of a process; it has to come back by itself."""
        try:
            self.did["connections really cut"] += cut(self.daemon_pid(), pid)
        except PermissionError as error:
            self.did[f"NOT cut: {error}"] += 1

    # --- the store: open, away, or on a disk that is full -------------------------------------------------

    def close_store(self) -> None:
        """Its directory is not there."""
        store = self.node.places.parked
        if not store.is_mount() and store.exists():
            store.rename(store.with_name("parked.aside"))

    def fill_store(self) -> None:
        """A real disk without room for a job: only root may mount one."""
        store = self.node.places.parked
        if store.exists() and not store.is_mount():
            mount = ["mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES},mode=700", "carpool-test", str(store)]
            done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
            if done.returncode:
                self.did[f"NOT full: {done.stderr.strip()}"] += 1
                self.close_store()

    def open_store(self) -> None:
        store = self.node.places.parked
        if store.is_mount():  # lazily: a job may have something in it
            subprocess.run(["umount", "-l", str(store)], timeout=30, check=True)
        aside = store.with_name("parked.aside")
        if aside.exists():
            aside.rename(store)

    def settle(self) -> None:
        """Let everybody go on to their next steps."""
        self.open_store()
        for name in self.jobs:
            self.order("resize", name, cap_bytes=500 * MIB)
            self.order("resume", name)
        for name in [*self.jobs, "bystander"]:
            steps = self.node.job(name)["steps"]
            self.node.wait_steps(name, steps + 3)


@pytest.fixture
def world(node: Node) -> Iterator[World]:
    made = World(node)
    yield made
    made.open_store()
    summary = ", ".join(f"{what} {count}" for what, count in sorted(made.did.items()))
    print(f"chaos, seed {SEED}: {summary}; bytes of a dead job were free after {made.slowest_s:.2f} s at most")
    for what in made.did:
        if what.startswith("NOT"):
            print(f"\nchaos: a fault could not be made here. {what}", file=sys.__stderr__)


def test_nobody_loses_an_iteration_in_a_storm_of_faults(node: Node, world: World, alone: Alone) -> None:
    node.wait_steps("bystander", 3)
    before = 0
    for number, fault in enumerate(plan(SEED, FAULTS)):
        world.harm(fault)
        time.sleep(fault.pause_ns / 1e9)
        if number % 10 == 9:
            now = len(world.bystander.lines)
            assert now > before, f"the bystander stood still; fault {number}: {fault}"
            before = now
        if number % 25 == 24:
            print(f"chaos, seed {SEED}: {number + 1} of {FAULTS} faults", flush=True)
    world.settle()
    for shape, started in [
        ("groups", world.bystander),
        *[("sgd", each) for each in [*world.jobs.values(), *world.over]],
    ]:
        lines = started.lines
        truth = alone.output(*program(shape, "300")).decode().splitlines()
        assert lines[:300] == truth[: min(300, len(lines))], shape
        assert [int(line.split()[0].partition("=")[2]) for line in lines] == list(range(1, len(lines) + 1))
    assert world.slowest_s < 20 * BOOKED_SECONDS, world.slowest_s
