"""Attacks on the limits of this machine: each tries to hold more device memory than its job's cap allows, to use
more of the device's time than its compute limit, or to use the device without a turn.

The attacks are `programs/attack.py`, run by `carpool run --memory` on a daemon of its own, on this machine's GPU or,
where there is none, on the stand-in; one of them on the CPU device. Some of them carpool withstands, and promises to;
the others are the known ways past a library that lives inside the program, tried so that nobody has to take our word
for which is which.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from carpool.bench.node import PROGRAMS, Lines, open_node, plain_environment, stop
from carpool.devices import nvml
from carpool.devices.base import DeviceFacts
from carpool.devices.kinds import find_devices
from carpool.errors import PeerError, UsageError

CAP_BYTES = 256 << 20
STUB, CPU = "stub:4GiB", "cpu:1GiB"
SHARE_PERCENT = 25
SHARE_SLACK = 10  # points: attacks last two seconds, and a burst of 100 ms is allowed
ATTACK_SECONDS = 120.0  # each takes a few; the first one also waits for its job to start
HELD, NOT_HELD, NOT_TRIED = "held", "not held", "not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`name` is the function of programs/attack.py; none is an attack that only words can describe."""

    title: str
    name: str = ""
    limit: str = "memory"  # or compute, or turn
    is_promised: bool = True  # carpool says that it withstands this
    is_outside: bool = False  # run without carpool
    is_alone: bool = False  # in a job of its own, whose limits it changes
    is_on_cpu: bool = False  # on the CPU device
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    attack: Attack
    verdict: str
    why: str

    @property
    def is_broken(self) -> bool:
        """A promise was not kept."""
        return self.attack.is_promised and self.verdict == NOT_HELD

    def as_json(self) -> dict[str, object]:
        return {
            "attack": self.attack.title,
            "verdict": self.verdict,
            "is_promised": self.attack.is_promised,
            "why": self.why,
        }


