"""Attacks of one user on another and on the daemon that serves both: what `carpool verify` tries as root.

A victim trains on a private machine's daemon (bench/machine.py) and has a secret in its environment. The attacker is
another user, running `programs/attack_users.py`. An attack is held if it achieved nothing, the victim goes on, and
the daemon is the same, answers soon and has not spent more than COST_MAX of a core meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carpool.bench.attacks import HELD, NOT_HELD, NOT_TRIED, Attack, Outcome
from carpool.bench.machine import Machine, free_uids, open_machine
from carpool.bench.node import PROGRAMS, Lines, python, wait_files
from carpool.calls import ENDED
from carpool.errors import CarpoolError, PeerError

SETTINGS = """
policy = "fair"
device = "cpu:2GiB"
quantum = "50ms"
[tenant.victims]
members = ["#{uid}"]
"""
SECRET = "the-victims-secret-7d1f"
ATTACK_SECONDS = 150.0
VICTIM_SECONDS = 120.0
COST_MAX = 0.75  # of a core: a quarter for what one user sends, and what the kernel's part of it costs
ANSWER_MAX = 5.0  # seconds for an answer to somebody else, on a machine of two busy cores
LOOK_SECONDS = 0.2
KERNEL = "the kernel keeps users apart"
OWNER = "only its owner and admins may"
NAMED = "the kernel says who connects"
PART = "each user has a part of the loop's time"


def _attack(title: str, name: str, why: str) -> Attack:
    return Attack(title=title, name=name, limit="user", why=why)


ATTACKS = (
    _attack("reading pages, logs, stores and the journal", "read_files", KERNEL),
    _attack("reading memory and environment of a process", "read_processes", KERNEL),
    _attack("a secret in an answer of the daemon", "read_answers", "command line and environment are not told"),
    _attack("writing, cutting and removing files", "write_files", KERNEL),
    _attack("files where the daemon's are", "make_files", KERNEL),
    _attack("signals to the victim and the daemon", "send_signals", KERNEL),
    _attack("bells and knocks with any word", "ring", "a bell is believed if the daemon offered that turn"),
    _attack("a seat in another's job", "attach", NAMED),
    _attack("saying to be another's runner", "be_runner", NAMED),
    _attack("another's process as one's own program", "claim_process", NAMED),
    _attack("orders about another's job", "order", OWNER),
    _attack("a job of another's tenant", "take_tenant", "who is in a tenant says the configuration"),
    _attack("ten thousand connections", "connect_often", "each user has so many"),
    _attack("questions without end", "ask_often", PART),
    _attack("nonsense on the socket", "talk_nonsense", "what is no message ends its connection"),
    _attack("answers that are never read", "never_read", "who does not read is cut off"),
    _attack("turns asked for without end", "flood_turns", PART),
    _attack("1,500 jobs at once", "queue_jobs", "each user has so many that wait"),
)


@dataclass(slots=True)
class Victim:
    job: str
    uid: int
    pids: list[int]


def attack_users() -> Iterator[Outcome]:
    """Try every attack, one after another."""
    ana, ben = free_uids(2)
    with open_machine(SETTINGS.format(uid=ana)) as machine:
        victim = _start_victim(machine, ana)
        command = [sys.executable, str(PROGRAMS / "attack_users.py")]
        for attack in ATTACKS:
            attacker = machine.popen(ben, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            yield _try(machine, attack, victim, attacker)
            attacker.kill()
            attacker.wait()


def _start_victim(machine: Machine, uid: int) -> Victim:
    machine.environment["VICTIM_SECRET"] = SECRET
    try:
        first = machine.directory_of(uid) / "first"
        options = {"width": 64, "depth": 1, "batch": 4, "steps": 1_000_000_000, "first": first}
        machine.run_as(uid)(python("train.py", options), "--memory", "512MiB", "--name", "victim")
        wait_files([first], machine.check_jobs, seconds=VICTIM_SECONDS)
    finally:
        del machine.environment["VICTIM_SECRET"]
    job = machine.client.jobs()[0]
    return Victim(job.id, uid, list(job.pids))


def _facts(machine: Machine, attack: Attack, victim: Victim) -> dict[str, Any]:
    places = machine.places
    job = machine.client.job(victim.job)
    return {
        "attack": attack.name,
        "job": victim.job,
        "pids": victim.pids,
        "tenant": job.tenant,
        "secret": SECRET,
        "daemon": machine.pid,
        "socket": str(places.socket),
        "knock": str(places.knock),
        "bells": str(places.bells),
        "public": [places.socket.name, places.knock.name, places.sign.name, places.settings.name],
        "roots": [str(path) for path in (places.run, places.state, places.logs)],
        "secret_paths": [str(path) for path in _secret(machine, victim)],
        "directories": [
            str(path)
            for path in (
                places.run,
                places.jobs,
                places.bells,
                places.state,
                places.kept_jobs,
                places.parked,
                places.logs,
                places.jobs / victim.job,
            )
        ],
    }


def _secret(machine: Machine, victim: Victim) -> list[Path]:
    """Files of the victim and the daemon, by their very names, which an attacker may guess."""
    places = machine.places
    below = [places.jobs / victim.job, places.kept_jobs / victim.job, places.logs, places.parked]
    found = [path for directory in below for path in directory.rglob("*") if path.is_file()]
    return [*found, places.journal, places.lock, places.journal_lock, places.config]


def _try(machine: Machine, attack: Attack, victim: Victim, attacker: subprocess.Popen[bytes]) -> Outcome:
    assert attacker.stdin and attacker.stdout
    steps, cost_s, began = _steps(machine, victim), machine.cpu_s(), time.monotonic()
    attacker.stdin.write(json.dumps(_facts(machine, attack, victim)).encode() + b"\n")
    attacker.stdin.flush()
    with _Looks(machine) as looks:
        line = Lines(attacker.stdout.fileno()).next(seconds=ATTACK_SECONDS)
    if not line:
        return Outcome(attack=attack, verdict=NOT_TRIED, why="the attacker said nothing in time")
    answer = json.loads(line)
    trouble = _harm(machine, victim, steps) or looks.trouble
    if not trouble:
        part = (machine.cpu_s() - cost_s) / max(1.0, time.monotonic() - began)
        trouble = f"it cost the daemon {part:.0%} of a core" if part > COST_MAX else ""
    if answer.get("got"):
        trouble = "; ".join(answer["got"][:5])
    if trouble:
        return Outcome(attack=attack, verdict=NOT_HELD, why=trouble)
    if "trouble" in answer:
        return Outcome(attack=attack, verdict=NOT_TRIED, why=answer["trouble"])
    return Outcome(attack=attack, verdict=HELD, why=attack.why)


class _Looks:
    """Asks the daemon now and then, as somebody else, and notes the longest answer."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._longest = 0.0
        self._error = ""

    def __enter__(self) -> _Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            began = time.monotonic()
            try:
                self._machine.client.status()
            except CarpoolError as error:
                self._error = str(error)
            self._longest = max(self._longest, time.monotonic() - began)

    @property
    def trouble(self) -> str:
        if self._error:
            return f"the daemon did not answer: {self._error}"
        return f"an answer took {self._longest:.1f} s" if self._longest > ANSWER_MAX else ""


def _steps(machine: Machine, victim: Victim) -> int:
    return machine.client.job(victim.job).steps


def _harm(machine: Machine, victim: Victim, steps: int) -> str:
    """What became of daemon and victim; empty if both go on."""
    try:
        if machine.client.status().pid != machine.pid:
            return "the daemon ended, and there is another one"
        deadline = time.monotonic() + VICTIM_SECONDS
        while _steps(machine, victim) <= steps + 1:
            if machine.client.job(victim.job).state in ENDED or time.monotonic() > deadline:
                return f"the victim is {machine.client.job(victim.job).state}"
            time.sleep(LOOK_SECONDS)
        job = machine.client.job(victim.job)
        return "" if job.state in ("running", "waiting") else f"the victim is {job.state}: {job.reason}"
    except (CarpoolError, PeerError) as error:
        return f"the daemon does not answer: {error}"
