"""The byte meter (native/meter.c) in real processes: what it counts, what it refuses, how it steps aside.

`native/tests/meter_probe.c` obeys one command a line and answers before it reads the next, so its slot is quiet
whenever a test looks at it.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from carpool.wire import caps
from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base
from tests.native import probe
from tests.native.gpu import link_options
from tests.native.probe import NATIVE, compile_c

HOOKS = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
]
WAIT_SECONDS = 20
UNTOUCHED = 77  # the probe's errno before every call
MIB = 1 << 20
METERED = wire.FLAG_METERED | wire.own_namespace() << wire.NAMESPACE_SHIFT
NOT_COUNTED = "memory of this process is not counted\n"

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@dataclass(frozen=True)
class Built:
    meter: Path
    probe: Path
    tracer: Path  # hands every call on
    greedy: Path  # serves every call itself


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler 'cc': the byte meter is NOT tested; install gcc")
    place = tmp_path_factory.mktemp("native")
    shared = ["-shared", "-fPIC"]
    other = NATIVE / "tests" / "other_preload.c"
    return Built(
        meter=compile_c(
            place / "meter.so", "-fvisibility=hidden", *shared, NATIVE / "meter.c", *link_options("meter")
        ),
        probe=compile_c(place / "probe", NATIVE / "tests" / "meter_probe.c"),
        tracer=compile_c(place / "tracer.so", *shared, other),
        greedy=compile_c(place / "greedy.so", "-DGREEDY", *shared, other),
    )


def metered(path: Path | str | None, *preloads: Path) -> dict[str, str]:
    """The environment of a process that preloads these libraries and is told of this page."""
    env = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CARPOOL_PAGE")}
    env["LD_PRELOAD"] = ":".join(map(str, preloads))
    if path is not None:
        env |= {"CARPOOL_PAGE": str(path), "CARPOOL_IS_CAPPED": "1"}
    return env


class Probe(probe.Probe):
    """One running probe; answers are (usable bytes, 0 being a refusal, or a pid; errno after the call)."""

    def __init__(self, program: Path, env: dict[str, str], log: Path, stderr: int | None = None) -> None:
        super().__init__([program], env, log, stderr=stderr)
        self.pid = self.first[0]


Start = Callable[..., Probe]


@pytest.fixture
def start(built: Built, page: Page, tmp_path: Path) -> Iterator[Start]:
    """Starts probes on the page, metered; they are ended when the test is."""
    with ExitStack() as stack:
        count = 0

        def start(env: dict[str, str] | None = None, stderr: int | None = None) -> Probe:
            nonlocal count
            count += 1
            env = metered(page.path, built.meter) if env is None else env
            return stack.enter_context(Probe(built.probe, env, tmp_path / f"probe{count}.log", stderr))

        yield start


def slot_of(page: Page, pid: int) -> int:
    slot = page.slot_of(pid)
    assert slot is not None, f"process {pid} has no slot among {page.pids()}"
    return slot


def word(page: Page, pid: int, name: int) -> int:
    """A word of a process's slot, signed."""
    value = page.words[slot_base(slot_of(page, pid)) + name]
    return value - (1 << 64) if value >> 63 else value


def live(page: Page, pid: int) -> int:
    return word(page, pid, wire.S_LIVE)


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait(WAIT_SECONDS)
    return process.pid


# What is counted.


@pytest.mark.parametrize("how", HOOKS)
def test_every_allocator_counts_what_it_hands_out_and_free_takes_it_back(start: Start, page: Page, how: str) -> None:
    probe = start()
    before = live(page, probe.pid)
    usable, error = probe.ask(f"{how} 0 65536")
    assert usable >= 65536
    assert error == UNTOUCHED
    assert live(page, probe.pid) == before + usable
    assert word(page, probe.pid, wire.S_PEAK) >= before + usable
    assert probe.ask("free 0") == (0, UNTOUCHED)
    assert live(page, probe.pid) == before


def test_a_claimed_slot_says_that_it_is_metered(start: Start, page: Page) -> None:
    probe = start()
    assert word(page, probe.pid, wire.S_FLAGS) % (1 << 64) == METERED
    assert page.words[wire.H_SLOTS_USED] == slot_of(page, probe.pid) + 1 == 2
    assert probe.said() == ""


