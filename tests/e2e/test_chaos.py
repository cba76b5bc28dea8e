"""Faults in a seeded order against a real daemon and real jobs: nobody who was not hit loses an iteration.

A short part runs with the other tests; `make chaos` runs a long one (CHAOS_FAULTS, CHAOS_SEED).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from carpool.cli.reach import call
from carpool.errors import CarpoolError
from tests.chaos.plan import FAULTS, Fault, plan
from tests.e2e.alone import Alone
from tests.e2e.node import Node, Started, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 20 * FAULTS)]

SEED = int(os.environ.get("CHAOS_SEED", "7"))
STEPS = "100000000"
MIB = 1 << 20
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
        node.start(quantum="20ms")
        self.bystander = node.run(*program("groups"), options=["--name", "bystander", "--memory", "400MiB"])
        for _ in range(2):
            self.add()
        self.slowest_s = 0.0  # until the bytes of a dead job were free

    def add(self) -> None:
        self.made += 1
        name = f"job{self.made}"
        self.jobs[name] = self.node.run(*program("sgd"), options=["--name", name, "--memory", "400MiB"])
        self.node.wait_steps(name, 3)

    def order(self, verb: str, job: str, **arguments: object) -> None:
        """What the command line would ask; a refusal is an answer too."""
        with contextlib.suppress(CarpoolError):
            call(self.node.places, verb, job=job, **arguments)

    def harm(self, fault: Fault) -> None:
        name = list(self.jobs)[fault.target % len(self.jobs)]
        match fault.verb:
            case "suspend" | "resume":
                self.order(fault.verb, name)
            case "grow":
                self.order("resize", name, cap_bytes=500 * MIB)
            case "shrink":
                self.order("resize", name, cap_bytes=20 * MIB)
            case "weigh":
                self.order("resize", name, weight_milli=3000)
            case "cancel":
                self.order("cancel", name)
                self.gone(name)
            case "kill_job":
                kill(self.node.program_pid(name))
                self.gone(name)
            case "kill_daemon":
                self.node.kill_daemon()
                self.node.start(quantum="20ms")
            case "stall_daemon":
                assert self.node.daemon is not None
                self.node.daemon.process.send_signal(signal.SIGSTOP)
                time.sleep(0.2)
                self.node.daemon.process.send_signal(signal.SIGCONT)
            case "close_store" | "open_store":
                self.set_store(is_open=fault.verb == "open_store")
            case _:
                raise AssertionError(fault)

    def gone(self, name: str) -> None:
        """A job was ended: its bytes are free soon, and another takes its place."""
        started = self.jobs.pop(name)
        started.wait()
        dead = time.monotonic()
        wait_until(lambda: self.node.state(name) in ENDED, f"{name} is over")
        self.slowest_s = max(self.slowest_s, time.monotonic() - dead)
        picture = self.node.ps(ended=False)
        assert picture["devices"][0]["promised_bytes"] == sum(job["promised_bytes"] for job in picture["jobs"])
        self.over.append(started)
        self.add()

    def set_store(self, *, is_open: bool) -> None:
        """A store that takes nothing: its directory is not there, which the agent sees as a disk that refuses."""
        store, aside = self.node.places.parked, self.node.places.parked.with_name("parked.aside")
        if is_open and aside.exists():
            aside.rename(store)
        elif not is_open and store.exists():
            store.rename(aside)

    def settle(self) -> None:
        """Let everybody go on to their next steps."""
        self.set_store(is_open=True)
        for name in self.jobs:
            self.order("resize", name, cap_bytes=500 * MIB)
            self.order("resume", name)
        for name in [*self.jobs, "bystander"]:
            steps = self.node.job(name)["steps"]
            self.node.wait_steps(name, steps + 3)


def test_nobody_loses_an_iteration_in_a_storm_of_faults(node: Node, alone: Alone) -> None:
    world = World(node)
    node.wait_steps("bystander", 3)
    before = 0
    for number, fault in enumerate(plan(SEED, FAULTS)):
        world.harm(fault)
        time.sleep(fault.pause_ns / 1e9)
        if number % 10 == 9:
            now = len(world.bystander.lines)
            assert now > before, f"the bystander stood still; fault {number}: {fault}"
            before = now
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