COUNTED = "bytes are counted before the driver is asked"
LOOKUP = "whatever the program looks up leads to the library"
UNLOADED = "a process without the library is not counted"
PAID = "device time is paid before the launch"
FROM_OUTSIDE = "who is in a limited job may only lower its limits"
SETTLED = "what was paid too little is settled when its end is seen"
STREAMS = "what counts is the time after the end of what other streams had before"
WATCHED = "after a wait that was not paid for every launch is measured"
UNSEEN = "a launch whose end nobody sees is paid by the time since its begin"
WAITS = "each gave the turn back and asked again"
MAPPED = "a graph's memory is mapped and counted before its launch"
ATTACKS = (
    Attack(title="plain memory", name="plain", why=COUNTED),
    Attack(title="pitched memory", name="pitched", why="counted with the driver's own line length"),
    Attack(title="managed memory", name="managed", why=COUNTED),
    Attack(title="stream-ordered memory", name="ordered", why=COUNTED),
    Attack(title="a pool of its own", name="pool", why=COUNTED),
    Attack(title="a pool that keeps freed bytes", name="keeping_pool", why="release thresholds are held at 0"),
    Attack(title="virtual memory, handle kept", name="virtual", why=COUNTED),
    Attack(title="virtual memory, only mapped", name="mapped", why="counted until handle and mapping are gone"),
    Attack(title="handles of addresses inside a mapping", name="retained", why="the mapping around it is found"),
    Attack(title="properties that change during the call", name="overwritten", why="the driver looks at our copy"),
    Attack(title="arrays", name="array", why="counted level by level, rounded up"),
    Attack(title="memory nodes of two graphs", name="graph", why=MAPPED),
    Attack(title="memory nodes of one graph", name="graph_nodes", why=MAPPED),
    Attack(title="captured allocations", name="captured", why=MAPPED),
    Attack(title="pool memory of ended contexts", name="context_ended", why="what a pool gave stays counted"),
    Attack(
        title="memory of ended green contexts", name="green_ended", why="it is the primary context's, and counted"
    ),
    Attack(title="symbols of the global scope", name="door_global", why=LOOKUP),
    Attack(title="dlopen by path", name="door_path", why=LOOKUP),
    Attack(title="dlopen with RTLD_DEEPBIND", name="door_deepbind", why=LOOKUP),
    Attack(title="dlsym with RTLD_NEXT in a linked library", name="door_next", why=LOOKUP),
    Attack(title="cuGetProcAddress", name="door_proc", why=LOOKUP),
    Attack(title="cuGetProcAddress, per-thread", name="door_proc_per_thread", why=LOOKUP),
    Attack(title="variables deleted in the process", name="environment_deleted", why="they are read at the start"),
    Attack(title="child process", name="child", why="all processes of a job share one account"),
    Attack(title="forked child", name="forked", why="the driver does not work in it"),
    Attack(
        title="forked children that drop what they inherited, on the CPU device",
        name="forked_reload",
        is_on_cpu=True,
        why="what a child inherited is counted where it was made",
    ),
    Attack(title="six processes at once", name="race", why="bytes are added first, then compared"),
    Attack(title="kill -9 while holding memory", name="killed", why="sums skip the dead"),
    Attack(title="memory shared by IPC handle", name="shared", why="it counts where it was made"),
    Attack(title="another pid namespace", name="namespaces", why="who is outside is not taken for dead"),
    Attack(title="a larger cap asked for from inside", name="resized", why=FROM_OUTSIDE),
    Attack(title="a job inside the job", name="nested", why=FROM_OUTSIDE),
    Attack(title="launches without a turn", name="turn_launches", limit="turn", why=WAITS),
    Attack(title="copies without a turn", name="turn_copies", limit="turn", why=WAITS),
    Attack(
        title="a capture that never ends", name="turn_captured", limit="turn", why="it keeps a turn for 0.25 s only"
    ),
    # First of them: a job that the library held to its limit before would wait long for a turn of the agent.
    Attack(
        title="kernels after a turn of carpool.turn()",
        name="compute_left_turn",
        limit="compute",
        why="outside the agent's turns launches are paid for",
    ),
    Attack(title="kernels in a loop", name="compute_plain", limit="compute", why=PAID),
    Attack(title="a backlog of kernels, no waits", name="compute_backlog", limit="compute", why=PAID),
    Attack(title="cuLaunchKernelEx", name="compute_extended", limit="compute", why=PAID),
    Attack(title="cooperative kernels", name="compute_cooperative", limit="compute", why=PAID),
    Attack(title="cuLaunchKernelEx, cooperative", name="compute_cooperative_extended", limit="compute", why=PAID),
    Attack(title="five forms of a launch in turn", name="compute_forms", limit="compute", why=PAID),
    Attack(
        title="kernels for several devices in one call",
        name="compute_devices",
        limit="compute",
        why="a driver launches one kernel a device, and the job has one",
    ),
    Attack(title="kernels in graphs", name="compute_graph", limit="compute", why="a graph is paid as a whole"),
    Attack(title="kernels of a second context", name="compute_context", limit="compute", why=PAID),
    Attack(title="grids that push each other out", name="compute_collisions", limit="compute", why=SETTLED),
    Attack(
        title="a length that depends on data",
        name="compute_data",
        limit="compute",
        why="launches are measured by lot",
    ),
    Attack(title="kernels on two streams", name="compute_streams", limit="compute", why=STREAMS),
    Attack(
        title="such a length, with two streams besides", name="compute_data_streams", limit="compute", why=STREAMS
    ),
    Attack(title="such a length on two streams", name="compute_data_alternating", limit="compute", why=STREAMS),
    Attack(title="a kernel that is long once in a hundred", name="compute_rare", limit="compute", why=WATCHED),
    Attack(title="addresses of unloaded code", name="compute_reloaded", limit="compute", why=SETTLED),
    Attack(title="kernels of contexts that end", name="compute_ended_contexts", limit="compute", why=UNSEEN),
    Attack(title="kernels of processes that end", name="compute_successors", limit="compute", why=UNSEEN),
    Attack(
        title="variables of carpool's own set in the process",
        name="compute_disguised",
        limit="compute",
        why="who takes the turns stands in the page",
    ),
    Attack(
        title="kernels of four processes", name="compute_processes", limit="compute", why="they pay from one account"
    ),
    Attack(
        title="such a length in two processes",
        name="compute_data_processes",
        limit="compute",
        is_promised=False,
        why="between two events of one process lies the other's work: the least counts",
    ),
    Attack(
        title="the C library's own dlsym",
        name="door_own_dlsym",
        is_promised=False,
        why="a lookup that avoids the program's dlsym finds the driver itself",
    ),
    Attack(
        title="a library linked and deep-bound",
        name="door_deep_library",
        is_promised=False,
        why="its own libraries come before the preloaded ones",
    ),
    Attack(
        title="dlmopen, a namespace of its own",
        name="door_namespace",
        is_promised=False,
        why="preloaded libraries are not in other namespaces",
    ),
    Attack(title="child without LD_PRELOAD", name="child_unloaded", is_promised=False, why=UNLOADED),
    Attack(title="exec without LD_PRELOAD", name="exec_unloaded", is_promised=False, why=UNLOADED),
    Attack(title="child with an empty environment", name="child_stripped", is_promised=False, why=UNLOADED),
    Attack(
        title="child without CARPOOL_PAGE",
        name="child_unnamed",
        is_promised=False,
        why="the library does not know that it is in a job, and passes everything through",
    ),
    Attack(
        title="shared memory whose maker has ended",
        name="shared_left",
        is_promised=False,
        why="it counts where it was made, and nobody is there any more",
    ),
    Attack(
        title="writing a larger cap into the page",
        name="page_written",
        is_promised=False,
        why="the page belongs to the job's user, who may write to it",
    ),
    Attack(title="another process's seat", name="turn_claimed", limit="turn", why="the kernel says who it is"),
    Attack(
        title="a page cut short",  # last: this job takes no turns afterwards
        name="turn_page_cut",
        limit="turn",
        why="the daemon goes on, and the job goes on without turns",
    ),
    Attack(
        title="memory around a resize to less",
        name="resized_down",
        is_alone=True,
        why="the new cap counts from the next boundary on",
    ),
    Attack(
        title="launches with more than the new cap",
        name="turn_resized_down",
        limit="turn",
        is_alone=True,
        why="it gets no turn until it holds less",
    ),
    Attack(
        title="a backlog while the share is made smaller",
        name="compute_resized_down",
        limit="compute",
        is_alone=True,
        why="the new price counts from the next launch on",
    ),
    Attack(
        title="a larger cap asked for by who has left the job",
        name="resized_left",
        is_promised=False,
        is_alone=True,
        why="without the job's variables and parents it is taken for a person",
    ),
    Attack(
        title="a program not started by carpool",
        name="plain",
        is_promised=False,
        is_outside=True,
        why="carpool only limits what it starts",
    ),
    Attack(
        title="static binary, own ioctl calls",
        is_promised=False,
        why="nothing can be preloaded into it; only the kernel or the card could refuse (MIG, vGPU)",
    ),
)


