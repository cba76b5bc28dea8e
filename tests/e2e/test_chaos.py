"""Faults in a seeded order against a real daemon and real jobs: nobody who was not hit loses an iteration.

A short part runs with the other tests; `make chaos` runs a long one (CHAOS_FAULTS, CHAOS_SEED).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from carpool.calls import Spec
from carpool.errors import CarpoolError
from tests.chaos.plan import FAULTS, Fault, plan
from tests.e2e.alone import Alone
from tests.e2e.connections import cut
from tests.e2e.node import Node, Started, is_alive, kill, wait_until, with_environment
from tests.e2e.test_disk import frozen, mount_disk, unmount_disk
from tests.e2e.test_once import ENDS as ENDINGS
from tests.e2e.test_once import STARTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 20 * FAULTS)]

SEED = int(os.environ.get("CHAOS_SEED", "211939"))  # its first twelve faults are of nearly every hard kind
STEPS = "100000000"
DEVICES = 2
STATE_MEGABYTES = 512
FULL_BYTES = 64 << 10  # less than any of the jobs has
MIB = 1 << 20
RESIZES = {"grow": {"cap_bytes": 500 * MIB}, "shrink": {"cap_bytes": 20 * MIB}, "weigh": {"weight_milli": 3000}}
ENDED = {"finished", "failed", "cancelled"}
LINE = 'echo ran >> "$RAN"; echo ran'
MOMENTS = ("spawned", *STARTS, *ENDINGS)
BOOKED_SECONDS = 1.0  # how long bytes of a dead job may stay booked, on a machine that has time for us


def program(shape: str, steps: str = STEPS) -> list[str]:
    return ["held.py", shape, "--width", "120", "--pause", "0.005", "--steps", steps]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    name: str
    code: int  # with which it ends
    id: str | None = None  # None: nobody said that it was accepted


class World:
    """Three jobs that may be hit and one that is not; every one of them is compared with its run alone at the end."""

    def __init__(self, node: Node, ran: Path) -> None:
        self.node = node
        self.ran = ran  # a file for each job that was submitted, a line for each time it ran
        self.made = 0
        self.jobs: dict[str, Started] = {}
        self.over: list[Started] = []
        self.did: Counter[str] = Counter()  # the faults, by what was really done
        self.no_disk = mount_disk(node.places.state, STATE_MEGABYTES)  # why the state's disk cannot be made to hang
        self.start()
        self.bystander = self.add_bystander()
        self.before: list[Started] = []  # bystanders whose page was removed with the run directory
        for _ in range(2):
            self.add()
        self.submitted: list[Submitted] = []
        self.known_from = 0  # of these: whose end a damaged journal cannot have lost
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

    def add_bystander(self) -> Started:
        self.seen = 0  # lines of it
        return self.node.run(*program("groups"), options=["--name", "bystander", "--memory", "400MiB"])

    def check_bystander(self) -> None:
        """It has computed since the last look, or does so soon: it may be a new one, and its machine busy."""
        self.bystander.wait_lines(self.seen + 1)
        self.seen = len(self.bystander.lines)

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
            case "close_store" | "fill_store" | "open_store":
                {"close_store": self.close_store, "fill_store": self.fill_store, "open_store": self.open_store}[
                    fault.verb
                ]()
            case _:
                self.harm_files(fault, name)

    def harm_files(self, fault: Fault, name: str) -> None:
        match fault.verb:
            case "submit":
                self.submit(fault.target)
            case "die_at_start":
                self.die_at(MOMENTS[fault.target % len(MOMENTS)])
            case "remove_socket":
                self.node.places.socket.unlink(missing_ok=True)
            case "remove_lock":
                self.node.places.lock.unlink(missing_ok=True)
            case "damage_journal":
                self.damage_journal()
            case "cut_page" | "scribble_page":
                self.spoil_page(name, fault)
            case "few_descriptors":
                self.starve(fault.target)
            case "remove_run":
                self.remove_run()
            case "freeze_state":
                self.freeze_state(fault)
            case "other_version":
                self.change_version(name)
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

    # --- what runs once ------------------------------------------------------------------------------------

    def submit(self, number: int) -> None:
        """A job of one line, which must run once whatever happens; one that was not accepted runs at most once."""
        name = f"once{len(self.submitted) + 1}"
        environment = {**self.node.environment, "RAN": str(self.ran / name)}
        spec = Spec(name=name, cap_bytes=1 * MIB)
        try:
            made = self.node.client.submit(
                ["/bin/sh", "-c", f"{LINE}; exit {number % 3}"], spec=spec, environment=environment
            )
        except CarpoolError:
            self.submitted.append(Submitted(name=name, code=number % 3))
        else:
            self.submitted.append(Submitted(name=name, code=number % 3, id=made.job.id))

    def die_at(self, moment: str) -> None:
        """The daemon dies in the middle of a job's start or end, of this one or of one that comes back to it."""
        kill(self.daemon_pid())
        with with_environment(self.node, {"CARPOOL_DIE_AT": moment}), contextlib.suppress(AssertionError):
            self.start()  # it may die before it could be asked
        self.submit(len(self.submitted))
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert self.node.daemon is not None
            self.node.daemon.process.wait(10)
        if self.node.daemon is not None and self.node.daemon.process.poll() is None:
            self.node.daemon.process.kill()
            self.node.daemon.process.wait(10)
        self.start()

    def damage_journal(self) -> None:
        """What ended before may be known no longer; what comes after is."""
        with self.node.places.journal.open("r+b") as file:
            file.write(os.urandom(8192))
        self.known_from = len(self.submitted)

    def spoil_page(self, name: str, fault: Fault) -> None:
        """The job's own program may come to harm by it, and nobody else."""
        path = self.node.places.jobs / self.node.job(name)["id"] / "page"
        if fault.verb == "cut_page":
            os.truncate(path, 0)
        else:
            source = random.Random(fault.pause_ns)
            with path.open("r+b") as file:
                for _ in range(200):
                    file.seek(8 * source.randrange(path.stat().st_size // 8))
                    file.write(source.choice([b"\xff" * 8, b"\0" * 8, source.randbytes(8)]))
        time.sleep(0.3)
        self.order("cancel", name)
        self.gone(name)

    def starve(self, number: int) -> None:
        """For a moment the daemon may open no file more."""
        daemon = self.daemon_pid()
        before = resource.prlimit(daemon, resource.RLIMIT_NOFILE)
        opened = len(list(Path(f"/proc/{daemon}/fd").iterdir()))
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, (opened + 1, before[1]))
        submitting = threading.Thread(target=self.submit, args=(number,))
        submitting.start()
        time.sleep(0.3)
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, before)
        submitting.join(60)
        assert not submitting.is_alive(), "a submission hangs"

    def remove_run(self) -> None:
        """The same daemon makes its files again, and its jobs go on. Their pages have no name any more, so the next
        daemon would have them outside the turns: others take their places."""
        daemon = self.daemon_pid()
        shutil.rmtree(self.node.places.run, ignore_errors=True)  # what is made meanwhile stays
        assert self.daemon_pid() == daemon
        lines = len(self.bystander.lines)
        self.bystander.wait_lines(lines + 10)
        for name in list(self.jobs):
            self.order("cancel", name)
            self.gone(name)
        self.order("cancel", "bystander")
        self.bystander.wait()
        self.before.append(self.bystander)
        self.bystander = self.add_bystander()
        self.node.wait_steps("bystander", 3)

    def freeze_state(self, fault: Fault) -> None:
        """The disk of journal, logs and parked jobs hangs: turns go on, and what is submitted runs later."""
        if self.no_disk:
            self.did[f"NOT frozen: {self.no_disk}"] += 1
            return
        with frozen(self.node.places.state):
            self.submit(fault.target)
            lines = len(self.bystander.lines)
            self.bystander.wait_lines(lines + 20)

    def change_version(self, name: str) -> None:
        """By its file the job is of another version than the next daemon. It is taken back outside the turns, until
        its process attaches after all, and keeps nobody from theirs."""
        file = self.node.places.jobs / self.node.job(name)["id"] / "job.json"
        daemon = self.daemon_pid()
        kill(daemon)
        wait_until(lambda: not is_alive(daemon), "the daemon is dead")
        file.write_text(json.dumps({**json.loads(file.read_text()), "protocol": 1}))
        self.start()
        lines = len(self.bystander.lines)
        self.bystander.wait_lines(lines + 20)
        self.order("cancel", name)
        self.gone(name)

    def check_submitted(self) -> None:
        """Every accepted job ran exactly once, its end is known, and its log holds one job."""
        for number, job in enumerate(self.submitted):
            runs = self.ran / job.name
            if job.id is None:
                assert not runs.exists() or runs.read_text() == "ran\n", job
                continue
            wait_until(runs.exists, f"{job} ran", seconds=60)
            log = self.node.places.logs / f"{job.id}.log"
            if number >= self.known_from:
                self.wait_end(job)
            assert runs.read_text() == "ran\n", job
            assert log.read_text().splitlines().count("ran") == 1, job
        assert len({job.id for job in self.submitted if job.id}) == len([job for job in self.submitted if job.id])

    def wait_end(self, job: Submitted) -> None:
        def is_over() -> bool:
            return str(self.node.client.job(job.id or "").state) in ENDED

        wait_until(is_over, f"{job} is over", seconds=60)
        reason = self.node.client.explain(job.id or "")
        assert f"exit code {job.code}" in reason, (job, reason)

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
def world(node: Node, tmp_path: Path) -> Iterator[World]:
    made = World(node, tmp_path)
    yield made
    made.open_store()
    if not made.no_disk:
        unmount_disk(node.places.state)
    summary = ", ".join(f"{what} {count}" for what, count in sorted(made.did.items()))
    print(f"chaos, seed {SEED}: {summary}; bytes of a dead job were free after {made.slowest_s:.2f} s at most")
    for what in made.did:
        if what.startswith("NOT"):
            print(f"\nchaos: a fault could not be made here. {what}", file=sys.__stderr__)


def test_nobody_loses_an_iteration_in_a_storm_of_faults(node: Node, world: World, alone: Alone) -> None:
    node.wait_steps("bystander", 3)
    for number, fault in enumerate(plan(SEED, FAULTS)):
        world.harm(fault)
        time.sleep(fault.pause_ns / 1e9)
        if number % 10 == 9:
            world.check_bystander()
        if number % 25 == 24:
            print(f"chaos, seed {SEED}: {number + 1} of {FAULTS} faults", flush=True)
    world.settle()
    world.check_submitted()
    for shape, started in [
        *[("groups", each) for each in [world.bystander, *world.before]],
        *[("sgd", each) for each in [*world.jobs.values(), *world.over]],
    ]:
        lines = started.lines
        truth = alone.output(*program(shape, "300")).decode().splitlines()
        assert lines[:300] == truth[: min(300, len(lines))], shape
        assert [int(line.split()[0].partition("=")[2]) for line in lines] == list(range(1, len(lines) + 1))
    assert world.slowest_s < 20 * BOOKED_SECONDS, world.slowest_s
