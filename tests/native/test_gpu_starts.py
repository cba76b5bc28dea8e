"""What other interposers leave behind or grow with: hundreds of starts, files that are not theirs, descriptors, and
system calls where there need be none."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.wire import messages as m
from carpool.wire import page as wire
from carpool.wire.page import PRICE_ONE, Page
from tests.agent.fake_daemon import FakeDaemon
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, Probe, environment, live_bytes, true_bytes
from tests.native.scripts import Script
from tests.native.test_gpu_turns import attach, job

Env = dict[str, str]
CAP = 100 * MIB
LAUNCH, ALLOC = 0, 1


@pytest.fixture
def page(page: Page) -> Page:
    page.words[wire.H_CAP] = CAP
    return page


@pytest.fixture
def env(built: Built, page: Page, books: Path) -> Env:
    return environment(built, books, page=page.path)


# Starts.

STARTS, AT_ONCE = 300, 20
START_ADDED_MAX = 0.005  # of its instructions; a look at one more slot is less than a ten-thousandth


def start_instructions(built: Built, env: Env) -> int:
    """What a process takes from its start to its end, with one allocation."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(built.probe), "link"]
    done = subprocess.run(command, env=env, input="first\n", capture_output=True, text=True, timeout=60)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_three_hundred_starts_leave_the_account_clean_and_the_next_start_as_quick(
    built: Built, env: Env, page: Page, books: Path, tmp_path: Path
) -> None:
    can_count = shutil.which("valgrind") is not None
    before = start_instructions(built, env) if can_count else 0
    for batch in range(STARTS // AT_ONCE):
        with ExitStack() as stack:
            probes = [stack.enter_context(Probe(built, env, tmp_path / f"log{n}")) for n in range(AT_ONCE)]
            assert [probe.alloc("plain", 0, MIB) for probe in probes] == [0] * AT_ONCE, batch
            for probe in probes[::4]:  # no last words
                probe.process.send_signal(signal.SIGKILL)
        assert [probe.said() for probe in probes] == [""] * AT_ONCE
    with Probe(built, env, tmp_path / "last") as probe:
        assert probe.alloc("plain", 0, CAP) == 0
        assert probe.alloc("plain", 1, 1) == OUT_OF_MEMORY
        assert page.pids() == {page.slot_of(probe.pid): probe.pid}, "who was killed has been cleared away"
        assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == CAP
    assert page.pids() == {}
    if not can_count:
        pytest.skip("no valgrind: what a start costs after many others is NOT counted")
    after = start_instructions(built, env)
    assert after < before * (1 + START_ADDED_MAX), (before, after)


# Files that are not a page.

FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(b"\xff" * 100),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * (wire.PAGE_BYTES // 256)),
    "zeros": lambda path: path.write_bytes(bytes(wire.PAGE_BYTES)),
    "older": lambda path: set_word(path, wire.H_LAYOUT, wire.LAYOUT - 1),
    "newer": lambda path: set_word(path, wire.H_LAYOUT, wire.LAYOUT + 1),
    "half made": lambda path: set_word(path, wire.H_MAGIC, 0),
    "readable by others": lambda path: make_page(path).chmod(0o644),
    "symlink": lambda path: path.symlink_to(make_page(path.with_name("real"))),
    "directory": lambda path: path.mkdir(mode=0o700),
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "another's": lambda path: give_away(path),
}


def make_page(path: Path) -> Path:
    Page.create(path).close()
    return path


def set_word(path: Path, word: int, value: int) -> None:
    page = Page.create(path)
    page.words[word] = value
    page.close()


def give_away(path: Path) -> None:
    make_page(path)
    try:
        os.chown(path, 12345, 12345)
    except PermissionError:
        pytest.skip("only root can make a file another user's: a page of somebody else is NOT tried")


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_no_page_of_ours_is_named_once_left_alone_and_gives_no_memory(
    built: Built, books: Path, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "not-a-page"
    FILES[what](path)
    text = path.read_bytes() if path.is_file() else b""
    with Probe(built, environment(built, books, page=path), tmp_path / "log") as probe:
        assert probe.alloc("plain", 0, MIB) == probe.alloc("async", 1, MIB) == OUT_OF_MEMORY
        assert probe.ask("launch plain busy_1us")[0] == 0
        assert probe.info()[1] == 4096 * MIB, "the figures are the card's"
    said = probe.said()
    assert said.startswith("carpool: ") and said.count("\n") == 1
    assert str(path) in said and "this program gets no device memory" in said
    uncapped = environment(built, books, page=path) | {"CARPOOL_IS_CAPPED": "0"}
    with Probe(built, uncapped, tmp_path / "log") as probe:
        assert probe.alloc("plain", 0, MIB) == 0
    assert probe.said().count("\n") == 1 and "memory of this process is not counted" in probe.said()
    assert path.is_file() is bool(text or what == "empty") and (not path.is_file() or path.read_bytes() == text)


@pytest.mark.parametrize("word", [2**64 - 1, 2**63, 2**40 + 7, 0x5555555555555555])
def test_slots_full_of_garbage_break_no_program(
    built: Built, env: Env, page: Page, tmp_path: Path, word: int
) -> None:
    for index in range(wire.SLOT_WORDS * 5, len(page.words)):  # the first four are left to be claimed
        page.words[index] = word
    page.words[wire.H_SLOTS_USED] = page.words[wire.H_LENT_USED] = word
    with Probe(built, env, tmp_path / "log") as probe:
        assert probe.alloc("plain", 0, MIB) in (0, OUT_OF_MEMORY)
        left, total = probe.info()
        assert 0 <= left <= total == CAP
        assert probe.ask("launch plain busy_1us")[0] == 0
    assert (probe.process.returncode, probe.said()) == (0, "")


# Descriptors.

CYCLES = """
import os, signal
def fds():
    return len(os.listdir("/proc/self/fd"))
def cycle(count):
    for number in range(count):
        if IN_TURNS and number % 33 == 1:
            print("turn", flush=True)
            sys.stdin.readline()
        assert cuda.cuInit(0) == 0 and allocate(4096) == 0 and launch(b"busy_1us") == 0
        assert cuda.cuCtxSynchronize() == 0 and cuda.cuMemFree_v2(at) == 0 and allocate(1 << 40) == 2
        if number % 20 == 0:
            child = os.fork()
            if child == 0:
                allocate(4096)  # it claims a slot of its own
                os._exit(fds() - before if before else MUST_LOSE)
            assert os.waitpid(child, 0)[1] == MUST_LOSE << 8
before = 0
cycle(3)
before = fds()
cycle(1000)
print(before, fds(), flush=True)
"""


@pytest.mark.slow
def test_a_thousand_cycles_and_fifty_forks_leave_no_descriptor_open(env: Env) -> None:
    with Script(env, f"MUST_LOSE, IN_TURNS = 0, False\n{CYCLES}") as script:
        before, after = script.line().split()
        assert before == after


@pytest.mark.slow
def test_a_thousand_cycles_in_turns_need_one_descriptor(built: Built, daemon: FakeDaemon) -> None:
    """The connection is the only one; a child closes its copy of it: one less, which the exit code 255 says."""
    daemon.words[wire.H_CAP] = CAP
    with Script(job(built, daemon), f"MUST_LOSE, IN_TURNS = 255, True\n{CYCLES}") as script:
        message = daemon.accept()
        assert isinstance(message, m.Attach)
        daemon.base = wire.slot_base(message.slot)
        daemon.answer(m.Ask)
        turns = 0
        while (line := script.line()) == "turn":
            turns += 1
            daemon.recall()
            script.go()
            daemon.answer_return()
        before, after = line.split()
        assert (before, turns) == (after, 32)


# System calls.

CALLS = 400
NOT_OURS = {"clock_gettime"}  # a system call only where the machine's clock cannot be read without


@pytest.fixture
def counted(built: Built, tmp_path: Path) -> Iterator[Callable[[Env, str], int]]:
    """How many system calls the probe makes for these commands, all in all."""
    if shutil.which("strace") is None:
        pytest.skip("no strace: the guest's system calls are NOT counted")
    trace = tmp_path / "trace"
    tried = subprocess.run(["strace", "-o", trace, "true"], capture_output=True, timeout=60)
    if tried.returncode:
        pytest.skip("this machine lets nobody trace a process: the guest's system calls are NOT counted")

    def count(env: Env, commands: str) -> int:
        preload = [f"-ELD_PRELOAD={env['LD_PRELOAD']}"] if "LD_PRELOAD" in env else []
        own = {name: value for name, value in env.items() if name != "LD_PRELOAD"}
        command = ["strace", "-o", str(trace), *preload, str(built.probe), "link"]
        done = subprocess.run(command, env=own, input=commands, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and " 997 " not in done.stdout, done.stderr
        assert all(line.startswith("0 ") for line in done.stdout.splitlines()), done.stdout
        made = [line.partition("(")[0] for line in trace.read_text().splitlines()]
        return sum(name not in NOT_OURS for name in made)

    yield count


def added_calls(counted: Callable[[Env, str], int], env: Env, what: int) -> int:
    """What the guest adds to so many calls, once the first ones have been made."""
    bare = {name: value for name, value in env.items() if name not in ("LD_PRELOAD", "CARPOOL_PAGE")}
    made = []
    for each in (env, bare):
        few, many = (f"bench {what} 300\nbench {what} {count}\n" for count in (1, 1 + CALLS))
        made.append(counted(each, many) - counted(each, few))
    return made[0] - made[1]


@pytest.mark.slow
@pytest.mark.parametrize("what", [LAUNCH, ALLOC], ids=["launch", "alloc and free"])
def test_u1_calls_in_steady_state_make_no_system_call_of_ours(
    counted: Callable[[Env, str], int], env: Env, what: int
) -> None:
    assert added_calls(counted, env, what) == 0


@pytest.mark.slow
def test_launches_that_are_paid_for_make_no_system_call_while_there_is_time_to_spend(
    counted: Callable[[Env, str], int], env: Env, page: Page
) -> None:
    page.words[wire.H_PRICE] = PRICE_ONE
    assert added_calls(counted, env, LAUNCH) <= CALLS // 4, (
        "some, where it waited or measured: more on a busy machine"
    )


@pytest.mark.slow
def test_launches_in_a_turn_make_no_system_call(built: Built, daemon: FakeDaemon, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace: the guest's system calls are NOT counted")
    with ExitStack() as stack:
        probe = stack.enter_context(Probe(built, job(built, daemon), tmp_path / "log"))
        probe.tell("launch plain nothing")
        attach(daemon, probe)
        daemon.answer(m.Ask)
        assert probe.answer()[0] == 0
        trace = tmp_path / "trace"
        command = ["strace", "-o", str(trace), "-p", str(probe.pid)]
        watching = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        stack.callback(watching.kill)
        assert watching.stderr
        if "attached" not in watching.stderr.readline():
            pytest.skip("this machine lets nobody trace a process: the guest's system calls are NOT counted")
        assert probe.ask(f"bench {LAUNCH} {CALLS}")[0] == 0
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)
        made = [line.partition("(")[0] for line in trace.read_text().splitlines() if "(" in line]
        assert set(made) <= {"read", "write", "restart_syscall", *NOT_OURS}, "the command, and its answer"
        assert sum(name not in NOT_OURS for name in made) < 10