def choose_device(asked: str) -> tuple[str, DeviceFacts]:
    """What to attack: the asked device, else this machine's GPU, else the stand-in."""
    cards = nvml.cards()
    name = asked or (f"cuda:{cards[0].index}" if cards else STUB)
    device = find_devices(name)[0]
    if not device.kind.needs_library:
        raise UsageError(f"'{name}' is no GPU: only limits of GPUs are attacked; try {STUB}")
    if device.capacity_bytes < 4 * CAP_BYTES:
        raise UsageError(
            f"{device.id} has less than {4 * CAP_BYTES >> 20} MiB: too small for a cap to be passed on it"
        )
    return name, device


def attack_all(name: str, device: DeviceFacts) -> Iterator[Outcome]:
    """Try every attack, one after another: those inside jobs, those outside, those that can only be told."""
    with (
        tempfile.TemporaryDirectory(prefix="cpv-") as directory,
        open_node(policy="fair", device=name, settings=own_books(device, directory)) as node,
    ):
        for inside in attacks_by_job():
            yield from run_attacks(command_for(inside), node.environment, inside)
        outside = [attack for attack in ATTACKS if attack.is_outside]
        env = outside_environment(device) | own_books(device, directory)
        yield from run_attacks(program_for(outside), env, outside)
    on_cpu = [attack for attack in ATTACKS if attack.is_on_cpu]
    with open_node(policy="fair", device=CPU) as node:
        yield from run_attacks(command_for(on_cpu), node.environment, on_cpu)
    for attack in ATTACKS:
        if not attack.name:
            yield Outcome(attack=attack, verdict=NOT_TRIED, why=f"not held: {attack.why}")


