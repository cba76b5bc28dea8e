"""Faults in a seeded order against one daemon of three users: whatever one does or suffers, the others lose nothing.

A short part runs with the other tests; `make chaos` runs a long one (CHAOS_FAULTS, CHAOS_SEED).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.plan import FAULTS
from tests.e2e.alone import Alone
from tests.e2e.machine import Machine, Person
from tests.e2e.node import Started, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 20 * FAULTS)]

SEED = int(os.environ.get("CHAOS_SEED", "171120"))
STEPS = "100000000"
MIB = 1 << 20
ENDED = {"finished", "failed", "cancelled"}
SETTINGS = """
device = "cpu:4GiB"
quantum = "20ms"
[access]
private = {private}
[limits]
connections = {connections}
"""
VERBS = {
    "suspend": 3,
    "resume": 3,
    "resize": 2,
    "cancel": 1,
    "kill_job": 2,
    "kill_daemon": 1,
    "stall_daemon": 1,
    "meddle": 3,
    "submit": 3,
    "reload": 2,
    "scribble_page": 1,
    "nonsense_files": 1,
    "flood": 1,
    "remove_socket": 1,
}
NONSENSE = [b"", b"{", b"[]", b'{"pid": 1}', b'{"code": "x", "state": 7}', b"\xff" * 4096, b"[" * 100_000]


@dataclass(frozen=True, kw_only=True)
class Once:
    """A submitted job of one line."""

    job: str
    owner: Person
    code: int


class World:
    """Each user has a job that may be hit; one of them has one more, and nobody touches that."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.people = [machine.people[name] for name in ("ana", "ben", "eve")]
        self.did: Counter[str] = Counter()
        self.faults: list[str] = []
        self.made = 0
        self.jobs: dict[Person, tuple[str, Started]] = {}
        self.over: list[Started] = []
        self.once: list[Once] = []
        self.slowest_s = 0.0
        self.start()
        self.bystander = self.people[1].run(*program("groups"), options=["--name", "bystander", "--memory", "400MiB"])
        self.seen = 0
        for person in self.people:
            self.add(person)

    def start(self) -> None:
        settings = SETTINGS.format(private="false", connections=200)
        self.machine.start_machine(settings)

    def add(self, person: Person) -> None:
        self.made += 1
        name = f"{person.name}{self.made}"
        self.jobs[person] = name, person.run(*program("sgd"), options=["--name", name, "--memory", "400MiB"])
        self.machine.wait_steps(name, 3)

    def check_bystander(self) -> None:
        try:
            self.bystander.wait_lines(self.seen + 1)
        except AssertionError as error:
            jobs = [(job["id"], job["state"], job["reason"]) for job in self.machine.ps(ended=False)["jobs"]]
            raise AssertionError(f"{error}; last faults {self.faults[-12:]}; {jobs}") from None
        self.seen = len(self.bystander.lines)

    def harm(self, verb: str, source: random.Random) -> None:
        person = source.choice(self.people)
        name, _ = self.jobs[person]
        self.did[verb] += 1
        self.faults.append(f"{verb} {name}")
        match verb:
            case "suspend" | "resume":
                person.carpool(verb, name)
            case "resize":
                person.carpool("resize", name, "--memory", source.choice(["20MiB", "500MiB"]))
            case "cancel":
                person.carpool("cancel", name)
                self.gone(person)
            case "kill_job":
                kill(self.machine.program_pid(name))
                self.gone(person)
            case "meddle":
                self.meddle(person, source)
            case "submit":
                self.submit(person, source.randrange(3))
            case "scribble_page" | "nonsense_files":
                self.spoil(person, verb, source)
            case "flood":
                person.start(*self.machine.command(["flood.py", "2", "1"])).wait()
            case _:
                self.harm_daemon(verb, source)

    def harm_daemon(self, verb: str, source: random.Random) -> None:
        match verb:
            case "kill_daemon":
                self.machine.kill_daemon()
                self.start()
            case "stall_daemon":
                assert self.machine.daemon is not None
                kill(self.machine.daemon.pid, signal.SIGSTOP)
                time.sleep(0.2)
                kill(self.machine.daemon.pid, signal.SIGCONT)
            case "reload":
                private = source.choice(["true", "false"])
                self.machine.write_settings(SETTINGS.format(private=private, connections=source.randrange(100, 300)))
                done = self.machine.root.carpool("system", "reload")
                assert done.code == 0, done.err
            case "remove_socket":
                self.machine.places.socket.unlink(missing_ok=True)
                assert self.machine.daemon is not None
                kill(self.machine.daemon.pid, signal.SIGUSR1)  # as a command of root would that finds nobody
                self.machine.wait_daemon()
            case _:
                raise AssertionError(verb)

    def meddle(self, person: Person, source: random.Random) -> None:
        """Somebody else orders this user's job about."""
        name, _ = self.jobs[person]
        other = source.choice([each for each in self.people if each is not person])
        words = source.choice([["suspend"], ["cancel"], ["resume"], ["resize", "--memory", "1MiB"]])
        job = self.machine.job(name)["id"]
        done = other.carpool(words[0], job, *words[1:])
        assert done.code == 1 and "only its owner and admins" in done.err, (words, done)

    def submit(self, person: Person, code: int) -> None:
        found = person.submit(
            "/bin/sh",
            "-c",
            f'echo ran >> "$HOME/$CARPOOL_JOB"; id -u; exit {code}',
            options=["--memory", "1MiB", "--name", "once"],
        )
        self.once.append(Once(job=found["id"], owner=person, code=code))

    def spoil(self, person: Person, verb: str, source: random.Random) -> None:
        """What a program of this user's could do to its own job's files; its own job may come to harm by it."""
        name, _ = self.jobs[person]
        directory = self.machine.places.jobs / self.machine.job(name)["id"]
        if verb == "scribble_page":
            with (directory / "page").open("r+b") as file:
                for _ in range(200):
                    file.seek(8 * source.randrange((directory / "page").stat().st_size // 8))
                    file.write(source.choice([b"\xff" * 8, b"\0" * 8, source.randbytes(8)]))
        else:
            for each in ("end.json", "started.json", "checkpoint.refused", "job.json"):
                path = directory / each
                path.unlink(missing_ok=True)
                if source.random() < 0.2:
                    os.mkfifo(path)
                elif source.random() < 0.2:
                    path.symlink_to("/dev/zero")
                else:
                    path.write_bytes(source.choice(NONSENSE))
                os.chown(path, person.uid, person.gid, follow_symlinks=False)
        time.sleep(0.3)
        self.machine.root.carpool("cancel", name)
        self.gone(person)

    def gone(self, person: Person) -> None:
        """A job was ended: its bytes are free soon, and another takes its place."""
        name, started = self.jobs.pop(person)
        started.wait()
        dead = time.monotonic()
        wait_until(lambda: self.machine.state(name) in ENDED, f"{name} is over")
        self.slowest_s = max(self.slowest_s, time.monotonic() - dead)
        picture = self.machine.ps(ended=False)
        booked = sum(device["promised_bytes"] for device in picture["devices"])
        assert booked == sum(job["promised_bytes"] for job in picture["jobs"])
        self.over.append(started)
        self.add(person)

    def settle(self) -> None:
        for person, (name, _) in self.jobs.items():
            person.carpool("resize", name, "--memory", "500MiB")
            person.carpool("resume", name)
        for name in [*(name for name, _ in self.jobs.values()), "bystander"]:
            self.machine.wait_steps(name, self.machine.job(name)["steps"] + 3)

    def check_once(self) -> None:
        """Every accepted job ran exactly once, as its user, and its end is known."""
        for once in self.once:
            wait_until(lambda once=once: self.machine.state(once.job) in ENDED, f"{once} is over")  # type: ignore[misc]  # mypy knows no default of a lambda
            assert (once.owner.home / once.job).read_text() == "ran\n", once
            log = self.machine.places.logs / str(once.owner.uid) / f"{once.job}.log"
            assert log.read_text().split() == [str(once.owner.uid)], once
            assert log.stat().st_uid == once.owner.uid
            reason = self.machine.client.explain(once.job)
            assert f"exit code {once.code}" in reason, (once, reason)


def program(shape: str, steps: str = STEPS) -> list[str]:
    return ["held.py", shape, "--width", "120", "--pause", "0.005", "--steps", steps]


@pytest.fixture
def world(machine: Machine) -> Iterator[World]:
    made = World(machine)
    yield made
    summary = ", ".join(f"{what} {count}" for what, count in sorted(made.did.items()))
    print(
        f"chaos of users, seed {SEED}: {summary}; bytes of a dead job were free after {made.slowest_s:.2f} s at most"
    )


def test_no_user_loses_an_iteration_by_what_another_does_or_suffers(
    machine: Machine, world: World, alone: Alone
) -> None:
    machine.wait_steps("bystander", 3)
    source = random.Random(SEED)
    each = source.sample(list(VERBS), len(VERBS))  # once at least
    verbs = [*each, *source.choices(list(VERBS), weights=list(VERBS.values()), k=FAULTS)]
    for number, verb in enumerate(verbs[: max(FAULTS, len(VERBS))]):
        world.harm(verb, source)
        time.sleep(source.random() * 0.4)
        if number % 10 == 9:
            world.check_bystander()
        if number % 25 == 24:
            print(f"chaos of users, seed {SEED}: {number + 1} faults", flush=True)
    world.settle()
    world.check_once()
    assert machine.daemon is not None and is_alive(machine.daemon.pid)
    jobs = [("groups", world.bystander), *[("sgd", job) for _, job in world.jobs.values()]]
    for shape, started in [*jobs, *[("sgd", job) for job in world.over]]:
        lines = started.lines
        truth = alone.output(*program(shape, "300")).decode().splitlines()
        assert lines[:300] == truth[: min(300, len(lines))], shape
        assert [int(line.split()[0].partition("=")[2]) for line in lines] == list(range(1, len(lines) + 1))