def test_y1_blocks_below_the_threshold_are_not_counted(start: Start, page: Page) -> None:
    probe = start()
    before = live(page, probe.pid)
    for at, size in enumerate([0, 16, 1024, 4000, 4064, 4080, 4096, 4112, 5000]):
        usable, _ = probe.ask(f"malloc {at} {size}")
        assert live(page, probe.pid) - before == (usable if usable >= 4096 else 0), size
        probe.ask(f"free {at}")
        assert live(page, probe.pid) == before


def test_realloc_counts_the_difference_in_both_directions(start: Start, page: Page) -> None:
    probe = start()
    before = live(page, probe.pid)
    for size in [100, 50_000, 3_000_000, 40_000, 5_000, 64, 9_000]:
        usable, error = probe.ask(f"realloc 0 {size}")
        assert error == UNTOUCHED
        assert live(page, probe.pid) - before == (usable if usable >= 4096 else 0), size
    assert probe.ask("realloc 0 0")[0] == 0  # glibc takes this for a free
    assert live(page, probe.pid) == before


def test_the_peak_outlives_the_block_until_the_agent_resets_it(start: Start, page: Page) -> None:
    probe = start()
    usable, _ = probe.ask(f"malloc 0 {8 * MIB}")
    probe.ask("free 0")
    assert word(page, probe.pid, wire.S_PEAK) >= usable
    page.words[slot_base(slot_of(page, probe.pid)) + wire.S_PEAK] = 0
    usable, _ = probe.ask(f"malloc 0 {2 * MIB}")
    assert usable <= word(page, probe.pid, wire.S_PEAK) < 3 * MIB