def program_for(attacks: list[Attack]) -> list[str]:
    return [sys.executable, "-S", str(PROGRAMS / "attack.py"), str(CAP_BYTES), *[attack.name for attack in attacks]]


def command_for(inside: list[Attack]) -> list[str]:
    """The same as a job under the limit that these attacks are on."""
    limit = ["--compute", f"{SHARE_PERCENT}%"] if inside[0].limit == "compute" else ["--memory", str(CAP_BYTES)]
    return [sys.executable, "-m", "carpool.cli.main", "run", *limit, "--", *program_for(inside)]


def attacks_by_job() -> list[list[Attack]]:
    """One job for all attacks on its memory and its turns, one for those on its share, and one for each that changes
    the limits of its job."""
    inside = [each for each in ATTACKS if each.name and not each.is_outside and not each.is_on_cpu]
    together = [attack for attack in inside if not attack.is_alone]
    shares = [attack for attack in together if attack.limit == "compute"]
    others = [attack for attack in together if attack.limit != "compute"]
    return [others, shares, *([attack] for attack in inside if attack.is_alone)]


def run_attacks(command: list[str], env: dict[str, str], attacks: list[Attack]) -> Iterator[Outcome]:
    """One line of the program's answer for each attack; PeerError if it says less than that."""
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, env=env, cwd="/", stdin=none, stdout=pipe, stderr=said, text=True) as child,
    ):
        try:
            assert child.stdout
            lines = Lines(child.stdout.fileno())
            for attack in attacks:
                line = lines.next(seconds=ATTACK_SECONDS)
                if line is None:
                    raise PeerError(f"'{attack.title}' did not end within {ATTACK_SECONDS:.0f} s")
                if not line:
                    said.seek(0)
                    raise PeerError(f"the attacks ended before '{attack.title}': {said.read()[-400:].strip()}")
                yield judge(attack, json.loads(line))
        finally:
            stop(child)


def judge(attack: Attack, found: dict[str, object]) -> Outcome:
    """What the attack's own report means."""
    if found["why"]:
        return Outcome(attack=attack, verdict=NOT_TRIED, why=str(found["why"]))
    if attack.limit == "compute":
        share = float(str(found["share_percent"]))
        verdict = HELD if share <= SHARE_PERCENT + SHARE_SLACK else NOT_HELD
        return Outcome(
            attack=attack, verdict=verdict, why=f"{share:.0f} % under a limit of {SHARE_PERCENT} %: {attack.why}"
        )
    if attack.limit == "turn":
        passed = found["passed"]
        assert isinstance(passed, list)
        why = f"not by {', '.join(passed)}" if passed else attack.why
        return Outcome(attack=attack, verdict=NOT_HELD if passed else HELD, why=why)
    held_bytes = int(str(found["held_bytes"]))
    if not held_bytes:
        return Outcome(attack=attack, verdict=NOT_HELD, why="it was given nothing, not even what the cap allows")
    if held_bytes > CAP_BYTES:
        why = f"{held_bytes >> 20} MiB under a cap of {CAP_BYTES >> 20}: {attack.why}"
        return Outcome(attack=attack, verdict=NOT_HELD, why=why)
    if not attack.is_promised:
        return Outcome(attack=attack, verdict=HELD, why=f"on this machine; not promised: {attack.why}")
    return Outcome(attack=attack, verdict=HELD, why=attack.why)


def own_books(device: DeviceFacts, directory: str) -> dict[str, str]:
    """Stand-in cards that nobody else uses meanwhile."""
    return {"CARPOOL_STUB_FILE": f"{directory}/books"} if device.library_directory else {}


def outside_environment(device: DeviceFacts) -> dict[str, str]:
    env = plain_environment() | device.environment
    if device.library_directory:
        env["LD_LIBRARY_PATH"] = device.library_directory
    return env