@pytest.mark.parametrize("who", ["hammer", "heir"])
def test_four_threads_and_forks_among_them_leave_an_exact_count(built: Built, page: Page, who: str) -> None:
    done = subprocess.run(
        [built.probe, who, "4"],
        env=metered(page.path, built.meter),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_preloaded_tracer_before_or_after_the_meter_changes_no_count(
    built: Built, page: Page, start: Start, order: str
) -> None:
    libraries = (built.tracer, built.meter) if order == "before" else (built.meter, built.tracer)
    probe = start(metered(page.path, *libraries))
    before = live(page, probe.pid)
    for how in ["malloc", "calloc", "posix_memalign", "realloc"]:
        usable, _ = probe.ask(f"{how} 0 100000")
        assert live(page, probe.pid) == before + usable
        probe.ask("free 0")
        assert live(page, probe.pid) == before


# Slots: fork, exec, exit, death.


def test_a_forked_child_has_its_own_slot_that_starts_at_zero(start: Start, page: Page) -> None:
    probe = start()
    parent_bytes, _ = probe.ask(f"malloc 0 {MIB}")
    parent_live = live(page, probe.pid)
    child, _ = probe.ask("fork")
    assert slot_of(page, child) != slot_of(page, probe.pid)
    assert (live(page, child), word(page, child, wire.S_FLAGS) % (1 << 64)) == (0, METERED)
    child_bytes, _ = probe.ask(f"malloc 1 {2 * MIB}")
    assert (live(page, child), live(page, probe.pid)) == (child_bytes, parent_live)
    probe.ask("free 1")
    probe.ask("free 0")
    assert live(page, child) == 0  # freed here, counted and held in the parent
    probe.tell("quit")
    probe.ask("free 0")
    assert page.slot_of(child) is None
    assert live(page, probe.pid) == parent_live - parent_bytes


def test_an_executed_program_takes_its_slot_over_and_starts_from_zero(start: Start, page: Page) -> None:
    probe = start()
    slot = slot_of(page, probe.pid)
    probe.ask(f"malloc 0 {8 * MIB}")
    page.words[slot_base(slot) + wire.S_STEPS] = 7
    assert probe.ask("exec")[0] == probe.pid
    assert page.pids() == {slot: probe.pid}
    assert live(page, probe.pid) < MIB
    assert word(page, probe.pid, wire.S_PEAK) < MIB
    assert word(page, probe.pid, wire.S_STEPS) == 0
    usable, _ = probe.ask(f"malloc 0 {MIB}")
    assert usable <= live(page, probe.pid) < 2 * MIB


def test_a_second_slot_left_over_from_before_an_exec_is_freed(start: Start, page: Page) -> None:
    probe = start()
    page.words[wire.H_SLOTS_USED] = 6
    for word_at, value in ((wire.S_PID, probe.pid), (wire.S_LIVE, 5 * MIB)):
        page.words[slot_base(5) + word_at] = value
    probe.ask("exec")
    assert page.pids() == {1: probe.pid}
    assert page.words[slot_base(5) + wire.S_LIVE] == 0


def test_a_normal_exit_frees_the_slot(start: Start, page: Page) -> None:
    with start() as probe:
        probe.ask(f"malloc 0 {MIB}")
    assert probe.process.returncode == 0
    assert page.pids() == {}
    assert page.words[slot_base(1) + wire.S_LIVE] == 0


@pytest.mark.parametrize("end", ["vanish", "die"])
def test_g3_the_slot_of_a_process_that_ended_abruptly_is_taken_when_no_other_is_free(
    start: Start, page: Page, end: str
) -> None:
    with start() as first:
        first.ask(f"malloc 0 {MIB}")
        first.tell(end)
    assert page.pids() == {1: first.pid}
    for slot in range(2, wire.FIRST_LENT):
        page.words[slot_base(slot) + wire.S_PID] = os.getpid()
    second = start()
    assert page.pids()[1] == second.pid
    assert live(page, second.pid) < MIB


def test_a_place_is_found_without_a_look_at_who_else_lives(start: Start, page: Page) -> None:
    """That takes system calls, as many as there are processes; so a dead one's place is not the first choice."""
    with start() as first:
        first.tell("die")
    second = start()
    assert page.pids() == {1: first.pid, 2: second.pid}


def test_without_a_free_slot_the_process_runs_uncounted_and_says_so_once(start: Start, page: Page) -> None:
    for slot in range(1, wire.FIRST_LENT):
        page.words[slot_base(slot) + wire.S_PID] = os.getpid()
    page.words[wire.H_SLOTS_USED] = wire.FIRST_LENT
    probe = start()
    assert probe.ask(f"malloc 0 {MIB}")[0] >= MIB
    assert probe.said() == f"carpool: every slot of the shared page is taken; {NOT_COUNTED}"
    assert set(page.pids().values()) == {os.getpid()}


# The cap.


@pytest.mark.parametrize("how", HOOKS)
def test_every_allocator_refuses_what_would_go_over_the_cap(start: Start, page: Page, how: str) -> None:
    probe = start()
    page.words[wire.H_CAP] = 16 * MIB
    assert probe.ask(f"{how} 0 {8 * MIB}")[0] >= 8 * MIB
    assert probe.ask(f"{how} 1 {9 * MIB}") == (0, errno.ENOMEM)
    assert (page.words[wire.H_DENIED_COUNT], page.words[wire.H_DENIED_BYTES]) == (1, 9 * MIB)
    assert probe.ask("malloc 2 4000") != (0, errno.ENOMEM)  # too small to be counted, so never refused
    probe.ask("free 0")
    assert probe.ask(f"{how} 1 {9 * MIB}")[0] >= 9 * MIB


def test_a_refused_realloc_leaves_the_old_block_as_it_was(start: Start, page: Page) -> None:
    probe = start()
    page.words[wire.H_CAP] = 16 * MIB
    before = live(page, probe.pid)
    usable, _ = probe.ask(f"malloc 0 {8 * MIB}")
    assert probe.ask(f"realloc 0 {17 * MIB}") == (0, errno.ENOMEM)
    assert page.words[wire.H_DENIED_BYTES] == 17 * MIB - usable
    assert live(page, probe.pid) == before + usable
    grown, _ = probe.ask(f"realloc 0 {12 * MIB}")  # the difference fits, although 8 + 12 MiB would not
    assert live(page, probe.pid) == before + grown
    assert probe.ask("free 0") == (0, UNTOUCHED)
    assert live(page, probe.pid) == before


def test_sizes_that_overflow_are_refused_with_and_without_a_cap(start: Start, page: Page) -> None:
    probe = start()
    for cap in [0, 16 * MIB]:
        page.words[wire.H_CAP] = cap
        assert probe.ask(f"malloc 0 {(1 << 64) - 4096}") == (0, errno.ENOMEM)
    page.words[wire.H_CAP] = 1  # below what is already held
    assert probe.ask("malloc 0 4096") == (0, errno.ENOMEM)


def test_the_refusal_is_one_sentence_with_the_numbers_once_a_process(start: Start, page: Page) -> None:
    probe = start()
    lent = page.lend_slot(os.getpid())
    assert lent is not None
    page.words[slot_base(lent) + wire.S_LIVE] = 1004 * MIB
    page.words[wire.H_CAP] = 1024 * MIB
    sentence = (
        "carpool: memory cap reached: this job may hold 1.00 GiB, holds 0.98 GiB and asked for 64.0 MiB more; "
        "the program gets its own out-of-memory error (raise the cap with --memory)\n"
    )
    assert probe.ask(f"malloc 0 {64 * MIB}") == (0, errno.ENOMEM)
    assert probe.ask(f"malloc 0 {64 * MIB}") == (0, errno.ENOMEM)
    assert probe.said() == sentence
    probe.ask("fork")
    assert probe.ask(f"malloc 0 {64 * MIB}") == (0, errno.ENOMEM)
    assert probe.said() == sentence * 2  # the child is a process of its own
    assert page.words[wire.H_DENIED_COUNT] == 3


def test_the_cap_counts_all_processes_of_the_job_together(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    first, second = start(), start()
    assert first.ask(f"malloc 0 {10 * MIB}")[0]
    assert second.ask(f"malloc 0 {10 * MIB}") == (0, errno.ENOMEM)
    assert first.ask(f"malloc 1 {4 * MIB}")[0]
    assert first.said() == ""
    page.words[wire.H_CAP] = 32 * MIB
    assert second.ask(f"malloc 0 {10 * MIB}")[0]


def test_y3_processes_that_ask_in_the_same_instant_pass_the_cap_by_one_allocation_each_at_most(
    start: Start, page: Page
) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    racers = [start() for _ in range(4)]
    for racer in racers:
        racer.tell(f"malloc 0 {10 * MIB}")
    assert any([racer.answer()[0] for racer in racers])
    for racer in racers:
        assert racer.ask(f"malloc 1 {10 * MIB}") == (0, errno.ENOMEM)


# Waiting for room.


@pytest.fixture
def waiting(built: Built, start: Start, page: Page) -> Probe:
    """Holds 10 MiB of 16, and may wait 20 s for more."""
    page.words[wire.H_CAP] = 16 * MIB
    env = metered(page.path, built.meter) | {"CARPOOL_WAIT_MEMORY_NS": str(WAIT_SECONDS * 10**9)}
    del env["CARPOOL_IS_CAPPED"]
    probe = start(env=env)
    assert probe.ask(f"malloc 0 {10 * MIB}")[0]
    return probe


def ask_and_wait(probe: Probe, page: Page) -> None:
    probe.tell(f"malloc 1 {8 * MIB}")
    deadline = time.monotonic() + WAIT_SECONDS
    while page.pending() != [(probe.pid, 8 * MIB)]:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_y4_what_waits_goes_on_when_there_is_room(waiting: Probe, page: Page) -> None:
    page.deny("an allocation before this one failed", now=time.monotonic_ns())
    ask_and_wait(waiting, page)
    assert page.live_bytes(slot_of(page, waiting.pid)) < 11 * MIB, "it does not hold it yet"
    page.words[wire.H_CAP] = 32 * MIB
    assert waiting.answer()[0] >= 8 * MIB
    assert (page.pending(), waiting.said()) == ([], "")


def test_y4_what_waits_knocks_until_it_does_not(built: Built, start: Start, page: Page, tmp_path: Path) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    where = tmp_path / "knock"
    env = metered(page.path, built.meter) | {"CARPOOL_WAIT_MEMORY_NS": str(WAIT_SECONDS * 10**9)}
    probe = start(env=env | {"CARPOOL_KNOCK": str(where)})
    assert probe.ask(f"malloc 0 {10 * MIB}")[0]
    ask_and_wait(probe, page)
    time.sleep(0.05)  # nobody listens yet, as where a daemon is started anew
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(str(where))
        door.settimeout(WAIT_SECONDS)
        for _ in range(3):
            assert len(door.recv(9)) == 1
        page.words[wire.H_CAP] = 32 * MIB
        usable, error = probe.answer()
        assert (usable >= 8 * MIB, error) == (True, UNTOUCHED)
        door.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while True:
                door.recv(9)
    assert probe.ask(f"malloc 2 {4 * MIB}")[0], "what has room knocks at nothing"


def test_y4_what_waits_fails_with_the_daemons_sentence(waiting: Probe, page: Page) -> None:
    ask_and_wait(waiting, page)
    page.words[wire.H_CAP] = 10 * MIB  # as the core does while a job waits
    page.deny("out of memory: b has 5 GiB" + "; and so on" * 100, now=time.monotonic_ns())
    assert waiting.answer() == (0, errno.ENOMEM)
    said = waiting.said()
    assert said.startswith("carpool: out of memory: b has 5 GiB; and so on")
    assert said.endswith("; the program gets its own out-of-memory error\n")
    assert len(said) < wire.TEXT_BYTES + 80
    assert (page.pending(), page.words[wire.H_DENIED_COUNT]) == ([], 1)


def test_y4_what_the_device_does_not_have_is_not_waited_for(waiting: Probe, page: Page) -> None:
    page.words[wire.H_CAPACITY] = 17 * MIB
    assert waiting.ask(f"malloc 1 {8 * MIB}") == (0, errno.ENOMEM)
    assert re.fullmatch(
        r"carpool: out of memory: this job can hold 16\.0 MiB, holds 10\.\d MiB and asked for 8\.0 MiB more; the"
        r" program gets its own out-of-memory error\n",
        waiting.said(),
    )


def test_y4_what_goes_over_a_cap_that_the_user_drew_meanwhile_is_not_waited_for(waiting: Probe, page: Page) -> None:
    page.words[wire.H_CAP] = 12 * MIB
    caps.tell(page.words, 64 * MIB, 12 * MIB, may_wait=False)
    assert waiting.ask(f"malloc 1 {8 * MIB}") == (0, errno.ENOMEM)
    assert re.fullmatch(
        r"carpool: memory cap reached: this job may hold 12\.0 MiB, holds 10\.\d MiB and asked for 8\.0 MiB more; the"
        r" program gets its own out-of-memory error \(raise the cap with --memory\)\n",
        waiting.said(),
    )


def test_y4_where_it_was_told_to_wait_it_waits_at_a_cap_of_its_user_too(waiting: Probe, page: Page) -> None:
    caps.tell(page.words, 64 * MIB, 16 * MIB, may_wait=True)
    ask_and_wait(waiting, page)
    page.words[wire.H_CAP] = 32 * MIB
    assert waiting.answer()[0] >= 8 * MIB


def test_y4_after_its_time_it_fails_by_itself_and_names_the_cap_it_met(
    built: Built, start: Start, page: Page
) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start(env=metered(page.path, built.meter) | {"CARPOOL_WAIT_MEMORY_NS": str(10**9)})
    assert probe.ask(f"malloc 0 {10 * MIB}")[0]
    ask_and_wait(probe, page)
    page.words[wire.H_CAP] = 10 * MIB
    assert probe.answer() == (0, errno.ENOMEM)
    assert "this job may hold 16.0 MiB, holds 10.0 MiB and asked for 8.0 MiB more, and waited as long" in probe.said()


def test_y5_at_a_boundary_the_thread_there_waits_for_nothing_and_small_blocks_pass(
    waiting: Probe, page: Page
) -> None:
    assert waiting.ask("turns") == (1, 0)
    page.words[wire.H_CAP] = 8 * MIB  # it has grown beyond
    page.words[slot_base(slot_of(page, waiting.pid)) + wire.S_LEASE] = wire.LEASE_ASKED
    assert waiting.ask("malloc 1 100000")[0] >= 100000
    assert waiting.ask(f"malloc 2 {8 * MIB}") == (0, errno.ENOMEM)
    assert "waited" not in waiting.said()


def test_y5_small_blocks_of_other_threads_do_not_pass_the_cap_meanwhile(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start()
    assert probe.ask(f"malloc 0 {16 * MIB - 65536}")[0]
    page.words[slot_base(slot_of(page, probe.pid)) + wire.S_LEASE] = wire.LEASE_ASKED
    assert probe.ask("malloc 1 100000") == (0, errno.ENOMEM)


@pytest.mark.slow
def test_y5_other_threads_wait_but_not_as_long_as_the_turn_is_away(waiting: Probe, page: Page) -> None:
    page.words[slot_base(slot_of(page, waiting.pid)) + wire.S_LEASE] = wire.LEASE_ASKED
    ask_and_wait(waiting, page)
    page.words[wire.H_CAP] = 32 * MIB
    assert waiting.answer()[0] >= 8 * MIB, "there is room before that"
    page.words[wire.H_CAP] = 16 * MIB
    began = time.monotonic()
    assert waiting.ask(f"malloc 2 {8 * MIB}") == (0, errno.ENOMEM)
    assert 1.5 < time.monotonic() - began < WAIT_SECONDS - 1


@pytest.mark.slow
def test_y5_with_the_turn_they_wait_on(waiting: Probe, page: Page) -> None:
    lease = slot_base(slot_of(page, waiting.pid)) + wire.S_LEASE
    page.words[lease] = wire.LEASE_ASKED
    ask_and_wait(waiting, page)
    page.words[lease] = wire.LEASE_HELD
    time.sleep(2.5)  # longer than it may wait while the turn is away
    assert page.pending() == [(waiting.pid, 8 * MIB)]
    page.words[wire.H_CAP] = 32 * MIB
    assert waiting.answer()[0] >= 8 * MIB


def test_y2_a_forked_child_that_drops_what_it_inherited_has_no_more_room_for_it(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start()
    probe.ask(f"malloc 0 {10 * MIB}")
    child, _ = probe.ask("fork")
    probe.ask("free 0")
    assert live(page, child) == 0
    assert probe.ask(f"malloc 1 {10 * MIB}") == (0, errno.ENOMEM)
    assert probe.ask(f"malloc 1 {5 * MIB}")[0]
    other = start()
    assert other.ask(f"malloc 0 {5 * MIB}") == (0, errno.ENOMEM)


def test_y2_a_child_has_all_room_again_that_it_gives_back_itself(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start()
    probe.ask(f"malloc 0 {8 * MIB}")
    child, _ = probe.ask("fork")
    probe.ask(f"malloc 1 {5 * MIB}")
    probe.ask("free 0")
    for _ in range(20):
        probe.ask("free 1")
        assert live(page, child) == 0
        usable, _ = probe.ask(f"malloc 1 {5 * MIB}")
        assert live(page, child) == usable >= 5 * MIB


def test_y2_what_a_child_inherited_and_grows_is_its_own_from_then_on(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start()
    probe.ask(f"malloc 0 {4 * MIB}")
    child, _ = probe.ask("fork")
    assert probe.ask(f"realloc 0 {13 * MIB}") == (0, errno.ENOMEM)  # its parent keeps the 4 MiB
    assert live(page, child) == 0
    usable, _ = probe.ask(f"realloc 0 {8 * MIB}")
    assert live(page, child) == usable
    assert probe.ask(f"realloc 0 {14 * MIB}") == (0, errno.ENOMEM)
    assert live(page, child) == usable
    probe.ask("free 0")
    assert live(page, child) == 0


def test_y2_a_childs_child_tells_its_own_blocks_from_those_of_both(start: Start, page: Page) -> None:
    probe = start()
    probe.ask(f"malloc 0 {4 * MIB}")
    child, _ = probe.ask("fork")
    childs, _ = probe.ask(f"malloc 1 {5 * MIB}")
    grandchild, _ = probe.ask("fork")
    own, _ = probe.ask(f"malloc 2 {6 * MIB}")
    for at in (0, 1):
        probe.ask(f"free {at}")
        assert (live(page, grandchild), live(page, child)) == (own, childs)
    probe.ask("free 2")
    assert live(page, grandchild) == 0
    probe.tell("quit")
    probe.ask("free 0")
    assert live(page, child) == childs
    probe.ask("free 1")
    assert live(page, child) == 0


def test_g3_a_killed_process_leaves_no_phantom_bytes(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    first, second = start(), start()
    assert first.ask(f"malloc 0 {10 * MIB}")[0]
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(WAIT_SECONDS)
    assert second.ask(f"malloc 0 {10 * MIB}")[0]
    assert second.said() == ""
    assert page.pids() == {2: second.pid}
    assert page.words[slot_base(1) + wire.S_LIVE] == 0
    assert page.words[wire.H_DENIED_COUNT] == 0


def test_a_killed_child_nobody_waited_for_leaves_no_phantom_bytes(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start()
    child, _ = probe.ask("fork")
    probe.ask(f"malloc 0 {10 * MIB}")
    probe.tell("die")
    assert probe.ask(f"malloc 0 {10 * MIB}")[0]
    os.kill(child, 0)  # still there: a zombie
    assert page.pids() == {1: probe.pid}


def test_g3_bytes_in_a_lent_slot_count_while_its_process_lives_and_only_the_daemon_clears_it(
    start: Start, page: Page
) -> None:
    page.words[wire.H_CAP] = 16 * MIB
    probe = start()
    lent = page.lend_slot(os.getpid())
    assert lent is not None
    page.words[slot_base(lent) + wire.S_LIVE] = 10 * MIB
    assert probe.ask(f"malloc 0 {10 * MIB}") == (0, errno.ENOMEM)
    page.words[slot_base(lent) + wire.S_PID] = gone = dead_pid()
    assert probe.ask(f"malloc 0 {10 * MIB}")[0]
    assert page.pids()[lent] == gone
    assert page.words[slot_base(lent) + wire.S_LIVE] == 10 * MIB


@pytest.mark.parametrize("state", ["broken", "full"])
def test_a_stderr_nobody_reads_neither_kills_nor_blocks_the_program(start: Start, page: Page, state: str) -> None:
    reader, writer = os.pipe()
    if state == "full":
        flags = fcntl.fcntl(writer, fcntl.F_GETFL)
        fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, bytes(65536))
        fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    else:
        os.close(reader)
    page.words[wire.H_CAP] = MIB
    probe = start(stderr=writer)
    os.close(writer)
    assert probe.ask(f"malloc 0 {2 * MIB}") == (0, errno.ENOMEM)
    assert probe.ask("malloc 0 8192")[0] >= 8192
    if state == "full":
        os.close(reader)


# Stepping aside.


@pytest.mark.parametrize("path", [None, ""])
def test_without_a_page_the_meter_is_silent_and_does_nothing(
    built: Built, page: Page, start: Start, path: str | None
) -> None:
    page.words[wire.H_CAP] = MIB
    probe = start(metered(path, built.meter))
    for how in HOOKS:
        usable, error = probe.ask(f"{how} 0 {2 * MIB}")
        assert (usable >= 2 * MIB, error) == (True, UNTOUCHED)
        assert probe.ask("free 0") == (0, UNTOUCHED)
    assert probe.said() == ""
    assert page.pids() == {}


def make_directory(page: Page) -> str:
    page.path.unlink()
    page.path.mkdir(mode=0o700)
    return "Is a directory"


def make_symlink(page: Page) -> str:
    page.path.rename(page.path.with_name("elsewhere"))
    page.path.symlink_to("elsewhere")
    return "Too many levels of symbolic links"


def make_fifo(page: Page) -> str:
    page.path.unlink()
    os.mkfifo(page.path, 0o600)
    return "the page is not a private file of this user"


def make_readable_by_others(page: Page) -> str:
    page.path.chmod(0o640)
    return "the page is not a private file of this user"


def make_somebody_elses(page: Page) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file somebody else's")
    os.chown(page.path, 65534, 65534)
    return "the page is not a private file of this user"


def make_short(page: Page) -> str:
    page.path.unlink()
    page.path.touch(mode=0o600)
    return "the page is too short, restart the job"


def make_without_magic(page: Page) -> str:
    page.words[wire.H_MAGIC] = 0
    return "the page is of another layout, restart the job"


def make_another_layout(page: Page) -> str:
    page.words[wire.H_LAYOUT] = wire.LAYOUT + 1
    return "the page is of another layout, restart the job"


def test_y6_a_page_that_is_gone_is_that_of_a_job_that_is_over_and_nothing_is_said(page: Page, start: Start) -> None:
    page.words[wire.H_CAP] = MIB
    page.path.unlink()
    probe = start()
    assert probe.ask(f"malloc 0 {2 * MIB}")[0] >= 2 * MIB
    assert (probe.said(), page.pids()) == ("", {})


@pytest.mark.parametrize(
    "spoil",
    [
        make_directory,
        make_symlink,
        make_fifo,
        make_readable_by_others,
        make_somebody_elses,
        make_short,
        make_without_magic,
        make_another_layout,
    ],
)
def test_y6_a_page_that_fails_a_check_is_named_in_one_line_and_not_used(
    page: Page, start: Start, spoil: Callable[[Page], str]
) -> None:
    page.words[wire.H_CAP] = MIB
    why = spoil(page)
    probe = start()
    for how in HOOKS:
        assert probe.ask(f"{how} 0 {2 * MIB}")[0] >= 2 * MIB
        assert probe.ask("free 0") == (0, UNTOUCHED)
    assert probe.said() == f"carpool: {why} (shared page {page.path}); {NOT_COUNTED}"
    assert page.pids() == {}


def test_y6_an_allocator_that_hides_malloc_from_the_meter_turns_it_off_in_one_line(
    built: Built, page: Page, start: Start
) -> None:
    probe = start(metered(page.path, built.greedy, built.meter))
    assert re.fullmatch(rf"carpool: another library serves malloc .*; {NOT_COUNTED}", probe.said(), flags=re.DOTALL)
    assert page.pids() == {}


# Sanitizers. The meter is compiled into the program under other names, so that its real functions are the
# sanitizer's own and no instrumented code runs before the sanitizer is ready.


@pytest.mark.slow
@pytest.mark.parametrize("who", ["gentle", "gentle-heir"])
@pytest.mark.parametrize("sanitizer", ["undefined", "thread", "address,undefined"])
def test_the_thread_hammer_is_clean_under_sanitizers(
    built: Built, page: Page, tmp_path: Path, sanitizer: str, who: str
) -> None:
    checked = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-O1"]
    (tmp_path / "nothing.c").write_text("int main(void) { return 0; }\n")
    nothing = tmp_path / "nothing"
    tried = subprocess.run(["cc", *checked, f"{nothing}.c", "-o", nothing], capture_output=True, timeout=WAIT_SECONDS)
    if tried.returncode or subprocess.run([nothing], capture_output=True, timeout=WAIT_SECONDS).returncode:
        pytest.skip(f"this toolchain has no working -fsanitize={sanitizer}: the meter is NOT checked with it")
    renames = [f"-D{name}=metered_{name}" for name in [*HOOKS, "free"]]
    program = compile_c(
        tmp_path / "checked", *checked, *renames, NATIVE / "meter.c", NATIVE / "tests" / "meter_probe.c"
    )
    done = subprocess.run(
        [program, who, "3"],
        env=metered(page.path) | {"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address layout is too random for ThreadSanitizer")
    assert (done.returncode, done.stderr) == (0, "")


# Real torch programs.

# Importing torch, its first optimizer and its first large product leave some 45 MiB of code objects and scratch
# behind: these are counted too, so a small model goes first and the test looks at what the large one adds.
REST = """
import os, torch
from pathlib import Path
from carpool.wire.page import Page, S_LIVE, slot_base
page = Page.open(Path(os.environ["CARPOOL_PAGE"]))
live = slot_base(page.slot_of(os.getpid())) + S_LIVE
def train(width, depth):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(64, width)).square().mean().backward()
        optimizer.step()
    tensors = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
    return model, optimizer, sum(t.untyped_storage().nbytes() for t in tensors)
small = train(1024, 1)
before = page.words[live]
large = train(1024, 8)
print(page.words[live] - before, large[2])
"""

CAPPED = """
import torch
kept = torch.ones(1 << 20)
for _ in range(2):
    try:
        torch.ones(64 << 20)
    except RuntimeError as error:
        print("DefaultCPUAllocator" in str(error))
print((kept * 2).sum().item())
"""

WORKERS = """
import os, torch
from pathlib import Path
from carpool.wire.page import Page, S_LIVE, slot_base
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        page = Page.open(Path(os.environ["CARPOOL_PAGE"]))
        slot = page.slot_of(os.getpid())
        before = page.words[slot_base(slot) + S_LIVE]
        kept = torch.zeros(1 << 20)
        gained = (page.words[slot_base(slot) + S_LIVE] - before) % (1 << 64)  # either may be below zero
        return torch.tensor([slot, round(gained / 2**20)])
rows = torch.cat(list(torch.utils.data.DataLoader(Rows(), num_workers=2)))
print(len(set(rows[:, 0].tolist())), set(rows[:, 1].tolist()))
"""


def run_torch(program: str, page: Page, built: Built) -> subprocess.CompletedProcess[str]:
    env = metered(page.path, built.meter) | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(NATIVE.parent / "src"),
    }
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)


@needs_torch
@pytest.mark.slow
def test_a_torch_program_at_rest_holds_its_tensors_within_five_percent(built: Built, page: Page) -> None:
    done = run_torch(REST, page, built)
    assert (done.returncode, done.stderr) == (0, "")
    counted, tensors = map(int, done.stdout.split())
    assert tensors > 100 * MIB
    assert abs(counted - tensors) <= 0.05 * tensors


@needs_torch
@pytest.mark.slow
def test_a_capped_torch_program_can_catch_its_own_error_and_go_on(built: Built, page: Page, start: Start) -> None:
    page.words[wire.H_CAP] = 200 * MIB
    other = start()
    assert other.ask(f"malloc 0 {MIB}")[0]
    done = run_torch(CAPPED, page, built)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", str(2.0 * (1 << 20))]
    assert done.stderr.count("carpool: memory cap reached") == 1
    assert re.search(r"may hold 200\.0 MiB, holds \d+\.\d MiB and asked for 256\.0 MiB more", done.stderr)
    assert page.words[wire.H_DENIED_COUNT] == 2
    assert other.ask(f"malloc 1 {MIB}")[0]
    assert other.said() == ""


@needs_torch
@pytest.mark.slow
def test_forked_data_loader_workers_count_in_slots_of_their_own(built: Built, page: Page) -> None:
    done = run_torch(WORKERS, page, built)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 {4}\n"
